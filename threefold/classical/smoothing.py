"""Holt–Winters exponential smoothing with an additive trend and additive seasons:

    l_t = α (y_t − s_{t−m}) + (1−α)(l_{t−1} + φ b_{t−1})        level
    b_t = β (l_t − l_{t−1}) + (1−β) φ b_{t−1}                    trend
    s_t = γ (y_t − l_{t−1} − φ b_{t−1}) + (1−γ) s_{t−m}          season
    ŷ_{t+h} = l_t + (φ + … + φʰ) b_t + s_{t+h−m}

For fixed α, β, γ and φ the errors are linear in the initial level, trend and seasons, which are
therefore solved for exactly; only those few numbers are searched.  With the state x, errors are
e_t = y_t − w xₜ₋₁ and xₜ = F xₜ₋₁ + g e_t = D xₜ₋₁ + g y_t, D = F − g w, so that all errors at once
follow from the rows w, wD, wD², …, which are doubled again and again.
Holt 1957, "Forecasting seasonals and trends by exponentially weighted moving averages"; Winters
1960, "Forecasting sales by exponentially weighted moving averages".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.errors import ThreefoldError

Array = NDArray[Any]
LONGEST = 10_000  # newest elements that the search for parameters reads
MOST_PRODUCTS = 10**8  # of one candidate: elements · (2 + season)², which also limits what it reads
CANDIDATES, STARTS, ROUNDS = 48, 3, 40
DAMPINGS = (1e-4, 1e-2, 1.0)  # of the steps that are tried
DIFFERENCE = 1e-6  # of a rate, for slopes
PRECISION = 1e-7  # of the error, at which the search ends
FEWEST = 1e-4  # α, and 1 − α
DAMPING = (0.8, 0.995)  # where φ is searched
RIDGE, TINY = 1e-14, 1e-300  # against columns that others explain


class Rates(NamedTuple):
    """α, β, γ and φ: numbers, or one of each for several candidates."""

    level: Any
    trend: Any
    season: Any
    damping: Any


@dataclass(frozen=True)
class HoltWinters:
    """Fitted smoothing; `state` is level, trend and the last m seasons, the oldest first."""

    rates: Rates
    season: int  # its length; 0: no season
    trend: bool
    state: Array
    error: float  # mean squared error of one-step forecasts of the fitted series

    @classmethod
    def fit(
        cls, y: Array, *, season: int = 0, trend: bool = True, damped: bool = False, seed: int = 0
    ) -> HoltWinters:
        """Choose rates and initial state by the least squared one-step error of a series [T]."""
        series = _check(y, season)
        most = max(4 * season, min(LONGEST, MOST_PRODUCTS // (2 + season) ** 2))
        newest = series[-most:]
        search = _Search([newest], season, trend, damped and trend)
        best = search.run(np.random.default_rng((seed, 22)))
        initial, _ = _solve(newest, best, season, trend)
        return cls.with_state(newest, _pick(best, 0), initial[0], season=season, trend=trend)

    @classmethod
    def with_state(
        cls, y: Array, rates: Rates, initial: Array, *, season: int = 0, trend: bool = True
    ) -> HoltWinters:
        """Smooth a series from an initial state with given rates."""
        errors, states = _smooth(np.asarray(y, np.float64)[None], rates, initial[None], season)
        return cls(rates, season, trend, states[0], float(np.mean(errors**2)))

    def forecast(self, steps: int) -> Array:
        """ŷ of the next steps."""
        forecast: Array = _forecast(self.state[None], self.rates, steps, self.season)[0]
        return forecast

    def update(self, y: Array) -> HoltWinters:
        """The same rates after further elements."""
        rows = np.asarray(y, np.float64)[None]
        _, states = _smooth(rows, self.rates, self.state[None], self.season)
        return HoltWinters(self.rates, self.season, self.trend, states[0], self.error)


def fit_rates(windows: Sequence[Array], *, season: int = 0, seed: int = 0) -> Rates:
    """The rates, with a damped trend, of least error over several stretches of a series."""
    search = _Search([_check(window, season) for window in windows], season, True, True)
    return _pick(search.run(np.random.default_rng((seed, 22))), 0)


def forecast_windows(y: Array, rates: Rates, steps: int, *, season: int = 0) -> Array:
    """Forecasts [N, steps] after stretches of series [N, T], whose first states are solved for."""
    one = Rates(*(np.array([rate]) for rate in rates))
    rows = np.stack([_check(row, season) for row in y])
    initial, _ = _solve(rows, one, season, True)
    _, states = _smooth(rows, rates, initial, season)
    return _forecast(states, rates, steps, season)


def _forecast(states: Array, rates: Rates, steps: int, season: int) -> Array:
    """ŷ of the next steps [N, steps] from each state [N, 2 + m]."""
    damping = np.cumsum(rates.damping ** np.arange(1, steps + 1))
    line: Array = states[:, :1] + states[:, 1:2] * damping
    return line + states[:, 2 + np.arange(steps) % season] if season else line


def _check(y: Array, season: int) -> Array:
    series = np.asarray(y, np.float64)
    if series.ndim != 1 or not np.isfinite(series).all():
        raise ThreefoldError(
            f"a series of shape {series.shape}; expected one row of finite numbers"
        )
    if season < 0 or season == 1 or len(series) < max(5, 2 * season):
        raise ThreefoldError(
            f"{len(series)} elements and a season of {season}; expected a season of 0 (none) or at "
            "least 2, and at least five elements and two whole seasons"
        )
    return series


def _smooth(y: Array, rates: Rates, initial: Array, season: int) -> tuple[Array, Array]:
    """One-step errors [N, T] of series, and their last states, from one set of rates."""
    level, slope = initial[:, 0], initial[:, 1]
    seasons = initial[:, 2:].T.copy() if season else np.zeros((1, len(y)))
    errors, place = np.empty(y.shape), 0
    for t in range(y.shape[1]):
        place = t % len(seasons)
        expected = level + rates.damping * slope
        errors[:, t] = error = y[:, t] - expected - seasons[place]
        level = expected + rates.level * error
        slope = rates.damping * slope + rates.trend * rates.level * error
        if season:
            seasons[place] += rates.season * error
    ordered = np.roll(seasons, -place - 1, axis=0)[:season]
    return errors, np.stack([level, slope, *ordered], axis=1)


def _responses(rates: Rates, length: int, season: int) -> tuple[Array, Array]:
    """Rows w Dᵗ [candidates, T, 2 + m] of t = 0, 1, …, and g [candidates, 2 + m]."""
    count, size = len(rates.level), 2 + season
    now, gain, carried = (np.zeros((count, *s)) for s in ((1, size), (size,), (size, size)))
    now[:, 0, 0], now[:, 0, 1] = 1, rates.damping
    carried[:, 0, 0], carried[:, 0, 1], carried[:, 1, 1] = 1, rates.damping, rates.damping
    gain[:, 0], gain[:, 1] = rates.level, rates.trend * rates.level
    if season:
        now[:, 0, 2], gain[:, -1] = 1, rates.season
        # The season that was used goes to the end.
        carried[:, np.arange(2, size), np.roll(np.arange(2, size), -1)] = 1
    rows, power = now, carried - gain[:, :, None] * now
    while rows.shape[1] < length:
        rows = np.concatenate([rows, (rows @ power)[:, : length - rows.shape[1]]], axis=1)
        power = power @ power
    return rows, gain


def _solve(y: Array, rates: Rates, season: int, trend: bool) -> tuple[Array, Array]:
    """The best initial states [N, 2 + m] and their errors [N, T].

    Of one series [T] for each candidate, or of each series [N, T] for one candidate.
    """
    rows, gain = _responses(rates, y.shape[-1], season)
    # Errors from a state of zeros: those of y less what y does to all later ones.
    effect = np.einsum("cts,cs->ct", rows[:, :-1], gain)
    errors = y - np.pad(_convolve(effect, y[..., :-1]), ((0, 0), (1, 0)))
    # A shift between level and seasons changes nothing, nor does a slope that must be 0.
    free = [0, *([1] if trend else []), *range(2, 1 + season)]
    shapes = rows[:, :, free]
    scale = np.sqrt(np.mean(shapes**2, axis=1, keepdims=True)) + TINY
    shapes = shapes / scale
    turned = shapes.transpose(0, 2, 1)
    products = turned @ shapes + y.shape[-1] * RIDGE * np.eye(len(free))
    solution = np.linalg.solve(products, turned @ errors[:, :, None])
    states = np.zeros((len(errors), 2 + season))
    states[:, free] = (solution / scale.transpose(0, 2, 1))[:, :, 0]
    if season:
        mean = states[:, 2:].mean(1, keepdims=True)
        states[:, 2:] -= mean
        states[:, :1] += mean
    return states, errors - (shapes @ solution)[:, :, 0]


def _convolve(kernels: Array, y: Array) -> Array:
    """The first elements of the convolution of each row with y, as many as y has."""
    length = y.shape[-1]
    size = 2 * length
    frequencies = np.fft.rfft(kernels, size) * np.fft.rfft(y, size)
    return np.fft.irfft(frequencies, size)[:, :length]


@dataclass(frozen=True)
class _Search:
    """Points spread over the unit cube of the rates, then descents from the best of them.

    A descent is Levenberg's and Marquardt's, with several dampings tried at once; all descents go
    on side by side.  Marquardt 1963, "An algorithm for least-squares estimation of nonlinear
    parameters".
    """

    series: Sequence[Array]
    season: int
    trend: bool
    damped: bool

    @property
    def free(self) -> int:
        return 1 + self.trend + (self.season > 0) + self.damped

    def run(self, random: np.random.Generator) -> Rates:
        """The rates of least error over all series."""
        points = random.uniform(0, 1, (CANDIDATES, self.free)) ** 2
        points[: 2**self.free] = _corners(self.free)
        losses = _losses(self.errors(points))
        points = points[np.argsort(losses)[:STARTS]]
        errors = self.errors(points)
        for _ in range(ROUNDS):
            before = _losses(errors)
            points, errors = self._descend(points, errors)
            if (_losses(errors) > (1 - PRECISION) * before).all():
                break
        return self.rates(points[[int(_losses(errors).argmin())]])

    def _descend(self, points: Array, errors: Array) -> tuple[Array, Array]:
        """The best of several steps of each descent, or where it is."""
        count = len(points)
        slopes = self._slopes(points, errors)
        gradients = np.einsum("sft,st->sf", slopes, errors)
        # A rate at its bound that would leave the cube stays where it is.
        stuck = ((points <= 0) & (gradients > 0)) | ((points >= 1) & (gradients < 0))
        slopes = np.where(stuck[:, :, None], 0.0, slopes)
        curvature = slopes @ slopes.transpose(0, 2, 1)
        diagonal = np.einsum("sff->sf", curvature)
        damped = [
            curvature
            + np.eye(self.free)
            * (d * diagonal + diagonal.max(1, keepdims=True) * RIDGE + TINY)[:, None]
            for d in DAMPINGS
        ]
        downhill = np.where(stuck, 0.0, -gradients)[:, :, None]
        tried = np.concatenate(
            [points]
            + [np.clip(points + np.linalg.solve(m, downhill)[:, :, 0], 0, 1) for m in damped]
        )
        all_errors = np.concatenate([errors, self.errors(tried[count:])])
        best = _losses(all_errors).reshape(-1, count).argmin(0) * count + np.arange(count)
        return tried[best], all_errors[best]

    def _slopes(self, points: Array, errors: Array) -> Array:
        """∂e/∂p [starts, free, T]; the initial states follow the rates."""
        steps = np.where(points > 0.5, -DIFFERENCE, DIFFERENCE)
        moved = points[:, None] + steps[:, :, None] * np.eye(self.free)
        changed = self.errors(moved.reshape(-1, self.free)).reshape(*points.shape, -1)
        return (changed - errors[:, None]) / steps[:, :, None]

    def errors(self, points: Array) -> Array:
        """Errors [points, elements of all series]."""
        rates = self.rates(points)
        found = [_solve(series, rates, self.season, self.trend)[1] for series in self.series]
        return np.concatenate(found, axis=1)

    def rates(self, points: Array) -> Rates:
        """Points of the unit cube as rates: 0 < α < 1, 0 ≤ β ≤ 1, 0 ≤ γ ≤ 1 − α."""
        columns = iter(points.T)
        level = FEWEST + (1 - 2 * FEWEST) * next(columns)
        zero, one = np.zeros_like(level), np.ones_like(level)
        trend = next(columns) if self.trend else zero
        season = next(columns) * (1 - level) if self.season else zero
        low, high = DAMPING
        damping = low + (high - low) * next(columns) if self.damped else one
        return Rates(level, trend, season, damping)


def _losses(errors: Array) -> Array:
    losses: Array = np.mean(errors**2, axis=1)
    return losses


def _corners(free: int) -> Array:
    """Every combination of slow and fast rates."""
    return np.array(list(product((0.02, 0.9), repeat=free)))


def _pick(rates: Rates, number: int) -> Rates:
    return Rates(*(float(rate[number]) for rate in rates))
