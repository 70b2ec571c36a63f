"""How many rows a forecaster reads by default: enough for the seasons that its series show.

A season of m rows is shown if |y_t − y_{t−m}| of the training rows is smaller than over shorter
seasons.  It is one of the calendar (a day, a week), or is read off the changes over each lag.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from threefold.data.time_stamps import TimeAxis
from threefold.data.time_steps import DAY
from threefold.errors import setting
from threefold.tasks.stored import Array
from threefold.tasks.user_data.seasons import Stretches, naive_errors, season_of

LONGEST_CONTEXT, LONGEST_SEASONAL = 128, 448  # by default; if there is a season
LONGEST_LAG = 336  # with a third more, as long as the longest context
BETTER = 0.9  # a longer season must change by less than this share of a shorter one
DIP = 0.5  # of the largest change before it: a lag at or below it is a season
MOST_READ = 8000  # training rows in which seasons are sought


class ContextChoice(NamedTuple):
    """The rows that are read before a forecast, and why."""

    length: int
    reason: str
    note: str = ""  # of a season that does not fit


def default_context(
    rows: int, axis: TimeAxis | None, train: Sequence[Stretches] = ()
) -> ContextChoice:
    """Up to 128 rows; more if a season needs them that the time stamps or the series suggest.

    A third more than the season, because a linear start leaves a part of each context to learn
    from; if that does not fit, a seventh more for a season that the training rows show.
    """
    shown = shown_seasons(train, axis)
    chosen = _calendar_context(rows, axis)
    longest = max(shown, default=0)
    if chosen.length > longest:
        return chosen
    name = season_name(longest, axis)
    for length in (longest * 4 // 3, longest * 8 // 7):
        if length <= min(LONGEST_SEASONAL, rows // 6):
            return ContextChoice(length, f"the series repeats every {name}")
    note = (
        f"the series repeats every {name}, which does not fit in a context of {chosen.length} "
        f"rows; {setting('data.length', str(longest * 8 // 7))} reads a whole season"
    )
    return chosen._replace(note=note)


def _calendar_context(rows: int, axis: TimeAxis | None) -> ContextChoice:
    """What the number of rows and the time stamps alone suggest."""
    context, season = max(1, min(LONGEST_CONTEXT, rows // 20)), season_of(axis)
    for span in (7 * season if _within_a_day(axis) else 3 * season, 2 * season):
        length = span * 4 // 3
        if season > 1 and length <= min(LONGEST_SEASONAL, rows // 8):
            context = max(context, length)
            return ContextChoice(context, f"{span // season} seasons of {season} rows fit")
    default = "the default" if context == LONGEST_CONTEXT else "a twentieth of the rows"
    return ContextChoice(context, default)


def shown_seasons(train: Sequence[Stretches], axis: TimeAxis | None) -> list[int]:
    """The seasons, in rows, that the targets of the training rows repeat; the shortest first."""
    if not train:
        return []
    longest_part = max(train, key=lambda part: len(part.values))
    read = Stretches(
        longest_part.values[-MOST_READ:, :1],
        None if longest_part.stretch is None else longest_part.stretch[-MOST_READ:],
    )
    day = season_of(axis)
    first = _lag_of(read.values[:, 0])
    candidates = {first, day, 7 * day if _within_a_day(axis) else day}
    fitting = sorted(m for m in candidates if m > 1 and 4 * m <= len(read.values))
    errors = naive_errors([read], fitting)
    shown: list[int] = []
    for season in fitting:
        error = errors.get(str(season), [np.inf])[0]
        rival = min((errors[str(m)][0] for m in shown), default=None)
        if rival is None:
            repeats = season == first or error < BETTER * _typical_change(read)
        else:
            repeats = error < BETTER * rival
        if repeats and np.isfinite(error):
            shown.append(season)
    return shown


def _typical_change(read: Stretches) -> float:
    """The mean |y_t − y_s| of any two rows, about: the deviation of a normal law times 2/√π."""
    return float(np.nanstd(read.values)) * 2 / math.sqrt(math.pi)


def _lag_of(column: Array) -> int:
    """The lag m > 1 at which mean (y_t − y_{t−m})² falls deepest below what it was; 0: none does.

    Of lags about as good the shortest, because a season repeats at its multiples, too.
    """
    longest = min(LONGEST_LAG, len(column) // 4)
    change = np.array([_mean_square(column[m:] - column[:-m]) for m in range(1, longest + 1)])
    if len(change) < 3 or not np.isfinite(change).all():
        return 0
    inner = np.arange(1, len(change) - 1)
    dips = inner[(change[inner] <= change[inner - 1]) & (change[inner] <= change[inner + 1])]
    highest = np.maximum.accumulate(change)
    deep = dips[change[dips] <= DIP * highest[dips]]
    if not len(deep):
        return 0
    return int(deep[change[deep] <= change[deep].min() / BETTER][0]) + 1


def _mean_square(changes: Array) -> float:
    known = changes[np.isfinite(changes)]
    return float(np.square(known).mean()) if len(known) else np.nan


def season_name(season: int, axis: TimeAxis | None) -> str:
    """A season in words: 168 rows (a week)."""
    day, name = season_of(axis), ""
    if _within_a_day(axis):
        name = {day: " (a day)", 7 * day: " (a week)"}.get(season, "")
    elif season == day > 1:
        name = " (a week)" if season in (5, 7) else " (a year)"
    return f"{season:,} rows{name}"


def _within_a_day(axis: TimeAxis | None) -> bool:
    return axis is not None and not axis.months and axis.step < DAY and season_of(axis) > 1
