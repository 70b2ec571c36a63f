"""The formats of tables: CSV and its relatives, JSON lines, Parquet, Excel, numpy; any with .gz.

Each reader gives the rows with their numbers in the file, and the names of the columns where the
format has them; a first line that may be names or data is left to `tables.py`.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from threefold.data.cells import is_missing, resembles_number
from threefold.data.readers import (
    LONGEST_LINE,
    UTF_16_MARKS,
    file_error,
    lines_of,
    refuse_irregular,
)

COLUMN_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": ","}  # unless others fit
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
SEPARATORS = (",", ";", "\t", "|")
SNIFFED_ROWS = 50
TABLE_SUFFIXES = (".csv", ".tsv", ".tab", *JSON_LINES_SUFFIXES, ".parquet", ".xlsx", ".npy", ".npz")
INSTALL = 'pip install "threefold[tables]"'

# Files that are neither a table that can be read nor text, and what to do with them.
REFUSED_SUFFIXES = {
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz"), "an archive; unpack it first"),
    **dict.fromkeys(
        (".bz2", ".xz", ".zst", ".lz4", ".z"), "compressed; unpack it first, or compress with gzip"
    ),
    **dict.fromkeys(
        (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".rds", ".rdata"),
        "a pickle, which could run any code when read; save the data as Parquet or CSV",
    ),
    **dict.fromkeys((".xls", ".xlsm", ".xlsb", ".ods"), "a spreadsheet; save it as .xlsx or .csv"),
    **dict.fromkeys(
        (".feather", ".arrow", ".orc", ".avro", ".h5", ".hdf5", ".hdf", ".mat", ".sqlite", ".db",
         ".dta", ".sav", ".sas7bdat"),
        "a format that is not read; save it as Parquet or CSV",
    ),
    **dict.fromkeys((".pdf", ".doc", ".docx"), "a document; save its text as .txt"),
    ".json": "not one object per line; save it as JSON lines (.jsonl)",
}  # fmt: skip

# How the content of a file that is not text begins.
SIGNATURES = {
    b"PK\x03\x04": "a ZIP archive or an Excel file (.xlsx)",
    b"\xd0\xcf\x11\xe0": "an old Excel file (.xls)",
    b"\x1f\x8b": "compressed with gzip (.gz)",
    b"BZh": "compressed with bzip2 (.bz2)",
    b"\xfd7zXZ": "compressed with xz (.xz)",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard (.zst)",
    b"PAR1": "a Parquet file (.parquet)",
    b"\x93NUMPY": "a numpy array (.npy)",
    b"%PDF": "a PDF document",
    b"\x89PNG": "an image (.png)",
    b"RIFF": "a sound (.wav)",
}

# How the content of files that are not text must begin, by suffix, and what they are.
BINARY_TABLES = {
    ".parquet": (b"PAR1", "a Parquet file"),
    ".xlsx": (b"PK\x03\x04", "an Excel file"),
    ".npy": (b"\x93NUMPY", "a numpy array"),
    ".npz": (b"PK\x03\x04", "an archive of numpy arrays"),
}


@dataclass
class Rows:
    """Rows with their numbers in the file; `names` is None if the first row may hold them."""

    names: list[str] | None
    rows: list[list[Any]]
    numbers: list[int]
    place: str = "line"  # what a row is called in messages: a line of a text, or a row
    separator: str | None = None
    notes: list[str] = field(default_factory=list)


def table_suffix(path: Path) -> str:
    """The suffix that says the format, in lower case and without .gz: X.CSV.gz → .csv."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


def is_table(path: Path) -> bool:
    """Whether the name of a file says that it is a table."""
    return table_suffix(path) in TABLE_SUFFIXES


def refuse_unreadable(path: Path) -> None:
    """Refuse by name, or by content, what is neither text nor a table that can be read."""
    suffix = table_suffix(path)
    if suffix in REFUSED_SUFFIXES:
        raise file_error(path, None, f"{suffix} is {REFUSED_SUFFIXES[suffix]}")
    with open_table(path) as file:
        start = file.read(1 << 10)
    if not start:
        raise file_error(path, None, "the file is empty")
    if start.startswith(UTF_16_MARKS) and suffix not in TABLE_SUFFIXES:
        command = f"iconv -f UTF-16 -t UTF-8 {shlex.quote(str(path))} > NEW"
        raise file_error(path, None, f"UTF-16 text; save it as UTF-8, e.g. {command}")
    if suffix in BINARY_TABLES:
        _refuse_imitation(path, suffix, start)
        return
    for signature, what in SIGNATURES.items():
        if start.startswith(signature):
            raise file_error(path, None, f"the content is {what}, not text as {suffix!r} says")


