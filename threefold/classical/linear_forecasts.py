"""ŷ_{t+h} = y_t + Σ_k T_{h,k} [y_{t−k} − y_t; u_{t−k}] + L_h y_t + c_h:  forecasts by a filter.

The last value, the value of a season ago, a ridge autoregression and Holt–Winters smoothing of a
window are all linear in the window, so each is such a filter; the one of least held-out error is
chosen.  L = 0: the forecast moves with the level of the series.  Else it may be bounded: it moves
with a level far from those that were seen (`LevelRange`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.seasons import season_of
from threefold.classical.smoothing import fit_rates, forecast_windows
from threefold.errors import ThreefoldError

SHARES = (1.0, 0.75, 0.5, 0.25)  # of the context, as numbers of lags
# Share of the error by which more lags must be better, and as many as the context has: those leave
# a network one forecast of each context to learn from.
MORE_LAGS, ALL_LAGS = 0.005, 0.02
UNBOUNDED = 0.005  # share of the error by which levels that were not seen must tell something
SMALLEST_REACH = 1e-6  # of the level of a constant series
MOST_FEATURES = 1536  # of a ridge
SMOOTHED_WINDOWS = 4000  # with more of them a ridge needs no help from smoothing
LONGEST_SMOOTHED = 200  # elements


@dataclass(frozen=True)
class LevelRange:
    """Which means of the last rows were seen; y_t counts with its mean as far as that is known."""

    rows: int
    middle: Tensor  # [targets]
    reach: Tensor  # [targets]: the largest distance of a mean from the middle

    @classmethod
    def of(cls, inputs: Tensor, targets: int, rows: int) -> LevelRange:
        """The range of windows [N, C ≥ rows, columns]."""
        means = inputs[:, -rows:, :targets].double().mean(1)
        middle = means.mean(0)
        return cls(rows, middle, (means - middle).abs().amax(0).clamp(min=SMALLEST_REACH))

    def excess(self, inputs: Tensor) -> Tensor:
        """How much of the means of windows is not believed, [N, targets]."""
        offset = inputs[:, -self.rows :, : len(self.middle)].double().mean(1) - self.middle
        inside = torch.clamp(offset, -self.reach, self.reach)
        beyond = (offset - inside).abs()
        return offset - inside * (1 - beyond / self.reach).clamp(min=0)


@dataclass(frozen=True)
class LinearForecast:
    """A filter: taps [P, columns, H · targets], the newest lag first; level, offset."""

    name: str
    taps: Tensor
    level: Tensor  # [targets, H · targets]
    offset: Tensor  # [H · targets]
    facts: dict[str, float]  # such as season and strength
    bounds: LevelRange | None = None

    @property
    def lags(self) -> int:
        """Number of rows that are read."""
        return len(self.taps)

    @property
    def moves_with_level(self) -> bool:
        """Whether a shift of the targets shifts the forecasts."""
        return not bool(self.level.any())

    def predict(self, inputs: Tensor) -> Tensor:
        """Forecasts [N, H, targets] after windows [N, C ≥ P, columns]."""
        targets = len(self.level)
        rows = inputs[:, -self.lags :].double().flip(1).clone()
        last = rows[:, 0, :targets].clone()
        rows[:, :, :targets] -= last.unsqueeze(1)
        level = last if self.bounds is None else last - self.bounds.excess(inputs)
        change = rows.flatten(1) @ self.taps.flatten(0, 1) + level @ self.level + self.offset
        return last.unsqueeze(1) + change.reshape(len(rows), -1, targets)

    def error(self, inputs: Tensor, targets: Tensor) -> float:
        """The mean absolute error; missing targets do not count."""
        return float((self.predict(inputs) - targets.double()).abs().nanmean())


def bounded(
    chosen: LinearForecast, train: ForecastWindows, held_out: ForecastWindows, rows: int
) -> LinearForecast:
    """The filter, bounded to the levels of training unless that is worse on held-out windows."""
    if chosen.moves_with_level:
        return chosen
    bounds = LevelRange.of(train.inputs, train.targets.shape[2], rows)
    moving = replace(chosen, bounds=bounds)
    errors = [part.error(held_out.inputs, held_out.targets) for part in (moving, chosen)]
    return chosen if errors[0] > (1 + UNBOUNDED) * errors[1] else moving


def repeat_value(columns: int, targets: int, horizon: int, season: int = 0) -> LinearForecast:
    """The last value, or that of a season ago."""
    outputs = horizon * targets
    taps = torch.zeros(max(1, season), columns, outputs, dtype=torch.float64)
    for step in range(horizon if season else 0):
        for target in range(targets):
            taps[season - 1 - step % season, target, step * targets + target] = 1.0
    taps[0, :targets] = 0.0  # y_t − y_t
    name, facts = ("value of a season ago", {"season": season}) if season else ("last value", {})
    zeros = torch.zeros(targets, outputs, dtype=torch.float64)
    return LinearForecast(name, taps, zeros, zeros.sum(0), dict(facts))


def from_ridge(model: RidgeAutoregression, columns: int, lags: int) -> LinearForecast:
    """A ridge autoregression as a filter."""
    targets, outputs = model.targets, len(model.offset)
    others = columns - targets - model.current
    taps = torch.zeros(lags, columns, outputs, dtype=torch.float64)
    sizes = [(lags - 1) * targets, targets * model.level, lags * others, model.current]
    differences, level, inputs, newest = torch.split(model.weight, sizes)
    taps[1:, :targets] = differences.reshape(lags - 1, targets, outputs).flip(0)
    taps[:, targets : targets + others] = inputs.reshape(lags, others, outputs).flip(0)
    taps[0, targets + others :] = newest
    base = repeat_value(columns, targets, model.horizon, model.season)
    taps[: base.lags] += base.taps
    if not model.level:
        level = torch.zeros(targets, outputs, dtype=torch.float64)
    facts = {"strength": model.strength} | ({"season": model.season} if model.season else {})
    return LinearForecast("ridge", taps, level, model.offset, facts)


def from_smoothing(inputs: Tensor, targets: int, horizon: int, season: int) -> LinearForecast:
    """Holt–Winters smoothing of windows [N, C, columns] as a filter, by its impulse responses."""
    lags, columns = inputs.shape[1:]
    taps = torch.zeros(lags, columns, horizon * targets, dtype=torch.float64)
    level = torch.zeros(targets, horizon * targets, dtype=torch.float64)
    chosen = inputs[:: max(1, len(inputs) // 4), :, :targets][:4].double().numpy()
    impulses = np.eye(lags)[::-1]  # the newest lag first
    for target in range(targets):
        rates = fit_rates(list(chosen[:, :, target]), season=season)
        response = torch.from_numpy(forecast_windows(impulses, rates, horizon, season=season))
        taps[:, target, target::targets] = response
        level[target, target::targets] = response.sum(0) - 1  # 0 but for rounding
    taps[0, :targets] = 0.0
    level = torch.where(level.abs() < 1e-6, 0.0, level)
    facts = {"season": season} if season else {}
    return LinearForecast("Holt–Winters", taps, level, level.new_zeros(taps.shape[2]), dict(facts))


@dataclass(frozen=True)
class ForecastWindows:
    """Windows [N, C, columns], targets first, in the order of time, and what follows them."""

    inputs: Tensor
    targets: Tensor  # [N, H, targets]

    @cached_property
    def season(self) -> int:
        """The season of the first target; 0: none was found."""
        return season_of(self.inputs[:: max(1, len(self.inputs) // 500), :, 0])


def choose_linear(
    train: ForecastWindows, held_out: ForecastWindows, *, current: int = 0, lags: int | None = None
) -> tuple[LinearForecast, dict[str, float]]:
    """The filter of least held-out error, and the least errors of all that were tried, by name.

    current: columns at the end of which only the newest row counts.  lags: of the ridge; default:
    the fewest that are about as good as all.
    """
    tried: list[tuple[float, LinearForecast]] = []
    for make in _simple_forecasts(train):
        try:
            tried.append(_scored(make(), held_out))
        except ThreefoldError:  # too few elements for this one
            continue
    with_ridge = _ridges(train, held_out, current, lags)
    tried += [_scored(ridge, held_out) for ridge in with_ridge]
    errors: dict[str, float] = {}
    for error, tested in tried:
        errors[tested.name] = min(error, errors.get(tested.name, error))
    best, context = min(tried, key=lambda pair: pair[0])[1], train.inputs.shape[1]
    for error, tested in tried:
        worth = MORE_LAGS if best.lags < context else ALL_LAGS
        if tested.lags < best.lags and error <= errors[best.name] * (1 + worth):
            best = tested
    return best, errors


def _scored(filter_: LinearForecast, held_out: ForecastWindows) -> tuple[float, LinearForecast]:
    error = filter_.error(held_out.inputs, held_out.targets)
    return error if error == error else float("inf"), filter_


def _simple_forecasts(train: ForecastWindows) -> Iterator[Callable[[], LinearForecast]]:
    """The last value, that of a season ago, and smoothing where a ridge may need more windows."""
    context, columns = train.inputs.shape[1:]
    horizon, targets = train.targets.shape[1:]
    season = train.season
    yield lambda: repeat_value(columns, targets, horizon)
    if season:
        yield lambda: repeat_value(columns, targets, horizon, season)
    if len(train.inputs) <= SMOOTHED_WINDOWS and context <= LONGEST_SMOOTHED:
        yield lambda: from_smoothing(train.inputs, targets, horizon, season)


def _ridges(
    train: ForecastWindows, held_out: ForecastWindows, current: int, lags: int | None
) -> list[LinearForecast]:
    """Ridges with most lags around the last value or season, with and without the level, and the
    best of them with fewer lags."""
    columns = train.inputs.shape[2]
    counts = _lag_counts(train.inputs.shape[1], columns - current, lags)

    def fit(count: int, season: int, level: bool) -> RidgeAutoregression:
        inputs, held = (part.inputs[:, -count:] for part in (train, held_out))
        held_targets = (held, held_out.targets)
        return RidgeAutoregression.fit(
            inputs,
            train.targets,
            season=season,
            level=level,
            current=current,
            held_out=held_targets,
        )

    seasons = dict.fromkeys((0, train.season if train.season <= counts[0] else 0))
    try:
        first = [fit(counts[0], season, level) for season in seasons for level in (True, False)]
    except ThreefoldError:  # too few windows
        return []
    newest = held_out.inputs[:, -counts[0] :]
    best = min(first, key=lambda model: model.error(newest, held_out.targets))
    ridges = [from_ridge(model, columns, counts[0]) for model in first]
    for count in counts[1:]:
        season = best.season if best.season <= count else 0
        ridges.append(from_ridge(fit(count, season, best.level), columns, count))
    return ridges


def _lag_counts(context: int, columns: int, lags: int | None) -> list[int]:
    if lags is not None:
        return [min(lags, context)]
    most = max(1, min(context, MOST_FEATURES // columns))
    return sorted({max(1, int(share * most)) for share in SHARES}, reverse=True)
