"""Errors of numbers, in the units of the targets.

MAE  Σ|y − ŷ| / n     RMSE  √(Σ(y − ŷ)² / n)     R²  1 − Σ(y − ŷ)² / Σ(y − ȳ)²
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MOST_GROUPS, SMALLEST_GROUP = 10, 5  # of targets that are drawn


def regression_errors(answers: Array, targets: Array) -> dict[str, Any]:
    """Errors of numbers [n]; R² is None where all targets are equal."""
    known = np.isfinite(targets)
    answers, targets = answers[known].astype(np.float64), targets[known].astype(np.float64)
    error = answers - targets
    spread = float(((targets - targets.mean()) ** 2).sum())
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt((error**2).mean())),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else None,
    }


def answers_by_size(answers: Array, targets: Array) -> list[dict[str, Any]]:
    """Mean target and answer, and the middle 80 % of answers, in groups of similar targets."""
    known = np.flatnonzero(np.isfinite(targets))
    order = known[np.argsort(targets[known], kind="stable")]
    groups = np.array_split(order, max(1, min(MOST_GROUPS, len(order) // SMALLEST_GROUP)))
    return [
        {
            "n": len(group),
            "target": float(targets[group].mean()),
            "answer": float(answers[group].mean()),
            "low": float(np.quantile(answers[group], 0.1)),
            "high": float(np.quantile(answers[group], 0.9)),
        }
        for group in groups
        if len(group)
    ]


def mean_baseline(targets: Array, mean: float) -> dict[str, Any]:
    """The errors of always answering the mean of the training split."""
    errors = regression_errors(np.full(len(targets), mean), targets)
    return {"name": "mean of the training data", **errors}


def largest_errors(answers: Array, targets: Array, most: int) -> list[int]:
    """The numbers of the examples with the largest errors, the largest first."""
    errors = np.nan_to_num(np.abs(answers - targets), nan=-1.0)
    return [int(number) for number in np.argsort(-errors, kind="stable")[:most]]