def _refuse_imitation(path: Path, suffix: str, start: bytes) -> None:
    """Refuse a file whose content is not what its name says."""
    expected, name = BINARY_TABLES[suffix]
    if start.startswith(expected):
        return
    found = [what for signature, what in SIGNATURES.items() if start.startswith(signature)]
    if found:
        advice = f"the content is {found[0]}; rename it"
    elif b"\0" in start:
        advice = "it is damaged, or something else; write it again"
    else:
        advice = "it looks like text; if it is a table, rename it, e.g. to .csv"
    raise file_error(path, None, f"not {name}, although its name ends in {suffix}: {advice}")


@contextmanager
def open_table(path: Path) -> Iterator[IO[bytes]]:
    """A regular file for reading, unpacked if its name ends in .gz."""
    try:
        refuse_irregular(path)
        packed = path.name.lower().endswith(".gz")
        with gzip.open(path) if packed else path.open("rb") as file:
            yield file  # type: ignore[misc]  # GzipFile reads bytes as any other file
    except OSError as error:
        what = error.strerror or str(error)
        raise file_error(path, None, f"cannot be read ({what})") from error
    except (EOFError, zlib.error) as error:
        raise file_error(path, None, f"not a whole gzip file ({error})") from error


def read_rows(path: Path) -> Rows:
    """The rows of a file, read according to its suffix."""
    suffix = table_suffix(path)
    reader = _READERS.get(suffix)
    refuse_unreadable(path)
    if reader is None:
        known = ", ".join((*TABLE_SUFFIXES, ".txt"))
        raise file_error(
            path, None, f"{suffix or 'no suffix'}: unknown table format; expected one of {known}"
        )
    with open_table(path) as file:
        return reader(path, file)


# -------------------------------------------------------------------------- separated text


def read_separated(path: Path, file: IO[bytes]) -> Rows:
    """Rows of cells between separators, which are found in the first lines."""
    lines = list(_clean_lines(path, file))
    declared = re.fullmatch(r'"?sep=(.)"?', lines[0][1])  # as Excel writes it
    if declared:
        separator, skipped = declared[1], 1
    else:
        separator = sniff_separator(
            [text for _, text in lines], COLUMN_SEPARATORS.get(table_suffix(path), ",")
        )
        skipped = 0
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(
        (f"{text}\n" for _, text in lines[skipped:]), delimiter=separator, strict=True
    )
    result = Rows(None, [], [], separator=separator)
    try:
        number = skipped + 1  # the first line of a row, which may have several
        for row in reader:
            if row and not (len(row) == 1 and not row[0].strip()):
                _check_width(path, number, row, result.rows)
                result.rows.append(row)
                result.numbers.append(number)
            number = reader.line_num + skipped + 1
    except csv.Error as error:
        what = f'not a table ({error}); a quote inside a quoted cell is written ""'
        raise file_error(path, reader.line_num + skipped, what) from error
    return result


def _clean_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    for number, text in lines_of(path, file):
        if "\0" in text:
            what = "contains a NUL byte; expected text in UTF-8: save it so if it is UTF-16"
            raise file_error(path, number, what)
        yield number, text


