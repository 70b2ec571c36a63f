"""Multi-query associative recall: key–value pairs first, then the keys again as queries.

            key val key val     query                       query
    inputs   2   8   4   7   0   0   4   0   0   0   0   0   2   0   0   0
    targets  ·   ·   ·   ·   ·   ·   7   ·   ·   ·   ·   ·   8   ·   ·   ·      · does not count

A model must answer each key with its value in this row, which must be in the state; the weights
cannot contain it.
Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models".
"""

from __future__ import annotations

import numpy as np

from threefold.data.loaders import IGNORE, Batch
from threefold.data.random_by_address import by_row, choose
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

POWER = 0.01  # the paper's a: a gap of g before a query has the weight (g + 1)^(a − 1)


def recall(
    pairs: int = 4, length: int = 64, vocabulary: int = 256, *, seed: int = 0
) -> Task[Batch]:
    """Keys are tokens of the lower half, values of the upper half; 0 fills the rest.

    Chance is 1/pairs: answering any one of the row's values.
    """
    _check(pairs, length, vocabulary)
    half = vocabulary // 2
    # Gaps follow a power law: most queries come soon and some late.
    gaps = np.arange(1.0, length // 2 - pairs + 1) ** (POWER - 1)

    def draw(split: str, numbers: Numbers) -> Batch:
        keys, values, slots = (
            choose(by_row(address(seed, split, stream), numbers, len(weights)), weights, pairs)
            for stream, weights in enumerate((np.ones(half - 1), np.ones(vocabulary - half), gaps))
        )
        keys, values, queries = keys + 1, values + half, 2 * pairs + 2 * slots
        inputs = np.zeros((len(numbers), length), dtype=np.int64)
        inputs[:, 0 : 2 * pairs : 2] = keys
        inputs[:, 1 : 2 * pairs : 2] = values
        targets = np.full_like(inputs, IGNORE)
        np.put_along_axis(inputs, queries, keys, 1)
        np.put_along_axis(targets, queries, values, 1)
        return make_batch(inputs, targets)

    return declare(
        "recall", draw, length=length, chance=1 / pairs, vocabulary=vocabulary, classes=vocabulary
    )


def _check(pairs: int, length: int, vocabulary: int) -> None:
    if pairs < 1:
        raise ThreefoldError(f"recall: {pairs} pairs; expected at least 1")
    if length % 2 or length < 4 * pairs:
        raise ThreefoldError(
            f"recall: length {length} with {pairs} pairs; expected an even length of at least "
            f"{4 * pairs}: two elements per pair and two per query"
        )
    if vocabulary // 2 - 1 < pairs:
        raise ThreefoldError(
            f"recall: a vocabulary of {vocabulary} has {max(vocabulary // 2 - 1, 0)} keys; "
            f"expected at least {2 * pairs + 2} tokens for {pairs} pairs"
        )
