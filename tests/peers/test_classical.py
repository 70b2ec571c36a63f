"""Classical models beside aeon's and statsmodels', on data that these packages bring along."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.peers.conftest import CLASSICAL
from tests.peers.parity import package
from threefold.classical.random_convolutions import (
    RandomConvolutions,
    choose_dilations,
    quantile_levels,
)
from threefold.classical.smoothing import HoltWinters, Rates
from threefold.classical.time_warping import nearest_neighbours
from threefold.estimators import RocketClassifier
from threefold.kernels.classical import KERNELS, ConvolutionPlan

Array = NDArray[Any]
SETS = ("ArrowHead", "BasicMotions", "GunPoint", "ItalyPowerDemand", "OSULeaf")
every_set = pytest.mark.parametrize("name", SETS)
WINDOW = 0.1
SEEDS = 4
WITHIN = 0.005  # of the mean accuracy


class LabelledSeries(NamedTuple):
    """Training and test examples [N, channels, length], as aeon has them, and their labels."""

    train: Array
    labels: Array
    test: Array
    answers: Array


@cache
def load(name: str) -> LabelledSeries:
    read = package("aeon.datasets").load_classification
    return LabelledSeries(*read(name, split="train"), *read(name, split="test"))


def ours(series: Array) -> Tensor:
    """[N, channels, length] as [N, length, channels]."""
    return torch.from_numpy(np.ascontiguousarray(series.transpose(0, 2, 1)))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def note(model: str, peer: str, on: str, what: str, measured: str) -> None:
    CLASSICAL.append((model, peer, on, what, measured))


# ----------------------------------------------------------------------------------------- series


@every_set
def test_time_warping_finds_aeons_neighbours(name: str) -> None:
    data = load(name)
    queries = data.test[:100]
    table = package("aeon.distances").dtw_pairwise_distance(queries, data.train, window=WINDOW)
    found, distances = nearest_neighbours(ours(queries), ours(data.train), window=WINDOW)
    error = float(np.abs(distances.numpy() - table.min(1)).max() / table.max())
    np.testing.assert_array_equal(found.numpy(), table.argmin(1))
    note("nearest neighbour", "aeon", name, "neighbours; distances", f"equal; {error:.0e}")
    assert error < 1e-12


def plan_of(transform: Any) -> ConvolutionPlan:
    """Our plan with the channels, dilations and biases of aeon's MiniRocket."""
    counts, channels, dilations, repeats, biases = transform.parameters
    whole = (part.astype(np.int64) for part in (dilations, repeats, counts, channels))
    dilated, repeated, counted, chosen = (torch.from_numpy(part) for part in whole)
    counted = counted.view(-1, len(KERNELS))
    return ConvolutionPlan(dilated, repeated, counted, chosen, torch.from_numpy(biases))


@every_set
def test_minirockets_features_are_aeons_at_its_biases(name: str) -> None:
    data = load(name)
    module = package("aeon.transformations.collection.convolution_based")
    theirs = module.MiniRocket(random_state=0).fit(data.train)
    plan = plan_of(theirs)
    dilations, counts = choose_dilations(data.train.shape[2], theirs.n_kernels)
    assert plan.dilations.tolist() == dilations.tolist() and plan.counts.tolist() == counts.tolist()
    features = RandomConvolutions(plan, data.train.shape[2], data.train.shape[1]).transform(
        ours(data.test).float()
    )
    error = float(np.abs(features.numpy() - theirs.transform(data.test)).max())
    note("MiniRocket", "aeon", name, "features at its biases", f"{error:.0e}")
    assert error <= 1e-5


def test_biases_are_quantiles_at_aeons_levels() -> None:
    module = package("aeon.transformations.collection.convolution_based._minirocket")
    np.testing.assert_array_equal(quantile_levels(9996), module._quantiles(9996))


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result, and seconds on one processor; numba sets the threads of torch to all cores."""
    torch.set_num_threads(1)
    start = time.process_time()
    return function(*arguments), time.process_time() - start


class Fits(NamedTuple):
    """Accuracies, and times to fit, of our and aeon's classifier."""

    accuracy: tuple[float, float]
    seconds: tuple[float, float]


def fit_both(data: LabelledSeries, seed: int) -> Fits:
    theirs = package("aeon.classification.convolution_based").MiniRocketClassifier(
        random_state=seed
    )
    mine = RocketClassifier(random_state=seed)
    train, test = (part.transpose(0, 2, 1) for part in (data.train, data.test))
    _, fast = timed(mine.fit, train, data.labels)
    _, slow = timed(theirs.fit, data.train, data.labels)
    answers = mine.predict(test), theirs.predict(data.test)
    right = [float((answer == data.answers).mean()) for answer in answers]
    return Fits((right[0], right[1]), (fast, slow))


