"""Delay: the answer is the signal, so many elements late.

    signal   .1  .5  .8  .9  .7  .3 −.1 −.4
    target    0   0   0  .1  .5  .8  .9  .7      a delay of 3; the zeros do not count

A sum of slow sines, so that a few numbers can hold what lies between an element and its answer, if
they are kept up as a projection of the past is.  Always answering 0 has a relative error of 1.
Voelker, Kajić & Eliasmith 2019; Gu et al. 2023, "How to Train Your HiPPO".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from threefold.data.draws import uniform
from threefold.errors import ThreefoldError

WAVES = 12
SOLVED = 0.1


@dataclass(frozen=True)
class Delay:
    """Rows of the task; the score is the relative error √(Σ(y − target)² / Σ target²)."""

    inputs: Tensor  # [N, L, 1] float32
    targets: Tensor  # [N, L, 1] float32
    delay: int  # the first elements, which have no answer
    chance: float = 1.0
    solved: float = SOLVED

    def loss(self, answers: Tensor) -> Tensor:
        """The mean squared error over the elements that count, in units of the signal's."""
        late = self.targets[:, self.delay :]
        return (answers[:, self.delay :] - late).square().mean() / late.square().mean()

    def error(self, answers: Tensor) -> float:
        """The relative error."""
        return math.sqrt(self.loss(answers).item())


def delay(
    elements: int = 1000,
    *,
    length: int | None = None,
    period: float = 100.0,
    seed: int = 0,
    count: int = 100,
) -> Delay:
    """`count` rows to be answered `elements` late, of sines no faster than one in `period`.

    A row is as long again as the delay, unless `length` says otherwise.
    """
    length = 2 * elements if length is None else length
    if elements < 1 or length <= elements or count < 1 or period < 2:
        raise ThreefoldError(
            f"delay: {elements} elements late in {length}, {count} rows, period {period}; expected "
            "at least 1 element, more than that in a row, 1 row, and 2 elements a period"
        )
    frequency, phase = (uniform((seed, n), count, WAVES, 1) for n in range(2))
    angle = frequency / period * np.arange(length) + phase
    signal = np.sin(2 * math.pi * angle).mean(1) * math.sqrt(2 * WAVES)
    inputs = torch.from_numpy(signal).float().unsqueeze(-1)
    targets = torch.zeros_like(inputs)
    targets[:, elements:] = inputs[:, :-elements]
    return Delay(inputs, targets, elements)
