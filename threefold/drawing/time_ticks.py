"""An axis of time: ticks at whole minutes, hours, days, months or years."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from threefold.drawing.axes import Axis

EPOCH = datetime(1970, 1, 1)
MOST_TICKS = 6
MINUTE, HOUR, DAY = 60, 3600, 86_400
# Steps between ticks, and how the ticks are written; those of a day and longer begin at midnight.
SECOND_STEPS = (1, 5, 15, 30)
MINUTE_STEPS = (1, 5, 10, 15, 30)
HOUR_STEPS = (1, 2, 3, 6, 12)
DAY_STEPS = (1, 2, 7, 14)
MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200)


def time_axis(title: str, low: float, high: float) -> Axis:
    """The axis for moments from `low` to `high`, in seconds since 1970 as a clock showed them."""
    moments = next(_candidates(low, high))
    names = {(moment - EPOCH).total_seconds(): text for moment, text in moments}
    return Axis(title, "moment", at=tuple(names), names=names)


def _candidates(low: float, high: float) -> Iterator[list[tuple[datetime, str]]]:
    """Ticks of ever longer steps, from the first step that has few enough."""
    for step, form in (
        *((seconds, "%H:%M:%S") for seconds in SECOND_STEPS),
        *((MINUTE * minutes, "%H:%M") for minutes in MINUTE_STEPS),
        *((HOUR * hours, "%d %b %H:%M") for hours in HOUR_STEPS),
        *((DAY * days, "%d %b") for days in DAY_STEPS),
    ):
        if (high - low) / step <= MOST_TICKS - 1:
            first = math.ceil(low / step)
            ticks = [first * step + i * step for i in range(MOST_TICKS + 1)]
            moments = [EPOCH + timedelta(seconds=tick) for tick in ticks if tick <= high]
            if moments:
                yield [(moment, _written(moment, form)) for moment in moments]
    start, end = EPOCH + timedelta(seconds=low), EPOCH + timedelta(seconds=high)
    for months in MONTH_STEPS:
        begins = list(_month_begins(start, end, months))
        if len(begins) <= MOST_TICKS:
            form = "%Y" if months % 12 == 0 else "%b %Y"
            yield [(moment, _written(moment, form)) for moment in begins]
    yield [(start, _written(start, "%Y")), (end, _written(end, "%Y"))]


def _month_begins(start: datetime, end: datetime, months: int) -> Iterator[datetime]:
    """The first days of every n-th month, counted from the year 0."""
    number = -(-(12 * start.year + start.month - 1) // months) * months
    while number // 12 <= min(end.year, 9999):
        moment = datetime(number // 12, number % 12 + 1, 1)
        if start <= moment <= end:
            yield moment
        number += months


def _written(moment: datetime, form: str) -> str:
    text = moment.strftime(form)
    return text.lstrip("0") if form.startswith("%d") else text
