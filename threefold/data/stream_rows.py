"""Lines of a table, or objects of JSON lines, as elements of a stream.

    flow,temp,when              numbers     time                series    skipped
    1.5,20,2024-01-01 00:00     [1.5, 20]   2024-01-01 00:00    ""        False
    x,1e300,2024-01-01 01:00    [NaN, NaN]  2024-01-01 01:00    ""        False

A line that is not a row of the table (other columns, not UTF-8, not JSON) is `skipped`, unless
missing values are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np

from threefold.data.cells import (
    LARGEST_NUMBER,
    SIGN_NAMES,
    is_missing,
    label_of,
    number_of_one_cell,
    resembles_number,
    shown,
    text_of,
    why_not_a_number,
)
from threefold.data.preprocessing.categories import unseen_note
from threefold.data.readers import UTF_16_MARKS
from threefold.data.row_times import RowTimes
from threefold.data.stream_encoders import (
    Elements,
    Encoder,
    UnreadableError,
    complete_lines,
)
from threefold.data.stream_lines import (
    CANDIDATE_SEPARATORS,
    JSON_LINES,
    BadLineError,
    cell_at,
    decoded_line,
    missing_columns,
    split_line,
)
from threefold.errors import ThreefoldError, nearest, option


def row_type(size: int) -> np.dtype[Any]:
    """The record of a row with `size` numbers, which are NaN where they are missing."""
    return np.dtype(
        [("numbers", np.float64, (size,)), ("time", object), ("series", object), ("skipped", bool)]
    )


@dataclass(frozen=True)
class RowLayout:
    """Which columns of a table are read.

    names: of the numbers, in the model's order; `named` if a header must have them.
    limits: lowest and highest believed number of each column; others are missing.
    refuses: missing numbers are errors.  columns: those of the table to read instead of `names`,
    by name or number from 1.  header: None if the first line shows it.  categories: the known ones
    of columns that hold no numbers; their codes begin at 1, and an unknown one is 0.  decimal: the
    sign that training was told or shown; other signs then separate thousands.
    """

    names: tuple[str, ...]
    named: bool = False
    time: str | None = None
    series: str | None = None
    limits: tuple[tuple[float, float], ...] = ()
    refuses: bool = True
    columns: tuple[str, ...] | None = None
    header: bool | None = None
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    decimal: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None and len(self.columns) != len(self.names):
            raise ThreefoldError(
                f"{len(self.columns)} columns ({', '.join(self.columns)}); the model reads "
                f"{len(self.names)} numbers per element"
                + (f": {', '.join(self.names)}" if self.named else "")
            )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names that a header must have."""
        numbers = self.names if self.named and self.columns is None else ()
        return (*numbers, *filter(None, (self.time, self.series)))


