"""The adding problem: numbers and marks, the answer is the sum of the two marked numbers.

    numbers  .37  .81  .12  .55  .90  .26  .04  .63
    marks     0    1    0    0    0    1    0    0
    target                                        1.07     .81 + .26, read after the last element

One mark is in the first half, the other in the second, so what is needed lies up to a whole length
back.  Always answering 1 has a mean squared error of 1/6; below 0.01 the task counts as solved.
Hochreiter & Schmidhuber 1997, as in Le, Jaitly & Hinton 2015 (numbers from 0 to 1).
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def adding(length: int = 200, *, seed: int = 0) -> Task[Batch]:
    """Numbers and marks [L, 2], one number as the answer."""
    if length < 2:
        raise ThreefoldError(f"adding: length {length}; expected at least 2 elements")
    half = length // 2

    def draw(split: str, numbers: Numbers) -> Batch:
        values = by_row(address(seed, split, 0), numbers, length)
        first, second = (
            integers_by_row(address(seed, split, stream), numbers, below, 1)
            for stream, below in ((1, half), (2, length - half))
        )
        places = np.concatenate([first, half + second], 1)
        marks = np.zeros_like(values)
        np.put_along_axis(marks, places, 1.0, 1)
        targets = np.take_along_axis(values, places, 1).sum(1)
        return make_batch(np.stack([values, marks], -1), targets)

    return declare("adding", draw, length=length)
