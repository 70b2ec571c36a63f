"""Examples shuffled in an order that is always the same, and cut into train, valid and test.

shuffled      80, 10 and 10 per cent
stratified    the same of every class; a class of three examples or more is in the test split
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from threefold.data.random_by_address import permutation
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers
from threefold.tasks.user_data.description import FEWEST_OF_A_CLASS

SHARE = 0.1  # of all examples, for validation and for test


def split_cuts(count: int, given: Collection[str]) -> list[int]:
    """Where `count` examples are cut into train, valid and test, of which some are given."""
    valid = (90 if "test" in given else 80) + (10 if "valid" in given else 0)
    test = 100 if "test" in given else 90
    return [0, *(count * part // 100 for part in (valid, test, 100))]


def shuffled_split(count: int, given: Collection[str]) -> dict[str, Numbers]:
    """The numbers of the examples of each split; those that are given have none."""
    order, cuts = permutation((0, count), count), split_cuts(count, given)
    return {s: order[a:b] for s, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}


def stratified_split(labels: Sequence[str], given: Collection[str]) -> dict[str, Numbers] | None:
    """The same, with the share of every class; None if the classes are too small for it."""
    order = permutation((0, len(labels)), len(labels))
    classes: dict[str, list[int]] = {}
    for number in order.tolist():
        classes.setdefault(labels[number], []).append(number)
    chosen = np.zeros(len(labels), np.int64)  # 0: train, 1: valid, 2: test
    owed = 0.0  # examples of validation that smaller classes could not give
    for rows in sorted(classes.values(), key=len, reverse=True):
        test = 0 if "test" in given else max(1, round(SHARE * len(rows)))
        owed += 0 if "valid" in given else SHARE * len(rows)
        if len(rows) >= FEWEST_OF_A_CLASS:
            valid = max(0, min(int(owed + 0.5), len(rows) - test - 1))
            owed -= valid
            chosen[rows[:test]], chosen[rows[test : test + valid]] = 2, 1
    splits = {split: order[chosen[order] == number] for number, split in enumerate(SPLITS)}
    return splits if all(len(splits[s]) for s in SPLITS if s not in given) else None
