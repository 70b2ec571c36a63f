"""Parity: is the number of ones odd?

    inputs   1 0 1 1 0 0 1 1      answer 1

One bit of state is enough, if the input can flip it: a memory with positive transitions cannot, and
a transformer finds no rule that works for longer rows.  `train` and `valid` have 1 to 40 elements,
`test` 41 to 500.  Chance: 1/2.  Solved: 99 %.
As in Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy" (the mean over lengths).
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import integers_by_row
from threefold.tasks.lengths import check_ranges, cut, lengths_of
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def parity(
    trained: tuple[int, int] = (1, 40), tested: tuple[int, int] = (41, 500), *, seed: int = 0
) -> Task[Batch]:
    """Rows of bits with lengths in the range `trained`, of the test split in `tested`."""
    check_ranges("parity", trained, tested)

    def draw(split: str, numbers: Numbers) -> Batch:
        lengths, longest = lengths_of(seed, split, numbers, trained, tested)
        bits = cut(integers_by_row(address(seed, split, 1), numbers, 2, longest), lengths)
        return make_batch(bits, np.sum(bits, 1) % 2, lengths)

    return declare("parity", draw, length=max(trained[1], tested[1]))
