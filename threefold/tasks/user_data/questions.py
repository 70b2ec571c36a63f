"""Helpers for the questions that are asked back when data can be read in several ways."""

from __future__ import annotations

import shlex

import numpy as np

from threefold.tasks.stored import Array

DEVIATIONS = 3  # of a correlation by chance; fewer are not taken as an order in time
FEWEST_PAIRS = 8


def name_columns(**columns: str) -> str:
    """Options that name columns, quoted for a shell where they need it."""
    named = columns.items()
    return " ".join(f"--{key.replace('_', '-')} {shlex.quote(name)}" for key, name in named)


def neighbours_correlate(values: Array) -> bool:
    """Whether neighbouring values are correlated more than those of shuffled rows would be."""
    pairs = np.stack([values[:-1], values[1:]])
    pairs = pairs[:, np.isfinite(pairs).all(0)]
    count = pairs.shape[1]
    if count < FEWEST_PAIRS or (pairs == pairs[:, :1]).all(1).any():
        return True
    return bool(abs(np.corrcoef(pairs)[0, 1]) > DEVIATIONS / np.sqrt(count))