class RowEncoder(Encoder):
    """Lines of a table, one element each; see `row_type`."""

    line_by_line = True

    def __init__(self, layout: RowLayout, times: RowTimes | None = None) -> None:
        self.layout, self.times = layout, times
        self.type = row_type(len(layout.names))
        self.limits = layout.limits or ((-LARGEST_NUMBER, LARGEST_NUMBER),) * len(layout.names)
        self.separator = ""  # of the cells; JSON_LINES for objects
        self.cells = 0  # of each line
        self.places: list[Any] = []  # of the numbers, the time and the series: index or JSON name
        self.expects_header = True
        self.ends_in_return = False  # lines end in a carriage return alone
        self.ignored: list[str] = []  # columns that are not read
        self.line = 0  # of the input, the last one that was read
        # By column: how many cells had an unknown category, and the line and cell of the first.
        self.unseen: dict[str, tuple[int, int, str]] = {}
        self.unreadable: tuple[int, str] | None = None  # line of the first odd cell, and why

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        data = self._with_line_feeds(data)
        used = complete_lines(data, final)
        rows: list[tuple[Any, ...]] = []
        places: list[int] = []
        at = 0
        for line in BytesIO(data[:used]):
            self.line += 1
            row = self._element(line, at)
            if row is not None:
                rows.append(row)
                places.append(at)
            at += len(line)
        if self.times is not None and rows:
            rows = self._new_rows(self.times, rows, places)
        return np.array(rows, dtype=self.type), used

    def _with_line_feeds(self, data: bytes) -> bytes:
        """The same number of bytes, with a line feed where old Macs wrote a carriage return."""
        if self.expects_header:  # at the beginning of an input
            if data.startswith(UTF_16_MARKS):
                what = "begins as UTF-16 text; a stream is read as UTF-8, so convert it before"
                raise UnreadableError(0, f"{what}: iconv -f UTF-16 -t UTF-8")
            self.ends_in_return = re.match(rb"[^\r\n]*\r[^\n]", data) is not None
        return data.replace(b"\r", b"\n") if self.ends_in_return else data

    def _new_rows(
        self, times: RowTimes, rows: Sequence[tuple[Any, ...]], places: Sequence[int]
    ) -> list[tuple[Any, ...]]:
        """The rows without those that were read before; their times are checked."""
        at, new = places[0], []
        try:
            times.choose_format([time for _, time, _, _ in rows])
            for place, row in zip(places, rows, strict=True):
                at = place
                numbers, time, series, skipped = row
                if skipped or not times.was_read(series, time, numbers):
                    new.append(row)
                    if not skipped:
                        times.check_step(series, time)
        except ThreefoldError as error:
            raise UnreadableError(at, str(error)) from error
        return new

    def settings(self) -> dict[str, Any]:
        names = (
            "separator",
            "cells",
            "places",
            "expects_header",
            "ends_in_return",
            "ignored",
            "line",
        )
        times = {} if self.times is None else {"times": self.times.state()}
        told = {"unseen": dict(self.unseen), "unreadable": self.unreadable}
        return {name: getattr(self, name) for name in names} | times | told

    def restore(self, settings: dict[str, Any]) -> None:
        times = settings.get("times")
        if self.times is not None and times is not None:
            self.times.restore(times)
        for name in settings.keys() - {"times"}:
            setattr(self, name, settings[name])

    def restart(self) -> None:
        """Expect a header, or more lines with the columns so far."""
        self.expects_header = True
        self.line, self.unseen, self.unreadable = 0, {}, None
        if self.times is not None:
            self.times.restart()

    def notes(self, name: str) -> list[str]:
        """What is to be told of the cells and rows of an input with this name."""
        told = [
            unseen_note(column, self.layout.categories[column], count, first, f"{name}:{line}")
            for column, (count, line, first) in self.unseen.items()
        ]
        if self.unreadable is not None:
            line, what = self.unreadable
            told.append(f"the first cell that is not a usable number is in {name}:{line}: {what}")
        return told if self.times is None else [*told, *self.times.notes()]

    def _element(self, data: bytes, at: int) -> tuple[Any, ...] | None:
        """The record of a line; None for an empty line and for the header."""
        try:
            line = decoded_line(data)
            if not line:
                return None
            if self.expects_header:
                return self._first_line(line)
            return self._row(split_line(line, self.separator))
        except _BadCellError as error:
            raise UnreadableError(at, str(error)) from error
        except BadLineError as error:
            if self.layout.refuses or self.expects_header:
                raise UnreadableError(at, str(error)) from error
            return (np.full(len(self.layout.names), np.nan), "", "", True)

    def _first_line(self, line: str) -> tuple[Any, ...] | None:
        """Choose the columns; the record of the line, unless it is a header."""
        separator = JSON_LINES
        if not line.startswith(JSON_LINES):
            separator = next((sign for sign in CANDIDATE_SEPARATORS if sign in line), ",")
        before, self.separator = self.separator, separator
        cells = split_line(line, self.separator)
        if isinstance(cells, Mapping):
            self._choose_keys(cells)
        elif self._is_header(cells):
            self._choose_by_name(cells)
            self.expects_header = False
            return None
        elif not self.places:
            self._choose_by_number(cells)
        elif separator != before or len(cells) != self.cells:
            raise BadLineError(
                f"{len(cells)} cells, but the rows so far had {self.cells}; begin with the line of "
                f"names {', '.join(self.layout.wanted)}"
            )
        self.expects_header = False
        return self._row(cells)

    def _is_header(self, cells: Sequence[str]) -> bool:
        layout = self.layout
        if layout.header is False and layout.columns is None:
            return False
        if any(name in cells for name in layout.wanted):
            return True
        if layout.named and layout.columns is None:
            if self.places:
                return False
            raise BadLineError(missing_columns(layout.wanted, layout.wanted, cells))
        return not all(resembles_number(cell) or is_missing(cell) for cell in cells)

    def _choose_by_name(self, cells: Sequence[str]) -> None:
        layout = self.layout
        twice = next((name for name in cells if name and cells.count(name) > 1), None)
        if twice is not None:
            raise BadLineError(f"two columns have the same name, {twice!r}: {', '.join(cells)}")
        missing = [name for name in layout.wanted if name not in cells]
        if missing:
            raise BadLineError(missing_columns(missing, layout.wanted, cells))
        names = {name: index for index, name in enumerate(cells)}
        numbers = self._numbers_in(cells, names)
        extra = [None if name is None else names[name] for name in (layout.time, layout.series)]
        self.places, self.cells = [*numbers, *extra], len(cells)
        self.ignored = [name for i, name in enumerate(cells) if i not in self.places]

    def _choose_by_number(self, cells: Sequence[str]) -> None:
        """The columns of a table without names."""
        layout = self.layout
        if layout.time or layout.series:
            names = {f"c{i}": i - 1 for i in range(1, len(cells) + 1)}
            missing = [name for name in layout.wanted if name not in names]
            if missing:
                raise BadLineError(missing_columns(missing, layout.wanted, cells))
            extra = [None if name is None else names[name] for name in (layout.time, layout.series)]
        else:
            extra = [None, None]
        numbered = {f"c{i}": i - 1 for i in range(1, len(cells) + 1)} if layout.named else {}
        self.places, self.cells = [*self._numbers_in(cells, numbered), *extra], len(cells)

    def _numbers_in(self, cells: Sequence[str], names: Mapping[str, int]) -> list[int]:
        layout = self.layout
        wanted = layout.columns or (layout.names if layout.named else None)
        if wanted is None:
            if len(cells) != len(layout.names):
                raise BadLineError(
                    f"{len(cells)} columns ({', '.join(cells[:6])}); the model reads "
                    f"{len(layout.names)} numbers per element; choose columns"
                )
            return list(range(len(cells)))
        numbers = {str(index + 1): index for index in range(len(cells))}
        for column in wanted:
            if column not in names and column not in numbers:
                raise BadLineError(f"no column {column!r}; {nearest(column, names or numbers)}")
        return [names.get(column, numbers.get(column, 0)) for column in wanted]

    def _choose_keys(self, row: Mapping[str, Any]) -> None:
        layout = self.layout
        names = layout.columns or layout.names
        if not layout.named and layout.columns is None:
            names = tuple(row)
            if len(names) != len(layout.names):
                raise BadLineError(
                    f"{len(names)} names ({', '.join(names[:6])}); the model reads "
                    f"{len(layout.names)} numbers per element; choose columns"
                )
        wanted = [*names, *filter(None, (layout.time, layout.series))]
        missing = [name for name in wanted if name not in row]
        if missing:
            raise BadLineError(missing_columns(missing, wanted, list(row)))
        self.places = [*names, layout.time, layout.series]
        self.ignored = [name for name in row if name not in self.places]

    def _row(self, cells: Any) -> tuple[Any, ...]:
        if isinstance(cells, list) and len(cells) != self.cells:
            raise BadLineError(f"{len(cells)} cells, expected {self.cells}")
        *numbers, time, series = self.places
        values = [self._number(i, cell_at(cells, place)) for i, place in enumerate(numbers)]
        when, name = cell_at(cells, time), cell_at(cells, series)
        if series is not None and is_missing(name):
            raise BadLineError(f"{self.layout.series}, the name of the series, is missing")
        return (
            values,
            "" if when is None else text_of(when),
            "" if series is None else label_of(name),
            False,
        )

    def _code(self, name: str, cell: Any) -> float:
        """The code of a category."""
        known = self.layout.categories[name]
        if is_missing(cell) and not self.layout.refuses:
            return math.nan
        if self.layout.refuses and label_of(cell) not in known:
            raise _BadCellError(
                f"column {name} is {shown(cell)}; the model was trained on {', '.join(known)}; "
                f"{option('missing', 'carry')} reads others as none of them"
            )
        if label_of(cell) in known:
            return 1.0 + known.index(label_of(cell))
        count, line, first = self.unseen.get(name, (0, self.line, shown(cell)))
        self.unseen[name] = (count + 1, line, first)
        return 0.0

    def _number(self, column: int, cell: Any) -> float:
        if self.layout.names[column] in self.layout.categories:
            return self._code(self.layout.names[column], cell)
        decimal, comma = self.layout.decimal, self.separator == ";"
        number = number_of_one_cell(cell, decimal, comma=comma)
        low, high = self.limits[column]
        if number is not None and low <= number <= high:
            return number
        if not self.layout.refuses and (is_missing(cell) or self.unreadable is not None):
            return math.nan
        name = self.layout.names[column] if self.layout.named else self.places[column] + 1
        why = f"far outside the training data, expected {low:.4g} to {high:.4g}"
        if number is None:
            why = "expected a finite number"
            if resembles_number(cell) and not is_missing(cell):
                why = _why_not_read(cell, decimal)
        what = f"column {name} is {shown(cell)}; {why}"
        if self.layout.refuses:
            raise _BadCellError(f"{what}; {option('missing', 'carry')} repeats the last value")
        self.unreadable = (self.line, what)
        return math.nan


class _BadCellError(Exception):
    """A number that is missing, and must not be."""


def _why_not_read(cell: Any, decimal: str | None) -> str:
    """Why what looks like a number is not read as one."""
    if decimal is None:
        return why_not_a_number(cell, of_model=True)
    sign, other = SIGN_NAMES[decimal], SIGN_NAMES["," if decimal == "." else "."]
    trained = f"the model was trained on numbers with a decimal {sign}"
    number = number_of_one_cell(cell, "," if decimal == "." else ".")
    if number is None:
        return trained
    written = f"{number:.12g}".replace(".", decimal)
    return (
        f"{trained}, and a stream reads only these, not a decimal {other}; write it as {written}, "
        "and all others so, or give the whole table to predict or forecast, which read both"
    )