def test_minirocket_is_as_accurate_as_aeons() -> None:
    means = []
    for name in SETS:
        fits = [fit_both(load(name), seed) for seed in range(SEEDS)]
        mine, theirs = np.mean([fit.accuracy for fit in fits], 0)
        fast, slow = np.median([fit.seconds for fit in fits], 0)
        means.append((mine, theirs))
        note("MiniRocket", "aeon", name, "accuracy", f"{mine:.1%} beside {theirs:.1%}")
        note("MiniRocket", "aeon", name, "their time to fit / ours", f"{slow / fast:.2f}")
    mine, theirs = np.mean(means, 0)
    note("MiniRocket", "aeon", "all", "mean accuracy", f"{mine:.2%} beside {theirs:.2%}")
    assert abs(mine - theirs) < WITHIN


# --------------------------------------------------------------------------------------- smoothing


@cache
def forecast_series(name: str) -> Array:
    if name == "airline":
        return np.asarray(package("aeon.datasets").load_airline(), np.float64).ravel()
    data = getattr(package("statsmodels.api").datasets, name).load_pandas().data
    if name == "co2":
        return data["co2"].interpolate().resample("MS").mean().to_numpy()[-240:]
    return data.iloc[:, -1].to_numpy(np.float64)


# Name, season, whether the trend is damped.
SERIES = (
    ("airline", 12, False),
    ("airline", 12, True),
    ("co2", 12, False),
    ("sunspots", 0, True),
    ("sunspots", 11, False),
    ("nile", 0, False),
)
every_series = pytest.mark.parametrize(
    ("name", "season", "damped"), SERIES, ids=lambda value: str(value)
)


def statsmodels_model(y: Array, season: int, damped: bool, **options: Any) -> Any:
    return package("statsmodels.tsa.holtwinters").ExponentialSmoothing(
        y,
        trend="add",
        damped_trend=damped,
        seasonal="add" if season else None,
        seasonal_periods=season or None,
        **options,
    )


@every_series
def test_holt_winters_at_equal_parameters(name: str, season: int, damped: bool) -> None:
    y = forecast_series(name)
    rates = Rates(0.3, 0.1, 0.2 if season else 0.0, 0.95 if damped else 1.0)
    seasons = np.sin(np.arange(season)) * y.std() / 2
    level, slope = float(y[0]), float(y[season or 1] - y[0]) / max(season, 1)
    initial: dict[str, Any] = {"initial_level": level, "initial_trend": slope}
    if season:
        initial["initial_seasonal"] = seasons
    model = statsmodels_model(y, season, damped, initialization_method="known", **initial)
    chosen = {"smoothing_level": 0.3, "smoothing_trend": 0.1}
    chosen |= {"smoothing_seasonal": 0.2} if season else {}
    chosen |= {"damping_trend": 0.95} if damped else {}
    theirs = model.fit(optimized=False, **chosen)
    fit = HoltWinters.with_state(y, rates, np.array([level, slope, *seasons]), season=season)
    # For whole seasons ahead statsmodels repeats the season before the last instead of the last.
    steps = np.array([step for step in range(30) if not season or (step + 1) % season])
    forecast = theirs.forecast(30)[steps]
    error = float(np.abs(fit.forecast(30)[steps] - forecast).max() / np.abs(forecast).max())
    note("Holt–Winters", "statsmodels", name, "forecasts, same parameters", f"{error:.0e}")
    assert error < 1e-10
    if season:
        np.testing.assert_allclose(fit.state[2:], theirs.season[-season:], rtol=1e-10)
    assert fit.error == pytest.approx(theirs.sse / len(y), rel=1e-10)


@every_series
def test_holt_winters_fits_as_well_as_statsmodels(name: str, season: int, damped: bool) -> None:
    y = forecast_series(name)
    model = statsmodels_model(y, season, damped, initialization_method="estimated")
    theirs, slow = timed(model.fit)
    fit, fast = timed(lambda: HoltWinters.fit(y, season=season, damped=damped))
    ratio = fit.error / (theirs.sse / len(y))
    trend = "damped" if damped else "straight"
    on = f"{name}, season {season}, {trend} trend"
    note("Holt–Winters", "statsmodels", on, "our fitted error / theirs", f"{ratio:.4f}")
    note("Holt–Winters", "statsmodels", on, "their time to fit / ours", f"{slow / fast:.2f}")
    assert ratio <= 1.001
