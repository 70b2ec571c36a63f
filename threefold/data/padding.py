"""Rows of different lengths as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def pad_rows(
    rows: Sequence[NDArray[Any]], fill: float = 0
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Rows [L, …] as an array [N, longest, …] padded at the end with `fill`, and their lengths."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    dtype = np.int64 if fill < 0 else rows[0].dtype
    table = np.full((len(rows), lengths.max(), *rows[0].shape[1:]), fill, dtype=dtype)
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    return table, lengths
