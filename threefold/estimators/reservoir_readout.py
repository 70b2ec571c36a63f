"""ŷ = Wᵀ [h̄, h_L, sd(h)] + b:  a ridge on what a random reservoir says of a whole sequence.

The echo state network of races: fixed weights, one closed-form fit for each sequence's mean state,
last state and spread.
Jaeger 2001, "The 'echo state' approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.classical.leave_one_out import choose_temperature, fit_leave_one_out
from threefold.classical.whole_sequences import Readout, rows_of
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.estimators.fitting import softmax

Array = NDArray[Any]
UNITS = 200


def reservoir_features(rows: Sequence[Any], seed: int) -> Tensor:
    """Mean state, last state and spread of the states [N, 3 · units] of series [L, D]."""
    network = EchoStateNetwork(units=UNITS, seed=seed, bias_scale=0.5, squares=True)
    states = [network.states(torch.as_tensor(row).double()) for row in rows]
    return torch.stack([torch.cat([s.mean(0), s[-1], s.std(0, correction=0)]) for s in states])


@dataclass(frozen=True)
class ReservoirReadout:
    """A fitted read-out; `temperature` is that of probabilities, 0 for numbers."""

    seed: int
    spread: Array  # [F], of each feature
    weight: Array  # [F, outputs]
    offset: Array  # [outputs]
    temperature: float = 0.0

    @classmethod
    def fit(
        cls, rows: Sequence[Array], targets: Array, weights: Array | None, seed: int
    ) -> ReservoirReadout:
        """Fit numbers [N, outputs], or classes [N]."""
        classify = targets.ndim == 1
        features = reservoir_features(rows, seed)
        spread = features.std(0, correction=0)
        spread = torch.where(spread > 1e-12, spread, 1.0)
        wanted = 2 * np.eye(int(targets.max()) + 1)[targets] - 1 if classify else targets
        counts = torch.ones(len(rows)) if weights is None else torch.from_numpy(weights)
        numbers = torch.from_numpy(wanted.astype(np.float64))
        fit = fit_leave_one_out(features / spread, numbers, weights=counts)
        classes = torch.from_numpy(targets)
        found = choose_temperature(fit.left_out, classes, counts) if classify else 0.0
        return cls(seed, spread.numpy(), fit.weight.numpy(), fit.offset.numpy(), found)

    def __call__(self, rows: Sequence[Array]) -> Array:
        """Probabilities [N, classes], or numbers [N, outputs]."""
        features = reservoir_features(rows, self.seed).numpy() / self.spread
        answers: Array = features @ self.weight + self.offset
        return softmax(answers / self.temperature) if self.temperature else answers


@dataclass(frozen=True)
class ReservoirRidge(Readout):
    """The same of a batch of padded series, as an answer to whole sequences."""

    seed: int

    @staticmethod
    def features(inputs: Tensor, lengths: Tensor | None, seed: int) -> Tensor:
        """Features [N, F] of series [N, L, D]."""
        return reservoir_features(rows_of(inputs, lengths), seed)

    def __call__(self, inputs: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.read(self.features(inputs, lengths, self.seed))
