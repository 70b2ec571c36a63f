"""Contexts of time series and the values that follow them, by split; and forecasts without a model.

naive forecast   ŷ_{t+h} = y_{t+h−m⌈h/m⌉},  m = 1: the last value repeated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from threefold.data.loaders import Batch
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.numbers import ABSURD, Standardise
from threefold.data.stretches import StretchPlaces
from threefold.data.time_stamps import TimeAxis
from threefold.errors import ThreefoldError, option, setting
from threefold.tasks.forecasting import SPLIT_ENDS
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, make_batch
from threefold.tasks.user_data.seasons import season_of


class SeriesNote(NamedTuple):
    """What to know about a series, and what can be done about it in training."""

    what: str
    advice: str = ""


@dataclass(frozen=True)
class TimeSeries:
    """Rows of one series in the order of time; NaN is missing."""

    name: str
    values: Array  # [time, targets and features]
    axis: TimeAxis | None = None
    last: float = 0.0  # the time of the last row, in seconds since 1970
    notes: tuple[SeriesNote, ...] = ()
    stretch: Array | None = None  # of each row, the number of gaps before it; None: no gaps
    times: Array | None = None  # of each row, in seconds since 1970

    def head(self, share: float) -> TimeSeries:
        """The first part of the rows."""
        return self.head_rows(int(len(self.values) * share))

    def head_rows(self, count: int) -> TimeSeries:
        """The first rows."""
        stretch = None if self.stretch is None else self.stretch[:count]
        times = None if self.times is None else self.times[:count]
        last = self.last if times is None or not count else float(times[-1])
        values = self.values[:count]
        return replace(self, values=values, stretch=stretch, times=times, last=last)

    def stamp(self, step: int) -> str | None:
        """The time stamp some steps after the last row, as the table writes it."""
        return None if self.axis is None else self.axis.stamp(step, after=self.last)


@dataclass(frozen=True)
class OriginScales:
    """The scale of each forecast, which is that of its series; one row if all have the same."""

    columns: tuple[str, ...]
    mean: Array  # [origins, targets]
    deviation: Array

    @classmethod
    def by(cls, scales: Sequence[Standardise]) -> OriginScales:
        """The scales of as many forecasts."""
        mean, deviation = (
            np.array([getattr(scale, name) for scale in scales]) for name in ("mean", "deviation")
        )
        return cls(scales[0].columns, mean, deviation)

    def invert(self, values: Array) -> Array:
        """Standardised values [origins, …, targets] in original units."""
        shape = (-1, *(1,) * (values.ndim - 2), len(self.columns))
        units: Array = values * self.deviation.reshape(shape) + self.mean.reshape(shape)
        return units

    def of_origin(self, number: int) -> Standardise:
        """The scale of one forecast."""
        row = number if len(self.mean) > 1 else 0
        return Standardise(self.columns, tuple(self.mean[row]), tuple(self.deviation[row]))


class SeriesWindows:
    """Contexts and the values that follow, standardised, of every split."""

    def __init__(
        self, series: Sequence[TimeSeries], preprocessing: Preprocessing, split: bool
    ) -> None:
        self.preprocessing, self.series = preprocessing, tuple(series)
        self.context, self.horizon = preprocessing.context or 1, preprocessing.horizon or 1
        count = len(preprocessing.roles.targets)
        values = [part.values for part in series]
        # A series that training has not seen is scaled by what comes before its first forecast.
        own = [preprocessing.of_series(p.name, p.values[: self.context]) for p in series]
        self.scales: list[Standardise] = [part.outputs.find(Standardise) for part in own]
        # The row at which each series begins in the joined ones, and where the last one ends.
        self.offsets = np.cumsum([0, *map(len, values)])
        pairs = list(zip(own, values, strict=True))
        self.inputs = np.concatenate(
            [part.encode_rows(p.values, p.times) for part, p in zip(own, series, strict=True)]
        )
        targets = np.concatenate([part.outputs.apply(v[:, :count]) for part, v in pairs])
        self.targets = np.where(np.abs(targets) <= ABSURD, targets, np.nan)
        self.begins = {name: self._begins(values, name, split) for name in SPLITS}
        self._train_ends = [_bounds(len(v), "train")[1] if split else len(v) for v in values]

    def members(self, begins: Numbers) -> Numbers:
        """The number of the series in which each forecast begins."""
        return np.searchsorted(self.offsets, begins, side="right") - 1

    def _begins(self, values: Sequence[Array], split: str, cut: bool) -> Numbers:
        """The rows at which a forecast of a split begins, in all series together."""
        begins, offset = [], 0
        for part in values:
            low, high = _bounds(len(part), split) if cut else (0, len(part))
            first = max(low, self.context)
            begins.append(np.arange(first, max(first, high - self.horizon + 1)) + offset)
            offset += len(part)
        numbers = np.concatenate(begins)
        if not len(numbers):
            raise ThreefoldError(self._too_few(offset, split, cut))
        after = numbers[:, None] + np.arange(self.horizon)
        rows: Numbers = after[np.isfinite(self.targets[after]).any((1, 2)), 0]
        if not len(rows):
            where = f"the {split} split ({len(after):,} windows)" if cut else f"{offset:,} rows"
            raise ThreefoldError(
                f"the target {', '.join(self.preprocessing.roles.targets)} has no usable number in "
                f"{where}, so there is nothing to compare forecasts with"
            )
        return rows

    def _too_few(self, rows: int, split: str, cut: bool) -> str:
        steps = "1 time step is" if rows == 1 else f"{rows:,} time steps are"
        what = (
            f"{steps} too few for a context of {self.context:,} and a horizon of {self.horizon:,}"
        )
        if not cut:
            return f"{what}, with which the model was trained; give at least one window of rows"
        return (
            f"{what}: {split} has no window; give more rows, or a smaller length "
            f"({setting('data.length', 'N')}) or horizon ({option('horizon', 'N')})"
        )

    def draw(self, split: str, numbers: Numbers) -> Batch:
        """The windows with these numbers; missing targets are NaN."""
        begins = self.begins[split][numbers][:, None]
        inputs = self.inputs[begins + np.arange(-self.context, 0)]
        targets = self.targets[begins + np.arange(self.horizon)]
        return make_batch(inputs, targets[..., 0] if targets.shape[-1] == 1 else targets)

    def stretches(self, batch_size: int, batches: int, seed: int) -> Callable[[int], Batch]:
        """Training batches of rows that follow those of the batch before, to carry a state.

        Every row of a batch starts anew after some `batches`, at another place.
        """
        ends = [end + offset for end, offset in zip(self._train_ends, self.offsets, strict=False)]
        bounds = [(int(a), int(b) - self.horizon) for a, b in zip(self.offsets, ends, strict=False)]
        places = StretchPlaces(bounds, batch_size, self.context, batches, seed)

        def draw(step: int) -> Batch:
            first, starts = places(step)
            inputs = self.inputs[first[:, None] + np.arange(self.context)]
            targets = self.targets[first[:, None] + self.context + np.arange(self.horizon)]
            batch = make_batch(inputs, targets[..., 0] if targets.shape[-1] == 1 else targets)
            return batch._replace(starts=torch.from_numpy(starts))

        return draw

    def origin_scales(self, split: str, numbers: Numbers) -> OriginScales:
        """The scales of the windows with these numbers."""
        members = self.members(self.begins[split][numbers])
        return OriginScales.by([self.scales[member] for member in members.tolist()])

    @property
    def error_scale(self) -> float:
        """The deviation of a single target of a single series: errors in original units."""
        alone = len(self.scales) == 1 and len(self.scales[0].columns) == 1
        return self.scales[0].deviation[0] if alone else 1.0

    def naive_forecasts(self, split: str, season: int, numbers: Numbers | None = None) -> Array:
        """The values of a season ago, repeated [windows, horizon, targets]; season 1: the last.

        NaN where a series began later; as standardised as the targets.
        """
        begins = self.begins[split] if numbers is None else self.begins[split][numbers]
        rows = begins[:, None] + np.arange(self.horizon) % season - season
        known = begins - season >= self.offsets[self.members(begins)]
        filled = self.inputs[np.maximum(rows, 0), : self.targets.shape[1]]
        return np.where(known[:, None, None], filled, np.nan)

    def naive_error(self, split: str, season: int) -> float:
        """The mean error of `naive_forecasts`, in original units if there is one target."""
        future = self.targets[self.begins[split][:, None] + np.arange(self.horizon)]
        errors = np.abs(future - self.naive_forecasts(split, season))
        known = np.isfinite(errors)
        # All forecasts count, or the season is too long to be compared with the last value.
        complete = known.sum() == np.isfinite(future).sum()
        return float(errors[known].mean()) * self.error_scale if complete else np.inf


def _bounds(length: int, split: str) -> tuple[int, int]:
    ends = [0, *(int(length * part) for part in SPLIT_ENDS), length]
    position = SPLITS.index(split)
    return ends[position], ends[position + 1]


def better_naive(windows: SeriesWindows) -> tuple[float, str]:
    """The smaller error on the test split of the last value and that of a season ago, named."""
    season = season_of(windows.series[0].axis)
    names = {1: "the last value repeated"}
    if season > 1:
        names[season] = f"the value of {season} rows ago"
    return min((windows.naive_error("test", rows), name) for rows, name in names.items())
