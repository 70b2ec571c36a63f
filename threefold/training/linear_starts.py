"""Where a forecaster starts: the linear filter of least error, fitted before training.

The last value, that of a season ago, a ridge autoregression (lags of targets and other inputs,
strength by held-out error) and Holt–Winters smoothing are fitted to windows of the training split
and compared on windows of the validation split (`classical/linear_forecasts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.classical.linear_forecasts import (
    ForecastWindows,
    LinearForecast,
    bounded,
    choose_linear,
)
from threefold.data.preprocessing.numbers import without_outliers
from threefold.models.forecaster import Forecaster
from threefold.tasks.task import Task

MOST_WINDOWS = {"train": 20_000, "valid": 1_000}
MOST_NUMBERS = 20_000_000  # of all windows
LEAST_LAGS = 0.25  # of the context
SMALLEST_DEVIATION = 1e-4  # of the errors of a filter


@dataclass(frozen=True)
class FittedStart:
    """A filter, its errors on training windows, and the held-out errors of all that were tried."""

    filter: LinearForecast
    lags: int  # those of the filter, or more: the network's inputs are relative to their mean
    residuals: Tensor  # [N, horizon, channels], standardised units
    spread: Tensor  # [channels]: deviation of the series from its mean over the lags
    held_out: dict[str, float]  # mean absolute error by name

    def summary(self) -> dict[str, Any]:
        """What was chosen, for summary.json."""
        chosen = self.filter
        return {
            "name": chosen.name,
            "lags": chosen.lags,
            **chosen.facts,
            "moves_with_level": chosen.moves_with_level,
            "moves_beyond_training": chosen.moves_with_level or chosen.bounds is not None,
            "valid_errors": self.held_out,
        }

    @property
    def sentence(self) -> str:
        """What was chosen and why, in words."""
        chosen = self.filter
        others = [
            f"{name} {error:.3g}" for name, error in self.held_out.items() if name != chosen.name
        ]
        season = f", season {chosen.facts['season']:g}" if "season" in chosen.facts else ""
        against = f" (others: {', '.join(others)})" if others else ""
        return (
            f"{chosen.name} over {chosen.lags} rows{season}: error {self.held_out[chosen.name]:.3g}"
            f" on validation, in deviations{against}; the network learns what it leaves over"
        )


def fit_start(task: Task[Any], *, current: int = 0, lags: int | None = None) -> FittedStart:
    """Fit the filters to a task of forecasts and choose one; lags=None: chosen, too."""
    train, valid = (_windows(task, split) for split in ("train", "valid"))
    chosen, errors = choose_linear(train, valid, current=current, lags=lags)
    length = max(chosen.lags, int(LEAST_LAGS * task.length), 1)
    chosen = bounded(chosen, train, valid, length)
    residuals = train.targets.double() - chosen.predict(train.inputs)
    series = train.inputs[:, -length:, : train.targets.shape[2]].double()
    offset = series[:, -1] - series.mean(1) if chosen.moves_with_level else series[:, -1]
    spread = _spread(offset)
    spread = torch.where(spread > 0, spread, 1.0)
    return FittedStart(chosen, length, residuals, spread, errors)


def apply_start(model: Forecaster, start: FittedStart) -> None:
    """Write a filter to a model, whose network then begins with nothing to add."""
    assert model.start is not None
    chosen = start.filter
    deviation = _spread(start.residuals).nan_to_num(1.0)
    deviation = deviation.clamp(min=SMALLEST_DEVIATION)
    taps = torch.zeros_like(model.start.taps, dtype=torch.float64)
    taps[: chosen.lags] = chosen.taps
    numbers = {
        "taps": taps,
        "level": chosen.level,
        "offset": chosen.offset,
        "deviation": deviation,
        "drifts": torch.tensor(float(chosen.moves_with_level)),
        "spread": start.spread,
    }
    if chosen.bounds is not None:
        numbers |= {"middle": chosen.bounds.middle, "reach": chosen.bounds.reach}
    with torch.no_grad():
        for name, value in numbers.items():
            getattr(model.start, name).copy_(value)
    model.start_from(start.residuals / deviation)


def _spread(offsets: Tensor) -> Tensor:
    """The root mean square of each column of [N, …], without outliers; NaN if nothing is known."""
    rows = torch.from_numpy(without_outliers(offsets.flatten(1).numpy()))
    return rows.square().nanmean(0).sqrt().view(offsets.shape[1:])


def _windows(task: Task[Any], split: str) -> ForecastWindows:
    """Windows of a split, in the order of time, spread over all of it."""
    size = task.size(split)
    numbers = max(1, task.length * max(1, task.features))
    count = min(size, MOST_WINDOWS[split], max(20, MOST_NUMBERS // numbers))
    chosen = np.unique(np.linspace(0, size - 1, count).astype(np.int64))
    rows = task.rows(split, chosen)
    targets = rows.targets
    return ForecastWindows(rows.inputs, targets.unsqueeze(-1) if targets.dim() == 2 else targets)
