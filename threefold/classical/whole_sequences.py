"""Fitted simple models that answer a whole sequence: a few tensors and numbers each.

    series → class or number   a constant · MiniRocket and ridge · nearest neighbour by time warping
    images → class             a ridge on pixels
    texts → class              logistic regression on hashed n-grams

Each is called with inputs [N, L, D] or tokens [N, L] and lengths [N] (None: all are full), and
answers [N, outputs]: numbers on the scale on which it was fitted, or log-odds of classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from threefold.classical.hashed_ngrams import TextLogistic
from threefold.classical.leave_one_out import choose_temperature, fit_leave_one_out
from threefold.classical.random_convolutions import RandomConvolutions
from threefold.classical.time_warping import nearest_neighbours, time_warping_distances
from threefold.kernels.classical import ConvolutionPlan

WINDOW = 0.1  # of time warping
MOST_ASKED = 200  # series for which the nearest other one is sought
SUREST = 0.999  # probability of the nearest neighbour's class

Fitted = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class ConstantAnswer:
    """The same answer to everything."""

    answer: Tensor  # [outputs]

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.answer.float().expand(len(inputs), -1)


@dataclass(frozen=True)
class Readout:
    """A ridge on features of equal spread; answers for classes are log-odds."""

    spread: Tensor  # [F]
    weight: Tensor  # [F, outputs]
    offset: Tensor  # [outputs]
    temperature: float

    @classmethod
    def fit(cls, features: Tensor, targets: Tensor, classes: Tensor | None = None) -> Readout:
        """Fit features [N, F] and targets [N, outputs]; classes [N] if these are ±1 for each."""
        spread = features.std(0, correction=0)
        spread = torch.where(spread > 0, spread, 1.0)
        fit = fit_leave_one_out(features / spread, targets)
        temperature = 1.0
        if classes is not None:
            temperature = choose_temperature(fit.left_out, classes, torch.ones(len(features)))
        return Readout(spread, fit.weight, fit.offset, temperature)

    def read(self, features: Tensor) -> Tensor:
        """Answers [N, outputs] of features [N, F]."""
        scaled = features.to(self.weight.dtype) / self.spread
        return (scaled @ self.weight + self.offset).float() / self.temperature


@dataclass(frozen=True)
class RocketRidge(Readout):
    """A ridge on MiniRocket's random convolutions; the plan is a `ConvolutionPlan`."""

    dilations: Tensor
    counts: Tensor
    channel_counts: Tensor
    channels: Tensor
    biases: Tensor
    length: int  # of the training series
    width: int  # channels of a series

    @classmethod
    def join(cls, transform: RandomConvolutions, readout: Readout) -> Self:
        """Both halves as one model."""
        plan = transform.plan._asdict()
        return cls(**vars(readout), **plan, length=transform.length, width=transform.channels)

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        plan = ConvolutionPlan(*(getattr(self, name) for name in ConvolutionPlan._fields))
        transform = RandomConvolutions(plan, self.length, self.width)
        return self.read(transform.transform(inputs.float(), lengths).double())


@dataclass(frozen=True)
class PixelRidge(Readout):
    """A ridge on the numbers of an image."""

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.read(inputs.flatten(1).double())


@dataclass(frozen=True)
class NearestSeries:
    """The answer of the nearest known series by banded time warping."""

    inputs: Tensor  # [N, L, D]
    lengths: Tensor  # [N]
    answers: Tensor  # [N, outputs]
    temperature: float = 1.0

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        near, _ = nearest_neighbours(
            inputs.double(), self.inputs, lengths, self.lengths, window=WINDOW
        )
        return self.answers[near].float() / self.temperature

    def calibrated(self) -> NearestSeries:
        """The probability of an answer is how often the nearest other series has the same class."""
        asked = slice(0, MOST_ASKED)
        pairs = self.inputs[asked], self.inputs, self.lengths[asked], self.lengths
        distances = time_warping_distances(*pairs, window=WINDOW)
        near = distances.fill_diagonal_(torch.inf).argmin(1)
        right = (self.answers[near] == self.answers[asked]).all(1).double().mean()
        classes = self.answers.shape[1]
        sure = min(max(float(right), (1 + 1e-3) / classes), SUREST)
        # softmax of 1 beside (classes − 1) times −1, each divided by the temperature, is `sure`.
        return replace(self, temperature=2 / math.log(sure * (classes - 1) / (1 - sure)))


@dataclass(frozen=True)
class TextScores:
    """Logistic regression on hashed n-grams, its arrays as tensors."""

    columns: Tensor
    rarity: Tensor
    weight: Tensor
    offset: Tensor
    order: int
    penalty: float

    @classmethod
    def of(cls, model: TextLogistic) -> TextScores:
        """What a fitted logistic regression contains."""
        arrays = torch.from_numpy(model.columns), torch.from_numpy(model.rarity)
        return cls(*arrays, model.weight, model.offset, model.order, model.penalty)

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        model = TextLogistic(
            self.order,
            self.columns.numpy(),
            self.rarity.numpy(),
            self.weight.float(),
            self.offset.float(),
            self.penalty,
        )
        return model.scores(rows_of(inputs, lengths))


def rows_of(inputs: Tensor, lengths: Tensor | None) -> list[np.ndarray[Any, Any]]:
    """The rows of a batch without their padding."""
    rows = inputs.numpy()
    return [row if lengths is None else row[: int(lengths[i])] for i, row in enumerate(rows)]
