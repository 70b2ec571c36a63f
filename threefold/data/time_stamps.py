"""The time column of a table: order, step, gaps and duplicates, and the stamps that come next.

times = read_times(table, "date")      seconds since 1970, NaN where a cell is missing
facts = describe_times(table, "date")  sorted? step, gaps, duplicates, and the axis:
facts.axis.stamp(1, after=times[-1])   the stamp one step after the last, as the file writes it
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.data.cells import is_missing, shown
from threefold.data.tables import Table
from threefold.data.time_formats import (
    EPOCH,
    EPOCHS,
    TimeFormat,
    detect_format,
    format_time,
    moment_of,
    offset_in,
    seconds_in,
    times_in,
    zone_offset,
)
from threefold.data.time_steps import DAY
from threefold.errors import AmbiguousError, ThreefoldError, setting

Floats = NDArray[np.float64]

TOLERANCE = 1e-2  # of a step, by which the stamps of a regular series may be off
MOST_STEP_CHANGE = 1.4  # months differ by 1.11, weekdays and days not at all
SHOWN_GAPS = 5
UNITS = {"day": DAY, "hour": 3600.0, "minute": 60.0, "second": 1.0}


class Gap(NamedTuple):
    """Steps without a row before the row at `line`; `after` and `before` are its neighbours."""

    line: int
    after: str
    before: str
    steps: int


@dataclass(frozen=True)
class TimeAxis:
    """Stamps in equal steps: of `step` seconds, of whole months, or of weekdays.

    first: seconds since 1970.  months: of one step, 0 if it is not of months; the day of the month
    is then `day`, or the last one of shorter months.  regular: whether all stamps follow the step.
    steady: whether most of them do, between gaps.
    """

    name: str
    format: str
    first: float
    step: float
    regular: bool = True
    zone: str = ""
    months: int = 0
    day: int = 1
    weekdays: bool = False
    steady: bool = False

    @property
    def has_zone(self) -> bool:
        """Whether stamps are moments, not only what some clock showed."""
        return bool(self.zone) or self.format in EPOCHS

    @property
    def step_name(self) -> str:
        """The step in words: 30 minutes, 1 month, 1 weekday."""
        if self.months:
            return _counted(*((self.months // 12, "year") if self.months % 12 == 0
                              else (self.months, "month")))  # fmt: skip
        if self.weekdays:
            return "1 weekday"
        for unit, seconds in UNITS.items():
            if (
                self.step >= seconds
                and abs(self.step / seconds - round(self.step / seconds)) < 1e-9
            ):
                return _counted(round(self.step / seconds), unit)
        return f"{self.step:g} seconds"

    def seconds(self, steps: int, after: float | None = None) -> float:
        """The moment some steps after another one (default: after the first)."""
        start, east = self.first if after is None else after, zone_offset(self.zone)
        if self.months:
            return add_months(start + east, steps * self.months, self.day) - east
        if self.weekdays:
            return _add_weekdays(start + east, steps) - east
        return start + steps * self.step

    def stamp(self, steps: int, after: float | None = None) -> str:
        """The stamp some steps after a moment, as the table writes it."""
        return self.format_time(self.seconds(steps, after))

    def next_stamps(self, after: float, count: int) -> list[str]:
        """The stamps that follow a moment."""
        return [self.stamp(steps, after) for steps in range(1, count + 1)]

    def format_time(self, seconds: float) -> str:
        """A moment as the table writes it."""
        return format_time(seconds, TimeFormat(self.format, self.zone))

    def parse(self, cell: Any) -> float | None:
        """The moment of a cell; None if it is written otherwise."""
        return seconds_in(cell, TimeFormat(self.format, self.zone))

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> TimeAxis:
        """The axis that `to_dict` wrote."""
        return cls(**fields)


@dataclass
class TimeFacts:
    """What a time column holds; gaps and duplicates are those of the sorted stamps.

    gap_count: number of gaps, of which `gaps` has the first.  duplicates: rows whose stamp occurs
    before, the first of them at the line `first_duplicate`.
    """

    axis: TimeAxis
    times: Floats
    sorted: bool
    gaps: list[Gap]
    gap_count: int
    duplicates: int
    first_duplicate: int | None
    are_neighbours: NDArray[np.bool_]  # of the sorted rows, each and the next: no gap, other times


# --------------------------------------------------------------------------------- reading


def read_times(table: Table, name: str, *, day_first: bool | None = None) -> Floats:
    """Seconds since 1970 of a time column, NaN where a cell is missing."""
    return _parse(table, name, time_format_of(table, name, day_first=day_first))


def time_format_of(table: Table, name: str, *, day_first: bool | None = None) -> TimeFormat:
    """The format of a time column; 01/02/2024 is asked about unless `day_first` is given."""
    cells = [cell for cell in table.column(name) if not is_missing(cell)]
    form = detect_format(name, cells)
    if form is None:
        example = f", such as {shown(cells[0])}" if cells else ", all missing"
        what = f"the cells of {name}{example}, are not times; expected e.g. 2024-01-31 13:30"
        raise table.error(None, what)
    if not form.others:
        return form
    if day_first is None:
        what = (
            f"{table.name}: {name}: is {shown(cells[0])} written with the day or the month first?"
        )
        raise AmbiguousError(what, [setting("data.day_first", v) for v in ("true", "false")])
    texts = (form.text, *form.others)
    return TimeFormat(next(t for t in texts if _day_first(t) == day_first), form.zone)


def _day_first(form: str) -> bool:
    return form.index("d") < form.index("m")


def day_first_in(form: str) -> bool | None:
    """Whether a format has the day before the month; None if that cannot be doubted."""
    doubtful = form.replace("%-", "%").startswith(("%d", "%m")) and "%d" in form and "%m" in form
    return _day_first(form) if doubtful else None


def _parse(table: Table, name: str, form: TimeFormat) -> Floats:
    cells = table.column(name)
    times = times_in(cells, form)
    for line, cell, seconds in zip(table.line_numbers, cells, times, strict=True):
        if seconds is None and not is_missing(cell):
            what = f"{name} is {shown(cell)}; expected a time such as {format_time(0.0, form)}"
            raise table.error(line, what)
    return np.array([np.nan if seconds is None else seconds for seconds in times])


def sort_by_time(table: Table, name: str, *, day_first: bool | None = None) -> Table:
    """The rows in the order of a time column, in which no cell may be missing."""
    times = _complete_times(table, name, time_format_of(table, name, day_first=day_first))
    return table.rows(np.argsort(times, kind="stable").tolist())


def _complete_times(table: Table, name: str, form: TimeFormat) -> Floats:
    times = _parse(table, name, form)
    missing = np.flatnonzero(np.isnan(times))
    if len(missing):
        raise table.error(table.line_numbers[missing[0]], f"{name}, the time, is missing")
    return times


# -------------------------------------------------------------------------------- analysis


def describe_times(table: Table, name: str, *, day_first: bool | None = None) -> TimeFacts:
    """Order, step, gaps and duplicates of a time column, in which no cell may be missing."""
    form = time_format_of(table, name, day_first=day_first)
    times = _complete_times(table, name, form)
    order = np.argsort(times, kind="stable")
    repeated = order[1:][np.diff(times[order]) == 0]
    clock = _in_one_zone(table.column(name), times, form)
    moments = np.unique(clock)
    axis = _axis_of(name, form, moments)
    gaps = _gaps(axis, moments)
    lines = {float(clock[i]): table.line_numbers[i] for i in order[::-1]}
    return TimeFacts(
        axis=axis,
        times=times,
        sorted=bool(np.all(np.diff(times) >= 0)),
        gaps=[
            Gap(lines[b], axis.format_time(a), axis.format_time(b), n)
            for a, b, n in gaps[:SHOWN_GAPS]
        ],
        gap_count=len(gaps),
        duplicates=len(repeated),
        first_duplicate=min((table.line_numbers[i] for i in repeated), default=None),
        are_neighbours=_are_neighbours(axis, clock[order]),
    )


def _are_neighbours(axis: TimeAxis, moments: Floats) -> NDArray[np.bool_]:
    """Whether each of the moments in order is at most one step before the next, and not equal."""
    if len(moments) < 2:
        return np.zeros(0, bool)
    near: NDArray[np.bool_] = (_steps_between(axis, moments) <= 1) & (np.diff(moments) > 0)
    return near


def _in_one_zone(cells: Sequence[Any], times: Floats, form: TimeFormat) -> Floats:
    """Times of which days and longer steps are equal although the clock was changed in between."""
    if not form.zone or _median_step(np.unique(times)) < 0.9 * DAY:
        return times
    offsets: Floats = np.array([offset_in(cell, form) for cell in cells])
    offsets -= zone_offset(form.zone)
    return times + offsets


def _axis_of(name: str, form: TimeFormat, moments: Floats) -> TimeAxis:
    """The axis of moments in order, none twice."""
    step = _median_step(moments)
    steady = bool(2 * np.sum(near_step(np.diff(moments), step)) > len(moments) - 1)
    axis = TimeAxis(name, form.text, float(moments[0]), step, zone=form.zone, steady=steady)
    on_calendar = _month_axis(axis, moments) or _weekday_axis(axis, moments)
    if on_calendar:
        return replace(on_calendar, regular=bool(np.all(_steps_between(on_calendar, moments) == 1)))
    mean = float(moments[-1] - moments[0]) / max(1, len(moments) - 1)
    for length in (step, mean):  # the median of stamps rounded to milliseconds is rounded, too
        expected = axis.first + length * np.arange(len(moments))
        if np.all(np.abs(moments - expected) <= TOLERANCE * step):
            return replace(axis, step=length, regular=True)
    return replace(axis, regular=False)


def near_step(steps: Floats, step: float) -> NDArray[np.bool_]:
    """Which steps are about as long as one step."""
    near: NDArray[np.bool_] = (steps * MOST_STEP_CHANGE > step) & (steps < MOST_STEP_CHANGE * step)
    return near


def _median_step(moments: Floats) -> float:
    return float(np.median(np.diff(moments))) if len(moments) > 1 else DAY


def _month_axis(axis: TimeAxis, moments: Floats) -> TimeAxis | None:
    """The axis in months, if the median step is about so long and all stamps have one day."""
    months = round(axis.step / (30.4375 * DAY))
    if months < 1 or abs(axis.step / (30.4375 * DAY) - months) > 0.11 * months:
        return None
    dates = _dates(axis, moments)
    day = max(date.day for date in dates)
    if any(date.day != min(day, _days(date.year, date.month)) for date in dates):
        return None
    return replace(axis, months=months, day=day)


def _weekday_axis(axis: TimeAxis, moments: Floats) -> TimeAxis | None:
    """The axis in weekdays, if most of two weeks or more and no other days have a stamp."""
    if abs(axis.step - DAY) > TOLERANCE * DAY or moments[-1] - moments[0] < 12 * DAY:
        return None
    days = _day_numbers(moments + zone_offset(axis.zone))
    if np.any((moments - moments[0]) % DAY) or not np.all(np.is_busday(days)):
        return None
    most = len(days) > 0.8 * np.busday_count(days[0], days[-1])
    return replace(axis, weekdays=True) if most else None


def _steps_between(axis: TimeAxis, moments: Floats) -> NDArray[np.int64]:
    """Steps from each moment to the next, rounded."""
    if axis.months:
        months = np.diff([12 * date.year + date.month for date in _dates(axis, moments)])
        return np.round(months / axis.months).astype(np.int64)
    if axis.weekdays:
        days = _day_numbers(moments + zone_offset(axis.zone))
        return np.busday_count(days[:-1], days[1:]).astype(np.int64)
    return np.round(np.diff(moments) / axis.step).astype(np.int64)


def _gaps(axis: TimeAxis, moments: Floats) -> list[tuple[float, float, int]]:
    """(moment before, moment after, number of steps without a row)."""
    steps = _steps_between(axis, moments)
    return [
        (float(moments[i]), float(moments[i + 1]), int(steps[i]) - 1)
        for i in np.flatnonzero(steps > 1)
    ]


# -------------------------------------------------------------------------------- calendar


def add_months(seconds: float, months: int, day: int | None = None) -> float:
    """The moment some months later, on `day` (default: the same) or the month's last day."""
    date = moment_of(seconds)
    index = 12 * date.year + date.month - 1 + months
    year, month = index // 12, index % 12 + 1
    if not 1 <= year <= 9999:
        raise ThreefoldError(f"the year {year} is not in the years 1–9999")
    moved = date.replace(year=year, month=month, day=min(day or date.day, _days(year, month)))
    return (moved - EPOCH).total_seconds()


def _add_weekdays(seconds: float, count: int) -> float:
    day = np.floor(seconds / DAY)
    later = np.busday_offset(_day_numbers(np.array([seconds]))[0], count, roll="forward")
    return float(later.astype(np.int64) * DAY + seconds - day * DAY)


def _day_numbers(moments: Floats) -> NDArray[np.datetime64]:
    return np.floor(moments / DAY).astype(np.int64).astype("datetime64[D]")


def _dates(axis: TimeAxis, moments: Floats) -> list[datetime.datetime]:
    """The dates of moments on the clock of the stamps."""
    return [moment_of(seconds + zone_offset(axis.zone)) for seconds in moments]


def _days(year: int, month: int) -> int:
    return calendar.monthrange(year, month)[1]


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
