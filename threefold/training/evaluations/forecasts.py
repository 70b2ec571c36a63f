"""Errors of forecasts [origins, horizon], for each step ahead and over all of them.

    MAE    mean |y − ŷ|                  sMAPE   mean 200 |y − ŷ| / (|y| + |ŷ|), per cent
    RMSE   √ mean (y − ŷ)²               MASE    MAE / mean |y_t − y_{t−m}| of the training data
    pinball   mean max(q e, (q − 1) e), e = y − ŷ_q, over the quantiles q
    coverage  share of y between two quantiles

Hyndman & Koehler 2006, "Another look at measures of forecast accuracy".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def forecast_errors(point: Array, truth: Array, naive_error: float | None = None) -> dict[str, Any]:
    """Errors of point forecasts; what is missing in `truth` does not count."""
    known = np.isfinite(truth)
    y, f = truth[known], point[known]
    if not len(y):
        return dict.fromkeys(("mae", "rmse", "smape", "mase"))
    error = np.abs(y - f)
    size = np.abs(y) + np.abs(f)
    mae = float(error.mean())
    return {
        "mae": mae,
        "rmse": float(np.sqrt((error**2).mean())),
        "smape": float((200 * error / np.where(size > 0, size, 1.0)).mean()),
        "mase": mae / naive_error if naive_error else None,
    }


def quantile_errors(quantiles: Array, levels: Sequence[float], truth: Array) -> dict[str, Any]:
    """Pinball loss of quantiles [..., levels], and the coverage of their outermost interval."""
    known = np.isfinite(truth)
    y, q = truth[known], quantiles[known]
    if not len(y):
        return dict.fromkeys(("pinball", "coverage"))
    error = y[:, None] - q
    q_levels = np.array(levels)
    values: dict[str, Any] = {
        "pinball": float(np.maximum(q_levels * error, (q_levels - 1) * error).mean())
    }
    if len(levels) > 1:
        inside = (y >= q[:, 0]) & (y <= q[:, -1])
        values["coverage"] = float(inside.mean())
    return values
