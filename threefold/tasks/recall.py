"""Multi-query associative recall: key–value pairs first, then the keys again, somewhere later.

            key val key val     query                       query
    inputs   2   8   4   7   0   0   4   0   0   0   0   0   2   0   0   0
    targets  ·   ·   ·   ·   ·   ·   7   ·   ·   ·   ·   ·   8   ·   ·   ·      · does not count

A model must answer each key with its value of this row: no weight can know it, only the state.
Arora et al. 2023, "Zoology: Measuring and Improving Recall in Efficient Language Models".
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.data.draws import choices
from threefold.data.stream import IGNORE
from threefold.errors import ThreefoldError
from threefold.tasks.task import Task

POWER = 0.01  # the paper's a: a query comes after a gap g with weight (g + 1)^(a − 1)
SOLVED = 0.95


def recall(
    pairs: int = 4, length: int = 64, vocabulary: int = 256, *, seed: int = 0, count: int = 1000
) -> Task:
    """`count` rows of the task; keys are tokens of the lower half, values of the upper, 0 fills.

    Chance is 1/pairs: naming any one of the row's values.
    """
    _check(pairs, length, vocabulary, count)
    keys = 1 + _different(vocabulary // 2 - 1, count, pairs, (seed, 0))
    values = vocabulary // 2 + _different(vocabulary - vocabulary // 2, count, pairs, (seed, 1))
    places = 2 * pairs + 2 * _gaps(length // 2 - pairs, count, pairs, (seed, 2))
    inputs = np.zeros((count, length), dtype=np.int64)
    inputs[:, 0 : 2 * pairs : 2] = keys
    inputs[:, 1 : 2 * pairs : 2] = values
    targets = np.full((count, length), IGNORE, dtype=np.int64)
    np.put_along_axis(inputs, places, keys, 1)
    np.put_along_axis(targets, places, values, 1)
    return Task(
        name=f"recall-{pairs}x{length}",
        inputs=torch.from_numpy(inputs),
        targets=torch.from_numpy(targets),
        vocabulary=vocabulary,
        chance=1 / pairs,
        solved=SOLVED,
    )


def _different(among: int, rows: int, size: int, address: tuple[int, ...]) -> NDArray[np.int64]:
    return choices(address, np.ones(among), rows, size)


def _gaps(slots: int, rows: int, size: int, address: tuple[int, ...]) -> NDArray[np.int64]:
    """Different gaps for the queries of a row; a power law, so most come soon and some late."""
    return choices(address, np.arange(1.0, slots + 1) ** (POWER - 1), rows, size)


def _check(pairs: int, length: int, vocabulary: int, count: int) -> None:
    if pairs < 1 or count < 1:
        raise ThreefoldError(f"recall: {pairs} pairs, {count} rows; expected at least 1 of each")
    if length % 2 or length < 4 * pairs:
        raise ThreefoldError(
            f"recall: length {length} with {pairs} pairs; expected an even length of at least "
            f"{4 * pairs}, two places for each pair and two for each query"
        )
    if vocabulary // 2 - 1 < pairs:
        raise ThreefoldError(
            f"recall: a vocabulary of {vocabulary} has {max(vocabulary // 2 - 1, 0)} keys; "
            f"expected at least {2 * pairs + 2} tokens for {pairs} pairs"
        )
