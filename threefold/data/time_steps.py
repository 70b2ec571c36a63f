"""Steps of time such as 15 minutes or a month, and the means of a series over each of them."""

from __future__ import annotations

import datetime
import math
import re
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
    numbers = np.fromiter((bin_number(seconds, length) for seconds in times.tolist()), np.int64)
    first = int(numbers.min())
    index, count = numbers - first, int(numbers.max()) - first + 1
    if count > MOST_BINS:
        raise ThreefoldError(
            f"{count} steps of {step}: expected at most {MOST_BINS}; a longer step"
        )
    columns = values.reshape(len(values), -1)
    means = np.stack([_bin_means(index, column, count) for column in columns.T], 1)
    begins = np.fromiter((bin_begin(first + i, length) for i in range(count)), np.float64, count)
    return begins, means.reshape(count, *values.shape[1:])


def bin_number(seconds: float, step: TimeStep) -> int:
    """The number of the bin that contains a moment."""
    if not step.months:
        return math.floor(seconds / step.seconds)
    date = moment_of(seconds)
    return (12 * date.year + date.month - 1) // step.months


def bin_begin(number: int, step: TimeStep) -> float:
    """The first moment of a bin."""
    if not step.months:
        return number * step.seconds
    months = number * step.months
    date = datetime.datetime(months // 12, months % 12 + 1, 1, tzinfo=datetime.UTC)
    return (date - EPOCH).total_seconds()


def _bin_means(index: NDArray[np.int64], values: Floats, count: int) -> Floats:
    real = ~np.isnan(values)
    sums = np.bincount(index[real], values[real], count)
    counts = np.bincount(index[real], minlength=count)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
