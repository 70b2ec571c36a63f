"""The calendar as inputs: where a moment stands in the day, the week and the year.

    sin 2πkφ, cos 2πkφ      φ: the share of the cycle that is over, k = 1 … harmonics

The filter of a forecaster turns them ahead by itself: sin(a + b) is linear in sin a and cos a, so
the calendar of the forecast rows, which is known, follows from that of the newest one.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.time_formats import moment_of, zone_offset
from threefold.data.time_stamps import TimeAxis
from threefold.data.time_steps import DAY

Array = NDArray[Any]
HARMONICS = {"day": 4, "week": 3, "year": 2}
LENGTHS = {"day": DAY, "week": 7 * DAY, "year": 365.25 * DAY}
MONDAY = 4 * DAY  # 1970-01-05, the first Monday
ROWS_OF_CYCLE, FEWEST_CYCLES = 4, 3


def calendar_cycles(axis: TimeAxis | None, span: float) -> tuple[str, ...]:
    """The cycles that rows resolve and training data of `span` seconds repeat."""
    if axis is None or axis.weekdays:
        return ()
    step = axis.months * 30.4375 * DAY if axis.months else axis.step
    return tuple(
        name
        for name, length in LENGTHS.items()
        if length >= ROWS_OF_CYCLE * step and span >= FEWEST_CYCLES * length
    )


def calendar_size(cycles: tuple[str, ...]) -> int:
    """The number of columns of `calendar_columns`."""
    return sum(2 * HARMONICS[name] for name in cycles)


def calendar_columns(times: Array, cycles: tuple[str, ...], axis: TimeAxis) -> Array:
    """Columns [n, size] of moments in seconds since 1970, on the clock of the stamps."""
    clock = np.asarray(times, np.float64) + zone_offset(axis.zone)
    columns: list[Array] = []
    for name in cycles:
        phase = _year_shares(clock) if name == "year" else _shares(clock, name)
        for k in range(1, HARMONICS[name] + 1):
            columns += [np.sin(2 * np.pi * k * phase), np.cos(2 * np.pi * k * phase)]
    return np.stack(columns, -1) if columns else np.zeros((len(clock), 0))


def _shares(clock: Array, name: str) -> Array:
    length = LENGTHS[name]
    shares: Array = ((clock - MONDAY) % length) / length
    return shares


def _year_shares(clock: Array) -> Array:
    """The share of each year that is over, leap years included."""
    days, places = np.unique(np.floor(clock / DAY), return_inverse=True)
    shares = np.array([_day_of_year(moment_of(float(day) * DAY)) for day in days])
    rest: Array = (clock % DAY) / LENGTHS["year"]
    return np.asarray(shares[places] + rest)


def _day_of_year(date: datetime.datetime) -> float:
    return (date.timetuple().tm_yday - 1) / 365.25
