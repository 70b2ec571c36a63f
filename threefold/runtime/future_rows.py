"""Rows behind the last value of the targets: what is known of the future.

    time         flow   temperature   holiday
    2024-05-01    3.1            17         0
    2024-05-02    2.9            18         1     the history ends here
    2024-05-03                   15         0     known, of the first forecast row

A model that was trained with such inputs needs them for every row that it forecasts: below the
history, with empty targets, or as a table of their own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.numbers import ABSURD
from threefold.data.tables import Table
from threefold.data.time_stamps import describe_times
from threefold.errors import ThreefoldError, option
from threefold.tasks.user_data.series_windows import TimeSeries

Array = NDArray[Any]
SAME_TIME = 0.5  # of a step: how far a stamp may be from where it is expected


def join_future(table: Table, future: Table, preprocessing: Preprocessing) -> Table:
    """The history with the rows of another table behind it; what it has already is left out."""
    roles, known = preprocessing.roles, preprocessing.known_future
    if not known:
        raise ThreefoldError(
            "the model was trained without known future inputs, so it cannot use those of "
            f"{future.name}; train with {option('known_future', 'COLUMNS')}"
        )
    needed = [name for name in (*known, roles.time, roles.series) if name]
    lacking = [name for name in needed if name not in future.cells]
    if lacking:
        raise ThreefoldError(
            f"{future.name}: the column {', '.join(lacking)} is missing; future rows need "
            f"{', '.join(needed)}"
        )
    if roles.time is not None:
        future = future.rows(_newer(table, future, preprocessing))
    cells = {
        name: [*column, *(future.cells[name] if name in needed else [None] * len(future))]
        for name, column in table.cells.items()
    }
    lines = [*table.line_numbers, *future.line_numbers]
    how: dict[str, Any] = {"place": table.place, "decimal": table.decimal, "folder": table.folder}
    return Table(table.name, cells, lines, notes=[*table.notes, *future.notes], **how)


def _newer(table: Table, future: Table, preprocessing: Preprocessing) -> list[int]:
    """The rows of `future` that come after the history of their series."""
    roles, day_first = preprocessing.roles, preprocessing.day_first
    assert roles.time is not None
    before, times = (
        describe_times(part, roles.time, day_first=day_first).times for part in (table, future)
    )
    names = [
        [""] * len(part) if roles.series is None else part.labels(roles.series)
        for part in (table, future)
    ]
    last: dict[str, float] = {}
    for name, moment in zip(names[0], before.tolist(), strict=True):
        last[name] = max(moment, last.get(name, moment))
    rows = zip(names[1], times.tolist(), strict=True)
    return [i for i, (name, moment) in enumerate(rows) if moment > last.get(name, -np.inf)]


def split_future(
    preprocessing: Preprocessing, series: TimeSeries
) -> tuple[TimeSeries, TimeSeries | None]:
    """The rows up to the last target, and those behind it; None: the model needs none."""
    if not preprocessing.known_future:
        return series, None
    targets = len(preprocessing.roles.targets)
    known = np.flatnonzero(np.isfinite(series.values[:, :targets]).any(1))
    count = int(known[-1]) + 1 if len(known) else len(series.values)
    history = series.head_rows(count)
    values, times = series.values[count:], series.times
    return history, replace(series, values=values, times=None if times is None else times[count:])


def future_values(
    preprocessing: Preprocessing, history: TimeSeries, future: TimeSeries | None, steps: int
) -> Array:
    """Rows [whole horizons, columns] behind a history, in original units.

    The known columns are those of `future`, of which the first `steps` rows must be complete; all
    others repeat the last row, and so does what is behind the last future row.
    """
    horizon = preprocessing.horizon or 1
    rows = np.repeat(history.values[-1:], -(-steps // horizon) * horizon, 0)
    if future is None:
        return rows
    _check(preprocessing, history, future, steps)
    columns = _places(preprocessing)
    count = min(len(rows), len(future.values))
    rows[:count, columns] = future.values[:count, columns]
    for place in columns:  # beyond what was asked for, where anything may be missing
        given = rows[:count, place]
        known = np.flatnonzero(np.isfinite(given))
        rows[known[-1] + 1 :, place] = given[known[-1]]
        gaps = np.flatnonzero(~np.isfinite(given[: known[-1]]))
        rows[gaps, place] = given[known[np.searchsorted(known, gaps) - 1]]
    return rows


def _places(preprocessing: Preprocessing) -> list[int]:
    names = (*preprocessing.roles.targets, *preprocessing.roles.features)
    return [names.index(name) for name in preprocessing.known_future]


def _check(
    preprocessing: Preprocessing, history: TimeSeries, future: TimeSeries, steps: int
) -> None:
    """Refuse future rows that are missing, incomplete or at other times."""
    names, targets = preprocessing.known_future, ", ".join(preprocessing.roles.targets)
    prefix = f"series {history.name}: " if history.name else ""
    wanted = f"{', '.join(names)} of the {steps:,} forecast rows"
    how = (
        f"add them below the last row, with an empty {targets}, or give them as "
        f"{option('future', 'FILE')}"
    )
    if len(future.values) < steps:
        raise ThreefoldError(
            f"{prefix}the model needs {wanted}, and there are {len(future.values):,} rows after "
            f"the last value of {targets}; {how}"
        )
    scaled = preprocessing.inputs.steps[0].apply(future.values[:steps])
    unknown = ~(np.abs(scaled[:, _places(preprocessing)]) <= ABSURD)
    if unknown.any():
        row, column = np.argwhere(unknown)[0].tolist()
        raise ThreefoldError(
            f"{prefix}the model needs {wanted}, and {names[column]} has no usable number in the "
            f"{_ordinal(row + 1)} row after the last value of {targets}; fill it in"
        )
    if history.axis is None or future.times is None:
        return
    expected = [history.axis.seconds(step, after=history.last) for step in range(1, steps + 1)]
    length = abs(expected[0] - history.last)
    other = np.flatnonzero(np.abs(future.times[:steps] - expected) > SAME_TIME * length)
    if len(other):
        row = int(other[0])
        raise ThreefoldError(
            f"{prefix}the {_ordinal(row + 1)} row after the last value of {targets} should be at "
            f"{history.stamp(row + 1)}, but is at another time; give {wanted}, in steps as before"
        )


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"
