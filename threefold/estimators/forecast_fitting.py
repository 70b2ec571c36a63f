"""Windows of one series for a forecaster, its training, and the race against simple forecasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.seasons import season_of
from threefold.data.preprocessing import Preprocessing, Roles
from threefold.errors import ThreefoldError
from threefold.estimators.baselines import SmoothedSeries
from threefold.estimators.fitting import EVALUATIONS, STEPS, FitSettings, finish_run
from threefold.estimators.racing import RaceEntry, left_out, neural_settings
from threefold.runtime.decoding import eval_mode
from threefold.tasks.user_data.roles import TableReading
from threefold.tasks.user_data.series import fit_series, series_task
from threefold.tasks.user_data.series_windows import SeriesWindows, TimeSeries
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.training.experiment import TrainedRun
from threefold.training.preparation import prepare
from threefold.training.training_data import TrainingData

Array = NDArray[Any]
NEWEST = 2000  # elements in which a season is looked for
HELD_OUT = 10  # one window in so many decides which weights are kept
FEWEST_WINDOWS = 30  # to train on, if some are held out
MOST_SCORED = 200  # windows on which the models of a race are compared
Forecast = Callable[[Array], Array]  # windows [N, C, columns] → [N, horizon, channels], scaled


@dataclass(frozen=True)
class ForecastData:
    """One series [T, targets and other inputs], cut into windows."""

    values: Array
    preprocessing: Preprocessing
    windows: SeriesWindows

    @classmethod
    def make(
        cls, values: Array, roles: Roles, context: int, horizon: int, missing: str
    ) -> ForecastData:
        """Scale and fill the series, and cut it."""
        if len(values) < context + horizon:
            raise ThreefoldError(
                f"{len(values)} rows are too few for a context of {context} and a horizon of "
                f"{horizon}; expected at least {context + horizon}: give more, or smaller ones"
            )
        settings = ReadSettings(length=context, horizon=horizon, missing=missing)
        reading, series = Reading(settings, split=False), [TimeSeries("", values)]
        found = TableReading("forecaster", roles, {}, {}, {})
        preprocessing = fit_series(series, found, reading)
        return cls(values, preprocessing, SeriesWindows(series, preprocessing, split=False))

    @property
    def begins(self) -> Array:
        """The rows at which forecasts begin."""
        return self.windows.begins["train"]

    def inputs(self, begins: Array) -> Array:
        """Windows [N, C, columns] before these rows."""
        return self.windows.inputs[begins[:, None] + np.arange(-self.windows.context, 0)]

    def futures(self, begins: Array) -> Array:
        """What follows [N, horizon, targets], scaled; NaN is missing."""
        return self.windows.targets[begins[:, None] + np.arange(self.windows.horizon)]

    def season(self) -> int:
        """The season of the first target, if it fits into a context."""
        newest = torch.from_numpy(self.windows.inputs[-NEWEST:, :1].T.copy())
        season = season_of(newest)
        return season if season <= self.windows.context else 0

    def hold_out(self, share: float) -> tuple[Array, Array]:
        """The rows of training and of held-out forecasts, which begin after all of training."""
        first = self.begins[0]
        cut = first + int((self.begins[-1] + 1 - first) * (1 - share))
        train = self.begins[self.begins <= cut - self.windows.horizon]
        held = self.begins[self.begins >= cut]
        if not len(train) or not len(held):
            raise ThreefoldError(
                f"{len(self.values)} rows are too few to hold out {share:.0%} of them with a "
                f"context of {self.windows.context} and a horizon of {self.windows.horizon}"
            )
        return train, held


def train_forecaster(
    data: ForecastData,
    settings: FitSettings,
    quantiles: Sequence[float],
    train: Array,
    valid: Array | None = None,
) -> TrainedRun:
    """Train on the windows before the rows `train`; the best weights on `valid` are kept.

    Without `valid`, the last tenth of `train` takes its place, if there are enough of them.
    """
    schedule: dict[str, Any] = {}
    if valid is None:
        train, valid = _hold_out_last(train, data.windows.horizon)
    if valid is not None:
        steps = settings.limits()["steps"] or STEPS
        schedule = {"eval_every": max(1, steps // EVALUATIONS), "patience": 10**6}
    config = settings.config(len(train), "forecaster", **schedule)
    options = {**config.model.options, "quantiles": list(quantiles)}
    options |= {"lags": 0} if valid is None else {}  # nothing to choose a linear start by
    model = config.model.model_copy(update={"options": options})
    config = config.model_copy(update={"model": model})
    if valid is None:
        few = config.data.model_copy(update={"eval_examples": 1})
        config = config.model_copy(update={"data": few})
    held = train if valid is None else valid
    task = series_task("series", data.windows)
    cut = {"train": train, "valid": held, "test": held}

    def draw(split: str, numbers: Any) -> Any:
        every = np.searchsorted(data.begins, cut[split][numbers])
        return data.windows.draw("train", every)

    task = replace(task, draw=draw, sizes=(len(train), len(held), len(held)))
    trained = finish_run(config, prepare(config, TrainingData(task, config.data)), settings)
    if valid is None:
        trained.model.calibration = None  # windows of training say nothing about others
    return trained


def _hold_out_last(begins: Array, horizon: int) -> tuple[Array, Array | None]:
    """The last tenth of forecasts apart, and those before that do not overlap with it."""
    held = begins[-max(1, len(begins) // HELD_OUT) :]
    rest = begins[begins <= held[0] - horizon]
    return (begins, None) if len(rest) < FEWEST_WINDOWS else (rest, held)


def model_forecast(model: Any) -> Forecast:
    """The point forecasts of a trained model."""

    def forecast(windows: Array) -> Array:
        with torch.no_grad(), eval_mode(model):
            rows = torch.from_numpy(windows).to(model.device, model.dtype)
            outputs, _ = model.respond(rows, last=True)
            point: Tensor = model.point_forecast(outputs)
        return np.asarray(point.double().cpu().numpy())

    return forecast


def simple_forecast(model: RidgeAutoregression | SmoothedSeries, targets: int) -> Forecast:
    """The forecasts of a simple model."""
    if isinstance(model, RidgeAutoregression):
        return lambda windows: np.asarray(model.predict(torch.from_numpy(windows)).numpy())
    return lambda windows: model.predict(np.ascontiguousarray(windows[:, :, :targets]))


def fit_simple(name: str, data: ForecastData, train: Array, seed: int) -> Any:
    """Fit a simple model by its name."""
    horizon, season = data.windows.horizon, data.season()
    if name == "last value":
        return SmoothedSeries(horizon, 0)
    if name == "seasonal naive":
        if not season:
            raise ThreefoldError("no season was found")
        return SmoothedSeries(horizon, season)
    if name == "ridge":
        windows, futures = (torch.from_numpy(part(train)) for part in (data.inputs, data.futures))
        return RidgeAutoregression.fit(windows, futures, season=season)
    targets = len(data.preprocessing.roles.targets)
    return SmoothedSeries.fit(data.inputs(train)[:, :, :targets], horizon, season, seed)


SIMPLE = ("last value", "seasonal naive", "ridge", "Holt–Winters")


def race_forecasters(
    data: ForecastData,
    settings: FitSettings,
    mixers: Sequence[str],
    quantiles: Sequence[float],
    share: float,
) -> tuple[list[RaceEntry], dict[str, Array], list[str]]:
    """Compare on the last windows: entries, held-out errors [N, horizon, targets], and remarks."""
    train, held = data.hold_out(share)
    held = held[:: max(1, len(held) // MOST_SCORED)]
    entries, errors = [], {}
    remarks: list[str] = []
    targets = len(data.preprocessing.roles.targets)
    for name in (*SIMPLE, *mixers):
        start = time.perf_counter()
        try:
            if name in SIMPLE:
                fitted = fit_simple(name, data, train, settings.seed)
                forecast = simple_forecast(fitted, targets)
            else:
                chosen = neural_settings(settings, name, len(mixers))
                forecast = model_forecast(train_forecaster(data, chosen, quantiles, train).model)
            errors[name] = data.futures(held) - forecast(data.inputs(held))
        except ThreefoldError as error:
            left_out(name, error, name in SIMPLE, remarks.append)
            continue
        loss = float(np.nanmean(np.abs(errors[name])))
        kind = "baseline" if name in SIMPLE else "sequence model"
        entries.append(RaceEntry(name, kind, -loss, loss, time.perf_counter() - start))
    return sorted(entries, key=lambda entry: entry.rank, reverse=True), errors, remarks


def roll_out(forecast: Forecast, window: Array, steps: int, targets: int) -> Array:
    """Forecasts [steps, targets] after one window; beyond the horizon from its own forecasts."""
    parts: list[Array] = []
    rows, length = window, len(window)
    while sum(map(len, parts)) < steps:
        parts.append(forecast(rows[None, -length:])[0])
        others = np.tile(rows[-1:, targets:], (len(parts[-1]), 1))
        rows = np.concatenate([rows, np.hstack([parts[-1], others])])
    return np.concatenate(parts)[:steps]
