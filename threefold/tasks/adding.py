"""The adding problem: add the two marked numbers of a sequence.

    numbers  .37  .81  .12  .55  .90  .26  .04  .63
    marks     0    1    0    0    0    1    0    0
    target                                        1.07     .81 + .26, read after the last element

One mark is in the first half, the other in the second, so a number has to be remembered for up to
the whole length.  Always answering 1 has a mean squared error of 1/6; an error below 0.01 counts as
solved.
Hochreiter & Schmidhuber 1997, as in Le, Jaitly & Hinton 2015 (numbers from 0 to 1).
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def adding(length: int = 200, *, seed: int = 0) -> Task[Batch]:
    """Inputs are numbers and marks [L, 2], the target is one number."""
    if length < 2:
        raise ThreefoldError(f"adding: length {length}; expected at least 2 elements")
    half = length // 2

    def draw(split: str, numbers: Numbers) -> Batch:
        values = by_row(address(seed, split, 0), numbers, length)
        first, second = (
            integers_by_row(address(seed, split, stream), numbers, below, 1)
            for stream, below in ((1, half), (2, length - half))
        )
        marked = np.concatenate([first, half + second], 1)
        marks = np.zeros_like(values)
        np.put_along_axis(marks, marked, 1.0, 1)
        targets = np.take_along_axis(values, marked, 1).sum(1)
        return make_batch(np.stack([values, marks], -1), targets)

    return declare("adding", draw, length=length)
