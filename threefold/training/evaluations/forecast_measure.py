"""Forecasts from every origin of a split: a rolling-origin backtest, in original units.

    origin t   reads rows t − context … t − 1,  forecasts rows t … t + horizon − 1

Beside the model: the last value repeated, and the value of a season ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.data.preprocessing.numbers import Standardise
from threefold.errors import ThreefoldError
from threefold.models.calibration import interval_coverages
from threefold.models.forecaster import Forecaster
from threefold.models.model import Model
from threefold.tasks.user_data.seasons import Stretches, naive_errors, season_of
from threefold.tasks.user_data.series_windows import OriginScales, SeriesWindows
from threefold.training.evaluations.forecasts import (
    forecast_errors,
    quantile_errors,
)
from threefold.training.evaluations.measures import MOST_WORST, Array, Measure
from threefold.training.objectives import BatchLoss
from threefold.training.training_data import TrainingData

MOST_SERIES = 50  # of which the errors are listed
HISTORY_STEPS = 3  # times the horizon are drawn before a forecast


def origins_of(windows: Any, split: str, count: int, stride: int) -> Array:
    """The numbers of the windows whose forecasts begin every `stride` rows of their series."""
    if stride < 1:
        raise ThreefoldError(f"stride is {stride}, expected at least 1")
    if not isinstance(windows, SeriesWindows):
        return np.arange(0, count, stride)
    begins = windows.begins[split]
    series = windows.members(begins)
    first = begins[np.searchsorted(series, series)]
    return np.flatnonzero((begins - first) % stride == 0)


class ForecastMeasure(Measure):
    """Collects forecasts and what came; errors by step ahead, by target and by series."""

    worst_pictures = 1  # forecasts with the largest errors that can be drawn

    def __init__(
        self, data: TrainingData, split: str, numbers: Array, season: int | None = None
    ) -> None:
        super().__init__(data, split, numbers)
        self.season = season
        self.levels: tuple[float, ...] = ()
        self.captured: Tensor | None = None
        self.point: list[Array] = []  # [origins, horizon, targets]
        self.quantiles: list[Array] = []  # [origins, horizon, targets, levels]
        self.truth: list[Array] = []
        self.last: list[Array] = []  # the last known value [origins, targets]
        self.model: Forecaster | None = None

    @contextmanager
    def watching(self, model: Model) -> Iterator[None]:
        """Keep the quantiles of every forecast, of which the objective returns the middle."""
        assert isinstance(model, Forecaster)
        self.model, self.levels = model, model.levels

        def capture(module: Any, inputs: Any, output: tuple[Tensor, Any]) -> None:
            self.captured = output[0][:, -1]

        handle = model.register_forward_hook(capture)
        try:
            yield
        finally:
            handle.remove()

    def add(self, rows: Batch, batch_loss: BatchLoss, tally: Any, numbers: Array) -> None:
        """Add the forecasts from the end of each context."""
        assert self.model is not None and self.captured is not None
        outputs = self.captured
        channels = outputs.shape[2]
        point, quantiles = self.model.bands(outputs)
        self.point.append(point)
        self.quantiles.append(quantiles)
        self.truth.append(_array(rows.targets.reshape(len(outputs), -1, channels)))
        self.last.append(_array(rows.inputs[:, -1, :channels]))

    @property
    def _windows(self) -> SeriesWindows | None:
        windows = self.data.task.windows
        return windows if isinstance(windows, SeriesWindows) else None

    @property
    def _scale(self) -> OriginScales:
        """From standardised numbers to original units; a task without units stays as it is."""
        if self._windows is not None:
            return self._windows.origin_scales(self.split, self.numbers)
        step = self.data.output_step(Standardise)
        if step is not None:
            return OriginScales.by([step])
        count = self.truth[0].shape[2]
        names = ["value"] if count == 1 else [f"value {n}" for n in range(1, count + 1)]
        return OriginScales.by([Standardise(tuple(names), (0.0,) * count, (1.0,) * count)])

    def values(self) -> dict[str, Any]:
        """Errors of each target, and of all together if there is only one."""
        scale, season, naive, source = self._scale, *self._naive()
        parts = (self.point, self.truth)
        point, truth = (scale.invert(np.concatenate(part)) for part in parts)
        stacked = np.moveaxis(np.concatenate(self.quantiles), -1, 0)
        quantiles = np.stack([scale.invert(part) for part in stacked], -1)
        baselines = self._baselines(scale, season, truth.shape[1])
        targets = {
            name: _target_values(
                point[..., i],
                quantiles[..., i, :],
                truth[..., i],
                self.levels,
                naive[i],
                {label: part[..., i] for label, part in baselines.items()},
            )
            for i, name in enumerate(scale.columns)
        }
        values: dict[str, Any] = {
            "targets": int(np.isfinite(truth).sum()),
            "origins": len(truth),
            "season": season,
            "mase_scale": {"rows": season, "source": source, "values": naive},
            **_together(targets),
            "by_target": targets,
            "units": "original" if self.data.preprocessing is not None else "standardised",
        }
        values |= self._by_series(point, truth, season)
        calibration = None if self.model is None else self.model.calibration
        if calibration is not None:
            values["calibrated_windows"] = int(calibration.independent[0])
            values["notes"] = calibration.notes
        return {**values, **self._examples(point, quantiles, truth, scale)}

    def _naive(self) -> tuple[int, list[float | None], str]:
        """The season, the naive error of each target over it, and where that comes from."""
        preprocessing, count = self.data.preprocessing, self.truth[0].shape[2]
        saved = (preprocessing.naive_errors if preprocessing is not None else None) or {}
        season = self.season or max(map(int, saved), default=0) or self._own_season()
        for rows in dict.fromkeys((season, 1)):
            if str(rows) in saved and (self.season in (None, rows)):
                return rows, list(saved[str(rows)]), "training data"
            own = self._own_naive_errors(rows)
            if own is not None:
                return rows, list(own), "these data"
        return season, [None] * count, "not known"

    def _own_season(self) -> int:
        windows = self._windows
        return 1 if windows is None else season_of(windows.series[0].axis)

    def _own_naive_errors(self, season: int) -> list[float] | None:
        """The naive error of the evaluated series themselves."""
        windows, count = self._windows, self.truth[0].shape[2]
        if windows is None:
            return None
        parts = [Stretches(part.values[:, :count], part.stretch) for part in windows.series]
        return naive_errors(parts, [season]).get(str(season))

    def _baselines(self, scale: OriginScales, season: int, horizon: int) -> dict[str, Array]:
        """Forecasts [origins, horizon, targets] without a model, in original units."""
        last = scale.invert(np.concatenate(self.last))
        baselines = {"last value": np.repeat(last[:, None], horizon, 1)}
        windows = self._windows
        if season > 1 and windows is not None:
            seasonal = windows.naive_forecasts(self.split, season, self.numbers)
            if np.isfinite(seasonal).any():
                baselines["value of a season ago"] = scale.invert(seasonal)
        return baselines

    def _by_series(self, point: Array, truth: Array, season: int) -> dict[str, Any]:
        """The errors of each series, the worst first, if there are several.

        Each is compared with how far it changes itself: series may be of different levels.
        """
        windows = self._windows
        if windows is None or len(windows.series) < 2:
            return {}
        member = windows.members(windows.begins[self.split][self.numbers])
        rows = []
        for number in np.unique(member).tolist():
            chosen = member == number
            series = windows.series[number]
            own = naive_errors([Stretches(series.values[:, :1], series.stretch)], [season])
            naive = own.get(str(season), [None])[0]
            errors = forecast_errors(point[chosen, :, 0], truth[chosen, :, 0], naive)
            rows.append({"series": series.name, "n": int(chosen.sum()), **errors})
        rows.sort(key=lambda row: -(row["mae"] or 0.0))
        return {"by_series": rows[:MOST_SERIES], "n_series": len(windows.series)}

    def _examples(
        self, point: Array, quantiles: Array, truth: Array, scale: OriginScales
    ) -> dict[str, Any]:
        """The origins with the largest errors, and a typical and the worst ones to draw."""
        errors = np.nan_to_num(np.nanmean(np.abs(point[..., 0] - truth[..., 0]), 1), nan=-1.0)
        order = np.argsort(-errors, kind="stable")
        worst = [
            {"place": self._place(i), "mae": float(errors[i])} for i in order[:MOST_WORST].tolist()
        ]
        apart = self._apart(order.tolist(), truth.shape[1])
        drawn = [("typical", int(order[len(order) // 2])), *(("worst", i) for i in apart)]
        pictures = []
        for title, i in drawn:
            lines = {
                "history": self._history(i, scale, truth.shape[1]),
                "truth": truth[i, :, 0],
                "forecast": point[i, :, 0],
                "low": quantiles[i, :, 0, 0],
                "high": quantiles[i, :, 0, -1],
            }
            lists = {name: _numbers(values) for name, values in lines.items()}
            pictures.append({"title": title, "place": self._place(i), **lists})
        levels = [self.levels[0], self.levels[-1]]
        return {"worst": worst, "pictures": pictures, "picture_levels": levels}

    def _apart(self, order: Sequence[int], horizon: int) -> list[int]:
        """Those whose forecasts do not overlap with that of an earlier one."""
        windows = self._windows
        begins = self.numbers if windows is None else windows.begins[self.split][self.numbers]
        chosen: list[int] = []
        for i in order:
            if all(abs(int(begins[i]) - int(begins[j])) >= horizon for j in chosen):
                chosen.append(i)
                if len(chosen) == self.worst_pictures:
                    break
        return chosen

    def _place(self, index: int) -> str:
        windows = self._windows
        if windows is None:
            return f"window {int(self.numbers[index]) + 1}"
        begin = int(windows.begins[self.split][self.numbers[index]])
        number = int(np.searchsorted(windows.offsets, begin, side="right")) - 1
        series, row = windows.series[number], begin - int(windows.offsets[number])
        stamp = None
        if series.axis is not None and series.axis.regular:
            stamp = series.stamp(row - len(series.values) + 1)
        where = stamp or f"row {row + 1:,}"
        return f"{series.name}, from {where}" if series.name else f"from {where}"

    def _history(self, index: int, scale: OriginScales, horizon: int) -> Array:
        """The rows before a forecast, of the first target."""
        steps = HISTORY_STEPS * horizon
        number = int(self.numbers[index])
        windows = self._windows
        if windows is None:
            count = len(scale.columns)
            inputs = self.data.task.rows(self.split, [number]).inputs[0, -steps:, :count]
            return scale.of_origin(index).invert(inputs.double().numpy())[:, 0]
        begin = int(windows.begins[self.split][number])
        first = int(windows.offsets[windows.offsets <= begin].max())
        rows = windows.targets[max(first, begin - steps) : begin]
        return scale.of_origin(index).invert(rows)[:, 0]


def _array(tensor: Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()


def _target_values(
    point: Array,
    quantiles: Array,
    truth: Array,
    levels: Sequence[float],
    naive: float | None,
    baselines: dict[str, Array],
) -> dict[str, Any]:
    """The errors of one target: overall, by step ahead, and those of the baselines."""

    def errors(steps: Any) -> dict[str, Any]:
        return {
            **forecast_errors(point[:, steps], truth[:, steps], naive),
            **quantile_errors(quantiles[:, steps], levels, truth[:, steps]),
        }

    shown = {}
    for name, forecast in baselines.items():
        known = np.where(np.isfinite(forecast), truth, np.nan)
        by_step = [
            forecast_errors(forecast[:, h], known[:, h])["mae"] for h in range(len(truth[0]))
        ]
        counted = int(np.isfinite(forecast).all(1).sum())
        shown[name] = {
            **forecast_errors(forecast, known, naive), "mae_by_horizon": by_step, "origins": counted
        }  # fmt: skip
    best = min(shown, key=lambda name: shown[name]["mae"])
    return {
        **errors(slice(None)),
        "intervals": interval_coverages(quantiles, levels, truth),
        "by_horizon": [{"step": h + 1, **errors(slice(h, h + 1))} for h in range(len(truth[0]))],
        "baseline": {"name": best, **shown[best]},
        "baselines": shown,
    }


def _together(targets: dict[str, Any]) -> dict[str, Any]:
    """The errors of one target, or what can be averaged over several with different units."""
    if len(targets) == 1:
        return dict(next(iter(targets.values())))
    means: dict[str, Any] = {}
    for name in ("mase", "smape", "coverage"):
        values = [target[name] for target in targets.values() if target.get(name) is not None]
        means[name] = float(np.mean(values)) if values else None
    scores = [target["baseline"]["mase"] for target in targets.values()]
    if None not in scores:
        means["baseline"] = {"name": "the best naive forecast", "mase": float(np.mean(scores))}
    return means


def _numbers(values: Array) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
