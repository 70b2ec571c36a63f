"""Induction heads: the token that followed the trigger the first time follows it again.

    inputs   7 2 ▸ 9 4 4 1 ▸        ▸ is the trigger, the last token of the vocabulary
    targets                9        only the last target counts

The first trigger is at a random position; a model that has learnt the rule answers correctly at any
length.  Chance: one of the other tokens.  Solved: 99 %.
Olsson et al. 2022, "In-context Learning and Induction Heads"; as in Gu & Dao 2023 ("Mamba", table
11): trained at length 256 with 16 tokens.  Here the trigger is a seventeenth, so the
published results are comparable, but not for exactly this task.
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.random_by_address import integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch


def induction_heads(length: int = 256, tokens: int = 16, *, seed: int = 0) -> Task[Batch]:
    """Rows of `length` elements that end with the trigger; its first position is uniform."""
    if length < 3 or tokens < 2:
        raise ThreefoldError(
            f"induction_heads: length {length}, {tokens} tokens; expected at least 3 and 2"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        inputs = integers_by_row(address(seed, split, 0), numbers, tokens, length)
        position = integers_by_row(address(seed, split, 1), numbers, length - 2, 1)
        np.put_along_axis(inputs, position, tokens, 1)
        inputs[:, -1] = tokens
        targets = np.full_like(inputs, IGNORE)
        targets[:, -1:] = np.take_along_axis(inputs, position + 1, 1)
        return make_batch(inputs, targets)

    sizes = {"vocabulary": tokens + 1, "classes": tokens + 1}
    return declare("induction_heads", draw, length=length, chance=1 / tokens, **sizes)
