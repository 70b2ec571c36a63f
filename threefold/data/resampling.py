"""Rows of a table at equal steps of time: the means of what falls into each step."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.data.time_formats import EPOCH, moment_of
from threefold.errors import ThreefoldError

Floats = NDArray[np.float64]

DAY = 86_400.0
MOST_BINS = 100_000_000
UNIT_NAMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY),
}
MONTH_NAMES = {"month": 1, "months": 1, "quarter": 3, "quarters": 3, "year": 12, "years": 12}


class TimeStep(NamedTuple):
    """A length of time: seconds, or months."""

    seconds: float
    months: int = 0


def parse_step(text: str | float) -> TimeStep:
    """A step such as "15min", "1 hour", "1 month", or a number of seconds."""
    match = re.fullmatch(r"\s*([0-9.]*)\s*([a-z]*)\s*", str(text).lower())
    number, unit = (match[1] or "1", match[2] or "s") if match and match[0].strip() else ("", "")
    if unit in MONTH_NAMES and number.isdigit() and int(number):
        return TimeStep(0.0, int(number) * MONTH_NAMES[unit])
    if unit in UNIT_NAMES and re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", number) and float(number):
        return TimeStep(float(number) * UNIT_NAMES[unit])
    raise ThreefoldError(f"{text!r} is not a step; expected e.g. 30s, 15min, 1h, 1d, 1 month")


def resample(times: Floats, values: Floats, step: str | float) -> tuple[Floats, Floats]:
    """The begins of bins of one step, and the means of the values [rows, …] in each.

    Cells that are NaN do not count; a bin without a value is NaN. Bins begin at whole steps, such
    as full hours, and the last one may be incomplete.
    """
    length = parse_step(step)
    index, start = _bins(times, length)
    count = int(index.max()) + 1
    if count > MOST_BINS:
        raise ThreefoldError(
            f"{count} steps of {step}: expected at most {MOST_BINS}; a longer step"
        )
    columns = values.reshape(len(values), -1)
    means = np.stack([_bin_means(index, column, count) for column in columns.T], 1)
    return start(count), means.reshape(count, *values.shape[1:])


def _bins(times: Floats, step: TimeStep) -> tuple[NDArray[np.int64], Callable[[int], Floats]]:
    """The bin of each time, and a function from a number of bins to where they begin."""
    if not step.months:
        index = np.floor(times / step.seconds).astype(np.int64)
        first = int(index.min())
        return index - first, lambda count: np.arange(first, first + count) * float(step.seconds)
    dates = [moment_of(seconds) for seconds in times]
    index = np.array([(12 * date.year + date.month - 1) // step.months for date in dates])
    first = int(index.min())
    return index - first, lambda count: np.array(
        [_month_start((first + i) * step.months) for i in range(count)]
    )


def _month_start(index: int) -> float:
    date = datetime.datetime(index // 12, index % 12 + 1, 1, tzinfo=datetime.UTC)
    return (date - EPOCH).total_seconds()


def _bin_means(index: NDArray[np.int64], values: Floats, count: int) -> Floats:
    real = ~np.isnan(values)
    sums = np.bincount(index[real], values[real], count)
    counts = np.bincount(index[real], minlength=count)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
