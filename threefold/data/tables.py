"""Tables from files, data frames and arrays: columns of cells, each with its line in the file.

table = read_table("sensors.csv")      x.csv, x.tsv.gz, x.JSONL, x.parquet, x.xlsx, x.npy
table = read_table(frame)              pandas, polars, {"name": cells}, array [rows, columns]
table.numbers("load")                  float64, NaN where a cell is missing
sensors.csv:17: load is '1,001'; a thousands separator or a decimal comma? …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.data.cells import (
    decimal_sign,
    is_blank,
    is_missing,
    label_of,
    resembles_number,
    shown,
    shows_groups,
    split_unit,
    text_of,
    usable_number,
    why_not_a_number,
)
from threefold.data.readers import file_error
from threefold.data.table_formats import (
    Rows,
    array_rows,
    columns_as_rows,
    plain_cells,
    read_rows,
    read_separated,
)
from threefold.errors import AmbiguousError, ThreefoldError, nearest, setting

UNITS = "%$€£"
ROWS_BELOW = 200  # of which the first line is compared with


class Labelled(NamedTuple):
    """Texts and their labels."""

    texts: list[str]
    labels: list[str]


class Table:
    """Cells by column, and the line number of each row.

    name: the file, for messages.  place: whether rows are lines of a text or rows.  notes: what a
    user should know about how the table was read.  folder: where relative paths in cells begin.
    """

    def __init__(
        self,
        name: str,
        cells: dict[str, list[Any]],
        line_numbers: list[int],
        *,
        place: str = "line",
        decimal: str | None = None,
        usual_decimal: str | None = None,
        notes: Sequence[str] = (),
        folder: Path = Path(),
    ) -> None:
        self.name = name
        self.cells = cells
        self.line_numbers = line_numbers
        self.place = place
        self.decimal = decimal
        self.usual_decimal = usual_decimal  # where cells do not show it
        self.of_model = False  # whether a trained model reads it: no settings can be changed
        self.notes = list(notes)
        self.folder = folder
        self._decimals: dict[str, str | None] | None = None

    def __len__(self) -> int:
        return len(self.line_numbers)

    def error(self, line: int | None, what: str) -> ThreefoldError:
        """An error that begins with the table and the line or row."""
        return ThreefoldError(f"{self.position(line)}: {what}")

    def position(self, line: int | None) -> str:
        """Table and line for a message: x.csv:17, or DataFrame, row 17."""
        if line is None:
            return self.name
        return f"{self.name}:{line}" if self.place == "line" else f"{self.name}, row {line}"

    def column(self, name: str) -> list[Any]:
        """The cells of a column."""
        if name not in self.cells:
            raise self.error(None, f"no column {name!r}; {nearest(name, self.cells)}")
        return self.cells[name]

    def rows(self, order: Sequence[int]) -> Table:
        """A table of some of the rows, in the given order."""
        cells = {name: [column[i] for i in order] for name, column in self.cells.items()}
        lines = [self.line_numbers[i] for i in order]
        how = {"place": self.place, "decimal": self.decimal, "folder": self.folder}
        how["usual_decimal"] = self.usual_decimal
        chosen = Table(self.name, cells, lines, notes=self.notes, **how)  # type: ignore[arg-type]
        chosen.of_model = self.of_model
        return chosen

    def texts(self, name: str, *, allow_empty: bool = False) -> list[str]:
        """A column of texts; NA, null and - are texts, and an empty cell may be allowed."""
        cells = self.column(name) if allow_empty else self._complete(name, is_blank)
        return ["" if is_blank(cell) else text_of(cell) for cell in cells]

    def paths(self, name: str) -> list[Path]:
        """The files that a column names, from the folder of the table on; all must exist."""
        files = [self.folder / text.strip() for text in self.texts(name)]
        for line, file in zip(self.line_numbers, files, strict=True):
            if not file.is_file():
                raise self.error(line, f"{name} is {str(file)!r}, but there is no such file")
        return files

    def labels(self, name: str, hint: str = "") -> list[str]:
        """A column of class names (`cells.label_of`), none of which may be missing."""
        return [label_of(cell) for cell in self._complete(name, is_missing, hint)]

    def _complete(self, name: str, is_absent: Callable[[Any], bool], hint: str = "") -> list[Any]:
        cells = self.column(name)
        for line, cell in zip(self.line_numbers, cells, strict=True):
            if is_absent(cell):
                raise self.error(line, f"{name} is missing{hint}")
        return cells

    def numbers(self, name: str, decimal: str | None = None) -> NDArray[np.float64]:
        """A column of numbers, NaN where a cell is missing; other cells are refused."""
        cells, sign = self.column(name), decimal or self.decimal_of(name)
        grouped = bool(decimal) or self.is_grouped(name)
        self._check_units(name, cells)
        numbers = np.full(len(cells), np.nan)
        for i, cell in enumerate(cells):
            number = usable_number(cell, sign, grouped=grouped)
            if number is not None:
                numbers[i] = number
            elif not is_missing(cell):
                why = why_not_a_number(cell, sign, of_model=self.of_model)
                raise self.error(self.line_numbers[i], f"{name} is {shown(cell)}; {why}")
        return numbers

    def _check_units(self, name: str, cells: Sequence[Any]) -> None:
        """Refuse cells with different units; the one that all have is told."""
        if not any(isinstance(cell, str) and cell.strip(UNITS) != cell for cell in cells):
            return
        units: dict[str, tuple[int, Any]] = {}
        for line, cell in zip(self.line_numbers, cells, strict=True):
            if not is_missing(cell):
                unit = split_unit(cell.strip())[1] if isinstance(cell, str) else ""
                units.setdefault(unit, (line, cell))
        if len(units) > 1:
            (_, first), (line, other) = list(units.values())[:2]
            what = f"{name} is {shown(other)}, but {shown(first)} above: expected one unit"
            raise self.error(line, what)
        note = f"{name}: the unit {next(iter(units), '')} is not part of the numbers"
        if note not in self.notes:
            self.notes.append(note)

    def complete_numbers(self, name: str, decimal: str | None = None) -> NDArray[np.float64]:
        """A column of numbers, none of which may be missing."""
        numbers = self.numbers(name, decimal)
        missing = np.flatnonzero(np.isnan(numbers))
        if len(missing):
            cell, line = self.cells[name][missing[0]], self.line_numbers[missing[0]]
            raise self.error(line, f"{name} is {shown(cell)}; expected a finite number")
        return numbers

    def shown_decimal(self) -> str | None:
        """The decimal sign, if thousands are separated and all columns agree; None otherwise."""
        signs = {self.decimal_of(name) for name in self.cells if self.is_grouped(name)}
        others = {decimal_sign(cells) for cells in self.cells.values()} - {None}
        return signs.pop() if len(signs) == 1 and others <= signs else None

    def is_grouped(self, name: str) -> bool:
        """Whether commas or points separate thousands: the decimal sign is told, or cells show."""
        sign = self.decimal_of(name)
        is_told = self.decimal is not None or self.usual_decimal == sign
        return is_told or shows_groups(self.cells[name], sign)

    def decimal_of(self, name: str) -> str:
        """The decimal sign of a column: as told, as its cells show, or as other columns show."""
        if self.decimal:
            return self.decimal
        if self._decimals is None:
            self._decimals = {key: decimal_sign(cells) for key, cells in self.cells.items()}
        sign = self._decimals[name]
        commas = "," in self._decimals.values() and "." not in self._decimals.values()
        return sign or self.usual_decimal or ("," if commas else ".")


def read_table(
    source: Any,
    *,
    header: bool | None = None,
    decimal: str | None = None,
    usual_decimal: str | None = None,
    columns: Sequence[str] | None = None,
    of_model: bool = False,
) -> Table:
    """Read a table from a file, bytes, a pandas or polars DataFrame, a mapping or an array.

    header: whether the first line of a file has the names of the columns; None: if that is clear.
    decimal: "." or ","; None: as the cells of each column show.  usual_decimal: that of columns
    whose cells do not show it.  columns: these must exist.  of_model: a trained model reads the
    table, so that no message proposes a setting.
    """
    if decimal not in (None, ".", ","):
        raise ThreefoldError(f'decimal is {decimal!r}; expected "." or ","')
    name, rows = _rows_of(source)
    if rows.names is None:
        _name_columns(name, rows, header, columns)
    table = _as_table(name, rows, decimal)
    table.usual_decimal, table.of_model = usual_decimal, of_model
    if isinstance(source, str | Path):
        table.folder = Path(source).parent
    for column in columns or ():
        table.column(column)
    if not len(table):
        names = ", ".join(table.cells)
        raise table.error(None, f"no rows, only names of columns ({names}); expected rows below")
    return table


def read_labelled(path: Path, text: str = "text", label: str = "label") -> Labelled:
    """The texts and labels of a table; none may be missing."""
    table = read_table(path, columns=(text, label))
    return Labelled(table.texts(text), table.labels(label))


# --------------------------------------------------------------------------------- sources


def _rows_of(source: Any) -> tuple[str, Rows]:
    """The name of a source for messages, and its rows."""
    if isinstance(source, str | Path):
        path = Path(source)
        return str(file_error(path, None, "")).removesuffix(": "), read_rows(path)
    if isinstance(source, bytes):  # what a pipe brought
        return "input", read_separated(Path("input"), BytesIO(source))
    kind = type(source).__name__
    if isinstance(source, Mapping):
        return kind, _mapping_rows(kind, source)
    if hasattr(source, "iloc") and hasattr(source, "columns"):
        return kind, _pandas_rows(source)
    if hasattr(source, "get_column") and hasattr(source, "columns"):
        cells = [source.get_column(name).to_list() for name in source.columns]
        return kind, columns_as_rows(list(source.columns), cells)
    if isinstance(source, np.ndarray) and source.ndim == 2:
        return kind, array_rows(source)
    shape = f" of shape {tuple(source.shape)}" if hasattr(source, "shape") else ""
    raise ThreefoldError(
        f"a table cannot be read from a {kind}{shape}; expected a path, a pandas or polars "
        "DataFrame, a mapping of names to cells, or an array of rows × columns"
    )


def _mapping_rows(kind: str, source: Mapping[Any, Any]) -> Rows:
    columns = {str(name): plain_cells(cells) for name, cells in source.items()}
    lengths = {name: len(cells) for name, cells in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ThreefoldError(f"{kind}: expected columns of equal length, got {listed}")
    return columns_as_rows(list(columns), list(columns.values()))


def _pandas_rows(frame: Any) -> Rows:
    """Rows of a pandas DataFrame; an index of times is a column, any other is not used."""
    names = [str(name) for name in frame.columns]
    columns = [_pandas_cells(frame.iloc[:, i]) for i in range(len(names))]
    index, notes = frame.index, []
    if type(index).__name__ == "PeriodIndex":
        index = index.to_timestamp()
    if type(index).__name__ == "DatetimeIndex":
        names.insert(0, str(index.name or "time"))
        columns.insert(0, _pandas_cells(index))
    elif type(index).__name__ != "RangeIndex":
        notes.append("the index of the DataFrame is not used; reset_index() makes it a column")
    rows = columns_as_rows(names, columns)
    rows.notes += notes
    return rows


def _pandas_cells(series: Any) -> list[Any]:
    missing, cells = series.isna().tolist(), series.tolist()
    cells = [None if gone else cell for cell, gone in zip(cells, missing, strict=True)]
    return [_plain_time(cell) for cell in plain_cells(cells)]


def _plain_time(cell: Any) -> Any:
    return cell.to_pydatetime(warn=False) if hasattr(cell, "to_pydatetime") else cell


# ---------------------------------------------------------------------------------- header


def _name_columns(
    name: str, rows: Rows, header: bool | None, columns: Sequence[str] | None
) -> None:
    """Take the names from the first row, or number the columns."""
    if not rows.rows:
        raise ThreefoldError(f"{name}: the file is empty")
    first = ["" if cell is None else text_of(cell).strip() for cell in rows.rows[0]]
    if header is None and not (columns and set(columns) <= set(first)):
        reason = _may_be_data(rows.rows)
        if reason:
            what = f"{name}: is the first line a header or data? {reason}"
            raise AmbiguousError(what, header_options())
    if header is False:
        rows.names = [f"c{i}" for i in range(1, len(first) + 1)]
        return
    rows.names = [cell or f"c{i}" for i, cell in enumerate(first, 1)]
    for i, cell in enumerate(first, 1):
        if not cell:
            rows.notes.append(f"column {i} has no name in the first line; it is called c{i}")
    del rows.rows[0], rows.numbers[0]


def header_options() -> list[str]:
    """How to say whether the first line has the names of the columns."""
    return [setting("data.header", value) for value in ("true", "false")]


def _may_be_data(rows: Sequence[Sequence[Any]]) -> str | None:
    """Why the first row may be data: it has a number above numbers, or a text of a later row."""
    for i, cell in enumerate(rows[0]):
        below = [row[i] for row in rows[1 : ROWS_BELOW + 1] if not is_missing(row[i])]
        if is_missing(cell) or not below:
            continue
        if _is_value(cell) and sum(map(_is_value, below)) > len(below) / 2:
            return f"It has {shown(cell)} in column {i + 1}, like the lines below"
        if label_of(cell) in map(label_of, below):
            return f"{shown(cell)} in column {i + 1} occurs below, too"
    return None


def _is_value(cell: Any) -> bool:
    """Whether a cell is more likely a value than a name: a number or a date."""
    if not isinstance(cell, str):
        return True
    text = cell.strip()
    return resembles_number(text) or (text[:1].isdigit() and text[-1:] in "0123456789Z")


def _as_table(name: str, rows: Rows, decimal: str | None) -> Table:
    assert rows.names is not None  # `_name_columns` gives them where the format does not
    twice = [column for column, count in Counter(rows.names).items() if count > 1]
    if twice:
        what = f"two columns are called {twice[0]!r} ({', '.join(rows.names)}); rename one of them"
        raise ThreefoldError(f"{name}{':1' if rows.place == 'line' else ''}: {what}")
    columns = zip(*rows.rows, strict=True) if rows.rows else ((),) * len(rows.names)
    cells = {column: list(values) for column, values in zip(rows.names, columns, strict=True)}
    return Table(name, cells, rows.numbers, place=rows.place, decimal=decimal, notes=rows.notes)
