"""Which of two levels a noisy signal has."""

from __future__ import annotations

import numpy as np

import threefold


def levels(length: int = 12, seed: int = 0) -> threefold.Task:
    """Sequences of numbers around 0 or around 1."""
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, 2, 200)
    signal = classes[:, None] + generator.normal(size=(200, length))
    return threefold.Task.from_arrays(signal, classes, labels=("low", "high"))


threefold.register_task("levels", levels, title="Low or high, under noise")
