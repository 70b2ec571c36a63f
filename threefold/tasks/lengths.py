"""Rows of random lengths; those of the test split are longer than those of training."""

from __future__ import annotations

import numpy as np

from threefold.data.random_by_address import integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, address


def check_ranges(name: str, *ranges: tuple[int, int]) -> None:
    """Refuse ranges of lengths that are empty or not positive."""
    for low, high in ranges:
        if not 1 <= low <= high:
            raise ThreefoldError(
                f"{name}: lengths from {low} to {high}; expected at least 1, the smaller first"
            )


def lengths_of(
    seed: int, split: str, numbers: Numbers, trained: tuple[int, int], tested: tuple[int, int]
) -> tuple[Numbers, int]:
    """A length for each row, uniform over the range of the split, and the longest possible one."""
    low, high = tested if split == "test" else trained
    drawn = integers_by_row(address(seed, split, 0), numbers, high - low + 1, 1)
    return low + drawn[:, 0], high


def cut(table: Numbers, lengths: Numbers) -> Numbers:
    """Set elements after the end of each row to zero, and drop unused columns."""
    longest = int(lengths.max())
    return np.where(np.arange(longest) < lengths[:, None], table[:, :longest], 0)
