"""Holt–Winters exponential smoothing with an additive trend and additive seasons:

    l_t = α (y_t − s_{t−m}) + (1−α)(l_{t−1} + φ b_{t−1})        level
    b_t = β (l_t − l_{t−1}) + (1−β) φ b_{t−1}                    trend
    s_t = γ (y_t − l_{t−1} − φ b_{t−1}) + (1−γ) s_{t−m}          season
    ŷ_{t+h} = l_t + (φ + … + φʰ) b_t + s_{t+h−m}

For fixed α, β, γ and φ the errors are linear in the initial level, trend and seasons, which are
therefore solved for exactly; only those few numbers are searched.
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
CANDIDATES, ROUNDS, STARTS = 24, 20, 3
DAMPING = (0.8, 0.995)  # where φ is searched


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
        newest = series[-LONGEST:]
        search = _Search(season, trend, damped and trend, np.random.default_rng((seed, 22)))
        best = search.run([newest])
        initial, _ = _solve(newest, best, season, trend)
        return cls.with_state(newest, _pick(best, 0), initial[0], season=season, trend=trend)

    @classmethod
    def with_state(
        cls, y: Array, rates: Rates, initial: Array, *, season: int = 0, trend: bool = True
    ) -> HoltWinters:
        """Smooth a series from an initial state with given rates."""
        errors, state = _smooth(np.asarray(y, np.float64), rates, initial, season)
        return cls(rates, season, trend, state, float(np.mean(errors**2)))

    def forecast(self, steps: int) -> Array:
        """ŷ of the next steps."""
        level, slope, seasons = self.state[0], self.state[1], self.state[2:]
        damping = np.cumsum(self.rates.damping ** np.arange(1, steps + 1))
        line: Array = level + slope * damping
        return line + seasons[np.arange(steps) % self.season] if self.season else line

    def update(self, y: Array) -> HoltWinters:
        """The same rates after further elements."""
        _, state = _smooth(np.asarray(y, np.float64), self.rates, self.state, self.season)
        return HoltWinters(self.rates, self.season, self.trend, state, self.error)


def fit_rates(windows: Sequence[Array], *, season: int = 0, seed: int = 0) -> Rates:
    """The rates, with a damped trend, of least error over several stretches of a series."""
    checked = [_check(window, season) for window in windows]
    search = _Search(season, True, True, np.random.default_rng((seed, 22)))
    return _pick(search.run(checked), 0)


def forecast_window(y: Array, rates: Rates, steps: int, *, season: int = 0) -> Array:
    """Forecast the steps after a stretch of a series, whose initial state is solved for."""
    one = Rates(*(np.array([rate]) for rate in rates))
    series = _check(y, season)
    initial, _ = _solve(series, one, season, True)
    return HoltWinters.with_state(series, rates, initial[0], season=season).forecast(steps)


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
    """One-step errors [T] and the last state, from one set of rates."""
    level, slope = float(initial[0]), float(initial[1])
    seasons = [float(s) for s in initial[2:]] or [0.0]
    alpha, beta, gamma, phi = (float(rate) for rate in rates)
    errors, place, count = np.empty(len(y)), 0, len(seasons)
    for t, value in enumerate(y.tolist()):
        expected = level + phi * slope
        error = value - expected - seasons[place]
        new = expected + alpha * error
        slope = phi * slope + beta * (new - expected)
        level = new
        if season:
            seasons[place] += gamma * (value - expected - seasons[place])
        place = (place + 1) % count
        errors[t] = error
    return errors, np.array([level, slope, *(seasons[place:] + seasons[:place] if season else [])])


def _responses(y: Array, rates: Rates, season: int, trend: bool) -> Array:
    """Errors [candidates, 1 + states, T]: of y from zeros, then of nothing from each unit state."""
    count, states = len(rates.level), 1 + trend + season
    alpha, beta, gamma, phi = (np.asarray(rate)[:, None] for rate in rates)
    level = np.zeros((count, 1 + states))
    slope, seasons = np.zeros_like(level), np.zeros((max(season, 1), *level.shape))
    level[:, 1] = 1
    if trend:
        slope[:, 2] = 1
    for place in range(season):
        seasons[place, :, 1 + 1 + trend + place] = 1
    errors = np.empty((len(y), *level.shape))
    value = np.zeros_like(level)
    for t in range(len(y)):
        value[:, 0] = y[t]
        here = seasons[t % len(seasons)]
        expected = level + phi * slope
        error = value - expected - here
        step = alpha * error
        slope = phi * slope + beta * step
        level = expected + step
        if season:
            seasons[t % season] = here + gamma * error
        errors[t] = error
    return errors.transpose(1, 2, 0)


def _solve(y: Array, rates: Rates, season: int, trend: bool) -> tuple[Array, Array]:
    """For each candidate the best initial state [2 + season], and the mean squared error."""
    states, losses = [], []
    for errors in _responses(y, rates, season, trend):
        solution = np.linalg.lstsq(errors[1:].T, -errors[0], rcond=None)[0]
        rest = errors[0] + solution @ errors[1:]
        head = solution[: 1 + trend]
        states.append(np.concatenate([head, [0.0] * (not trend), solution[1 + trend :]]))
        losses.append(float(np.mean(rest**2)))
    return np.array(states), np.array(losses)


class _Search:
    """Candidates spread over the cube, then the best of several descents from there."""

    def __init__(self, season: int, trend: bool, damped: bool, random: np.random.Generator) -> None:
        self.season, self.trend, self.damped, self.random = season, trend, damped, random
        self.free = 1 + trend + (season > 0) + damped

    def run(self, y: Sequence[Array]) -> Rates:
        """The rates of least error over all series."""
        points = self.random.uniform(0, 1, (4 * CANDIDATES, self.free)) ** 2
        points[: 2**self.free] = _corners(self.free)
        losses = self._losses(y, points)
        starts = np.argsort(losses)[:STARTS]
        ends = [self._descend(y, points[start], losses[start]) for start in starts]
        point, _ = min(ends, key=lambda end: end[1])
        return self._rates(point[None])

    def _descend(self, y: Sequence[Array], point: Array, loss: float) -> tuple[Array, float]:
        """Follow the directions that have helped, in ever smaller steps."""
        spread = np.eye(self.free) * 0.1**2
        for _ in range(ROUNDS):
            steps = self.random.multivariate_normal(np.zeros(self.free), spread, CANDIDATES)
            points = np.clip(point + steps, 0.0, 1.0)
            losses = self._losses(y, points)
            elite = points[np.argsort(losses)[: CANDIDATES // 4]] - point
            # The elite's own spread, with the last one so that no direction is lost too soon.
            spread = 0.5 * elite.T @ elite / len(elite) + 0.4 * spread + np.eye(self.free) * 1e-12
            if losses.min() < loss:
                point, loss = points[int(losses.argmin())], float(losses.min())
        return point, loss

    def _losses(self, y: Sequence[Array], points: Array) -> Array:
        rates = self._rates(points)
        losses = [_solve(series, rates, self.season, self.trend)[1] for series in y]
        mean: Array = np.mean(losses, 0)
        return mean

    def _rates(self, points: Array) -> Rates:
        """Points of the unit cube as rates: 0 < α < 1, 0 ≤ β ≤ 1, 0 ≤ γ ≤ 1 − α."""
        columns = iter(points.T)
        level = np.clip(next(columns), 1e-4, 1 - 1e-4)
        zero, one = np.zeros_like(level), np.ones_like(level)
        trend = next(columns) if self.trend else zero
        season = next(columns) * (1 - level) if self.season else zero
        low, high = DAMPING
        damping = low + (high - low) * next(columns) if self.damped else one
        return Rates(level, trend, season, damping)


def _corners(free: int) -> Array:
    """Every combination of slow and fast rates."""
    return np.array(list(product((0.02, 0.9), repeat=free)))


def _pick(rates: Rates, number: int) -> Rates:
    return Rates(*(float(rate[number]) for rate in rates))