def _check_width(path: Path, line: int, row: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows and len(row) != len(rows[0]):
        names = ", ".join(rows[0])
        raise file_error(path, line, f"{len(row)} cells, expected {len(rows[0])} ({names})")


def sniff_separator(lines: Iterable[str], default: str) -> str:
    """The separator that cuts the first rows into equally many cells, most of them numbers."""
    sample = [line for line, _ in zip(lines, range(SNIFFED_ROWS), strict=False)]
    scores = {separator: _fit(sample, separator) for separator in SEPARATORS}
    best = max(scores.values())
    return default if scores[default] == best else max(scores, key=scores.__getitem__)


def _fit(lines: Sequence[str], separator: str) -> tuple[bool, float, float]:
    """(more than one cell, share of rows as wide as the first, share of numbers)."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator)
    try:
        rows = [row for row in reader if row]
    except csv.Error:
        return False, 0.0, 0.0
    if not rows or len(rows[0]) < 2:
        return False, 0.0, 0.0
    equal = sum(len(row) == len(rows[0]) for row in rows) / len(rows)
    cells = [cell for row in rows for cell in row]
    numbers = sum(is_missing(cell) or resembles_number(cell) for cell in cells) / len(cells)
    return equal > 0.5, equal, numbers


# ------------------------------------------------------------------------------ JSON lines


def _read_json_lines(path: Path, file: IO[bytes]) -> Rows:
    """One object per line; what a line does not have is missing there."""
    objects, numbers = [], []
    for number, text in lines_of(path, file):
        if text.strip():
            try:
                objects.append(json_object(text))
            except ValueError as error:
                raise file_error(path, number, str(error)) from error
            numbers.append(number)
    names = list(dict.fromkeys(name for row in objects for name in row))
    return Rows(names, [[row.get(name) for name in names] for row in objects], numbers)


def json_object(line: str) -> dict[str, Any]:
    """The object in a line of JSON; a ValueError says what is wrong with it."""
    try:
        row = json.loads(line, object_pairs_hook=_no_name_twice)
        if "\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise ValueError(f"\\u{code:04x} is half of a character (a lone surrogate)") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"a JSON {type(row).__name__}; expected an object per line")
    return row


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"the name {twice[0]!r} occurs twice")
    return dict(pairs)


# -------------------------------------------------------------------------- binary formats


def _package(path: Path, name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        what = f"{table_suffix(path)} files are read with {name}, which is not installed; {INSTALL}"
        raise file_error(path, None, what) from error


def columns_as_rows(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> Rows:
    """Rows of columns, which must have equal lengths."""
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Rows(list(names), rows, list(range(1, len(rows) + 1)), place="row")


def _read_parquet(path: Path, file: IO[bytes]) -> Rows:
    parquet = _package(path, "pyarrow", "pyarrow.parquet")
    try:
        table = parquet.read_table(io.BytesIO(file.read()))
        return columns_as_rows(table.column_names, [c.to_pylist() for c in table.columns])
    except Exception as error:  # pyarrow's own kinds, which cannot be named without it
        raise file_error(path, None, f"not a readable Parquet file ({error})") from error


def _read_excel(path: Path, file: IO[bytes]) -> Rows:
    openpyxl = _package(path, "openpyxl", "openpyxl")
    try:
        book = openpyxl.load_workbook(io.BytesIO(file.read()), read_only=True, data_only=True)
        sheets = {s.title: [list(row) for row in s.iter_rows(values_only=True)] for s in book}
    except Exception as error:  # of zipfile, XML and openpyxl
        raise file_error(path, None, f"not a readable Excel file ({error})") from error
    sheets = {title: rows for title, rows in sheets.items() if any(map(_has_cells, rows))}
    if len(sheets) != 1:
        titles = ", ".join(sheets) or "none with cells"
        raise file_error(
            path, None, f"{len(sheets)} sheets ({titles}); expected one: save it alone"
        )
    return _sheet_rows(path, next(iter(sheets.values())))


def _sheet_rows(path: Path, sheet: list[list[Any]]) -> Rows:
    numbers = [number for number, row in enumerate(sheet, 1) if _has_cells(row)]
    width = max(i + 1 for row in sheet for i, cell in enumerate(row) if cell is not None)
    rows = [(sheet[number - 1] + [None] * width)[:width] for number in numbers]
    return Rows(None, rows, numbers, place="row")


def _has_cells(row: Sequence[Any]) -> bool:
    return any(cell is not None for cell in row)


def _read_numpy(path: Path, file: IO[bytes]) -> Rows:
    array = _load_numpy(path, file)
    if isinstance(array, dict):
        return _named_arrays(path, array)
    if array.dtype.names:
        return columns_as_rows(array.dtype.names, [array[n].tolist() for n in array.dtype.names])
    if array.ndim not in (1, 2):
        shape = " × ".join(map(str, array.shape)) or "a single number"
        raise file_error(path, None, f"an array of {shape}; expected rows × columns")
    return array_rows(array)


def array_rows(array: np.ndarray[Any, Any]) -> Rows:
    """The rows of an array [rows] or [rows, columns]; its columns are c1, c2, …"""
    columns = array[:, None] if array.ndim == 1 else array
    names = [f"c{i}" for i in range(1, columns.shape[1] + 1)]
    return columns_as_rows(names, [plain_cells(column) for column in columns.T])


def plain_cells(cells: Any) -> list[Any]:
    """The cells of a column as Python's own types."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        return list(cells.astype("datetime64[us]").tolist())
    plain = cells.tolist() if hasattr(cells, "tolist") else list(cells)
    return [cell.item() if isinstance(cell, np.generic) else cell for cell in plain]


def _named_arrays(path: Path, arrays: dict[str, Any]) -> Rows:
    names = list(arrays)
    if len(names) == 1 and arrays[names[0]].ndim == 2:
        return array_rows(arrays[names[0]])
    for name in names:
        if arrays[name].shape != (len(arrays[names[0]]),):
            shapes = ", ".join(f"{n} {arrays[n].shape}" for n in names)
            what = f"expected arrays of equal length, or one of rows × columns; it has {shapes}"
            raise file_error(path, None, what)
    return columns_as_rows(names, [plain_cells(arrays[name]) for name in names])


def _load_numpy(path: Path, file: IO[bytes]) -> Any:
    try:
        loaded = np.load(io.BytesIO(file.read()))
        return dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else loaded
    except Exception as error:  # of numpy and zipfile, by what is wrong
        why = f"damaged, or not a numpy file ({error})"
        if "allow_pickle" in str(error):
            why = "an array of Python objects, which could run any code when read; save numbers"
        raise file_error(path, None, why) from error


_READERS: dict[str, Callable[[Path, IO[bytes]], Rows]] = {
    **dict.fromkeys(COLUMN_SEPARATORS, read_separated),
    **dict.fromkeys(JSON_LINES_SUFFIXES, _read_json_lines),
    ".parquet": _read_parquet,
    ".xlsx": _read_excel,
    ".npy": _read_numpy,
    ".npz": _read_numpy,
}
