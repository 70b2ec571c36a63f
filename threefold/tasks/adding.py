"""The adding problem: numbers and marks, the answer is the sum of the two marked numbers.

    numbers  .37  .81  .12  .55  .90  .26  .04  .63
    marks     0    1    0    0    0    1    0    0
    target                                        1.07     .81 + .26, read after the last element

One mark is in the first half, the other in the second, so what is needed lies up to a whole length
back.  Always answering 1 has a mean squared error of 1/6; below 0.01 the task counts as solved.
Hochreiter & Schmidhuber 1997, as in Le, Jaitly & Hinton 2015 (numbers from 0 to 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from threefold.data.draws import integers, uniform
from threefold.errors import ThreefoldError

CHANCE = 1 / 6  # the variance of the sum of two numbers, uniform in [0, 1)
SOLVED = 0.01


@dataclass(frozen=True)
class Adding:
    """Rows of the task; the score is the mean squared error, lower is better."""

    inputs: Tensor  # [N, L, 2] float32: numbers and marks
    targets: Tensor  # [N] float32
    chance: float = CHANCE
    solved: float = SOLVED


def adding(length: int = 200, *, seed: int = 0, count: int = 1000) -> Adding:
    """`count` rows that depend on the seed only; another seed for each batch makes them endless."""
    if length < 2 or count < 1:
        raise ThreefoldError(
            f"adding: length {length}, {count} rows; expected at least 2 elements and 1 row"
        )
    numbers, half = uniform((seed, 0), count, length), length // 2
    places = np.stack(
        [integers((seed, 1), half, count), half + integers((seed, 2), length - half, count)], 1
    )
    marks = np.zeros((count, length))
    np.put_along_axis(marks, places, 1.0, 1)
    targets = np.take_along_axis(numbers, places, 1).sum(1)
    inputs = torch.from_numpy(np.stack([numbers, marks], -1)).float()
    return Adding(inputs, torch.from_numpy(targets).float())
