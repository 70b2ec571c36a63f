"""ŷ_{t+h} = b_{t+h} + W_h [y_{t−C+1} − y_t, …, y_t; u_{t−C+1}, …, u_t]:  a ridge for every step.

Each step is forecast directly from the last C rows, targets y and other inputs u alike.  b repeats
the last value, or the last season, and strong regularisation leads back to it.  Without y_t itself
the forecast moves with the level, wherever that drifts.  The strength is chosen on held-out
stretches of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threefold.classical.ridge import FoldStatistics, fit_ridge
from threefold.errors import ThreefoldError

STRENGTHS = tuple(10.0**power for power in range(-4, 5))  # per window
FOLDS = 5
WINDOWS_AT_ONCE = 4096


@dataclass(frozen=True)
class RidgeAutoregression:
    """Fitted weights [F, H · targets]."""

    weight: Tensor
    offset: Tensor
    strength: float
    horizon: int
    targets: int
    season: int
    level: bool = True  # whether y_t itself counts
    current: int = 0  # the last columns, of which only the newest row counts

    def save(self, folder: Any) -> None:
        """Refused: only models of sequences, images and texts have folders."""
        raise ThreefoldError(
            "this simple forecast has no folder; pickle the estimator, or name one sequence model "
            '(mixers="gru"), whose model_ can be saved'
        )

    @classmethod
    def fit(
        cls,
        inputs: Tensor,
        targets: Tensor,
        *,
        season: int = 0,
        level: bool = True,
        current: int = 0,
        strengths: Sequence[float] = STRENGTHS,
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> RidgeAutoregression:
        """From windows [N, C, columns], targets first, and what follows them [N, H, targets].

        Windows are in the order of time; those with a missing target are left out.  level=False
        reads differences alone.  current: columns at the end of which only the newest row counts.
        The strength is the best one on `held_out` windows and targets, or on stretches of the
        windows themselves.
        """
        if inputs.dim() != 3 or targets.dim() != 3 or len(inputs) != len(targets):
            raise ThreefoldError(
                f"inputs are {tuple(inputs.shape)} and targets {tuple(targets.shape)}; expected "
                "[windows, context, columns] and [windows, horizon, targets]"
            )
        known = targets.isfinite().flatten(1).all(1)
        inputs, targets = inputs[known], targets[known]
        if len(inputs) < 2 * FOLDS:
            raise ThreefoldError(
                f"{len(inputs)} windows without missing targets; expected at least {2 * FOLDS}"
            )
        shape = (targets.shape[1], targets.shape[2], season, level, current)
        folds = _statistics(inputs, targets, shape)
        grid = [strength * len(inputs) for strength in strengths]
        if held_out is None:
            fit = fit_ridge(folds, grid)
            return cls(fit.weight, fit.offset, fit.regularisation / len(inputs), *shape)
        fits = [fit_ridge(folds, [strength]) for strength in grid]
        models = [
            cls(fit.weight, fit.offset, strength, *shape)
            for fit, strength in zip(fits, strengths, strict=True)
        ]
        return min(models, key=lambda model: model.error(*held_out))

    def error(self, inputs: Tensor, targets: Tensor) -> float:
        """The mean squared error; missing targets do not count."""
        return float((self.predict(inputs) - targets.double()).square().nanmean())

    def predict(self, inputs: Tensor) -> Tensor:
        """Forecasts [N, H, targets] after windows [N, C, columns]."""
        rows = features(inputs, self.targets, self.level, self.current)
        change = rows @ self.weight + self.offset
        base = repeat_last(inputs, self.horizon, self.targets, self.season)
        return base + change.reshape(len(inputs), self.horizon, self.targets)


Shape = tuple[int, int, int, bool, int]  # horizon, targets, season, level, current


def _statistics(inputs: Tensor, targets: Tensor, shape: Shape) -> FoldStatistics:
    """The sums of every stretch of time, a piece of the windows after another."""
    horizon, count, season, level, current = shape
    folds = FoldStatistics(FOLDS)
    for first in range(0, len(inputs), WINDOWS_AT_ONCE):
        for fold in range(FOLDS):
            rows = _rows_of(first, len(inputs), fold)
            if len(rows):
                base = repeat_last(inputs[rows], horizon, count, season)
                change = targets[rows].double() - base
                x = features(inputs[rows], count, level, current)
                folds.add(x, change.flatten(1), fold)
    return folds


def repeat_last(inputs: Tensor, horizon: int, targets: int, season: int) -> Tensor:
    """The last value of each target, or its last season, repeated [N, H, targets]."""
    last = inputs[:, -max(1, season) :, :targets].double()
    return last.repeat(1, -(-horizon // last.shape[1]), 1)[:, :horizon]


def features(inputs: Tensor, targets: int, level: bool = True, current: int = 0) -> Tensor:
    """Windows [N, C, columns] as rows; lags of the targets are relative to the last value."""
    windows = inputs.double()
    end = windows.shape[2] - current
    last = windows[:, -1, :targets]
    lags = (windows[:, :-1, :targets] - last.unsqueeze(1)).flatten(1)
    others = windows[:, :, targets:end].flatten(1)
    return torch.cat([lags, *([last] if level else []), others, windows[:, -1, end:]], 1)


def _rows_of(first: int, count: int, fold: int) -> Tensor:
    """The rows of a piece that belong to a fold: a stretch of time."""
    low, high = count * fold // FOLDS, count * (fold + 1) // FOLDS
    begin = max(first, low)
    return torch.arange(begin, max(begin, min(first + WINDOWS_AT_ONCE, high)))
