"""Read text, tables and parallel text; every error names the file and the line.

file.csv:17: 3 cells, expected 4 (id, text, label, source)
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from threefold.errors import ThreefoldError, nearest

LONGEST_LINE = 1 << 26  # bytes, in a table; the lines of a text may have any length
CHUNK_BYTES = 1 << 20  # read at a time
COLUMN_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")


class Labelled(NamedTuple):
    """Texts and their labels."""

    texts: list[str]
    labels: list[str]


def file_error(path: Path, line: int | None, what: str) -> ThreefoldError:
    """An error that begins with the file and the line."""
    position = f"{path}" if line is None else f"{path}:{line}"
    return ThreefoldError(f"{position}: {what}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, which must not be empty."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error
    if not content:
        raise file_error(path, None, "the file is empty")
    return content


# ---------------------------------------------------------------------------------- text


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file."""
    content = read_bytes(path)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise file_error(
            path, line, _undecodable(content[error.start], column, encoding)
        ) from error


def text_files(folder: Path, patterns: Sequence[str] = ("*.txt",)) -> list[Path]:
    """All files below a folder that match a pattern, in the order of their paths."""
    if not folder.is_dir():
        raise file_error(folder, None, "no such folder")
    files = [path for path in folder.rglob("*") if path.is_file()]
    matching = [path for path in files if any(fnmatchcase(path.name, p) for p in patterns)]
    if not matching:
        raise file_error(folder, None, f"contains no file {' or '.join(patterns)}")
    return sorted(matching, key=lambda path: path.relative_to(folder).as_posix())


def read_byte_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of a file of any size, in chunks."""
    try:
        with path.open("rb") as file:
            empty = True
            while chunk := file.read(size):
                empty = False
                yield chunk
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error
    if empty:
        raise file_error(path, None, "the file is empty")


def read_text_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[str]:
    """A text of any size in chunks that end after a line, else before a space, else anywhere.

    So no word is separated from the space before it, and lines may have any length.
    """
    rest, line = b"", 1
    for chunk in read_byte_chunks(path, size):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or max(rest.rfind(b" "), 0)
        if cut == 0 and len(rest) >= size:
            cut = _whole_characters(rest)
        if cut:
            yield _decoded(path, rest[:cut], line)
            line += rest.count(b"\n", 0, cut)
            rest = rest[cut:]
    if rest:
        yield _decoded(path, rest, line)


def _decoded(path: Path, content: bytes, line: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content.count(b"\n", 0, error.start)
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise file_error(
            path, line + before, _undecodable(content[error.start], column, "utf-8")
        ) from error


def _whole_characters(content: bytes) -> int:
    """Where an incomplete last character begins; the length if there is none."""
    end = len(content)
    while end > max(0, len(content) - 4) and content[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - 1 if end and content[end - 1] >= 0xC0 else len(content)


def _undecodable(byte: int, column: int, encoding: str) -> str:
    return (
        f"byte {column} of the line, 0x{byte:02x}, is not valid {encoding.upper()}; is this a text "
        "file? Convert it, or read it as bytes"
    )


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end); an empty file is refused."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise file_error(
                        path,
                        number,
                        f"line longer than {LONGEST_LINE >> 20} MiB; is this a table?",
                    )
                text = _decoded(path, line, number)
                yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error
    if number == 0:
        raise file_error(path, None, "the file is empty")


# -------------------------------------------------------------------------------- tables


class Table:
    """Cells by column, and the line number of each row."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.cells: dict[str, list[Any]] = {name: [] for name in columns}
        self.line_numbers: list[int] = []

    def add(self, line: int, row: Sequence[Any]) -> None:
        """Append a row."""
        for cells, cell in zip(self.cells.values(), row, strict=True):
            cells.append(cell)
        self.line_numbers.append(line)

    def __len__(self) -> int:
        return len(self.line_numbers)

    def column(self, name: str) -> list[Any]:
        """The cells of a column."""
        if name not in self.cells:
            raise file_error(self.path, 1, f"no column {name!r}; {nearest(name, self.cells)}")
        return self.cells[name]

    def texts(self, name: str) -> list[str]:
        """A column of texts, none of which may be missing."""
        texts = []
        for line, cell in zip(self.line_numbers, self.column(name), strict=True):
            if cell is None or not str(cell).strip():
                raise file_error(self.path, line, f"{name} is missing")
            texts.append(str(cell))
        return texts

    def numbers(self, name: str) -> list[float]:
        """A column of numbers; empty cells, NaN and infinity are refused."""
        numbers = []
        for line, cell in zip(self.line_numbers, self.column(name), strict=True):
            try:
                number = float(cell)
            except (TypeError, ValueError):
                number = math.nan
            if not math.isfinite(number):
                raise file_error(self.path, line, f"{name} is {cell!r}; expected a finite number")
            numbers.append(number)
        return numbers


def read_table(path: Path, columns: Sequence[str] | None = None) -> Table:
    """Read CSV, TSV or JSON lines, by the file's suffix; `columns` must exist if given."""
    if path.suffix in JSON_LINES_SUFFIXES:
        table = _read_json_lines(path, columns)
    elif path.suffix in COLUMN_SEPARATORS:
        table = _read_separated(path, COLUMN_SEPARATORS[path.suffix])
    else:
        known = ", ".join([*COLUMN_SEPARATORS, *JSON_LINES_SUFFIXES])
        raise file_error(path, None, f"unknown table format; expected one of {known}")
    for name in columns or ():
        table.column(name)
    if not len(table):
        raise file_error(path, None, "the table has no rows below the first line")
    return table


def _read_separated(path: Path, separator: str) -> Table:
    lines = (f"{text}\n" for _, text in read_lines(path))
    rows = csv.reader(lines, delimiter=separator, strict=True)
    csv.field_size_limit(LONGEST_LINE)
    table: Table | None = None
    try:
        for row in rows:
            if table is None:
                if len(set(row)) != len(row):
                    raise file_error(path, 1, f"two columns have the same name: {', '.join(row)}")
                table = Table(path, row)
            elif row:
                if len(row) != len(table.cells):
                    counts = f"{len(row)} cells, expected {len(table.cells)}"
                    raise file_error(path, rows.line_num, f"{counts} ({', '.join(table.cells)})")
                table.add(rows.line_num, row)
    except csv.Error as error:
        raise file_error(path, rows.line_num, f"not a table ({error})") from error
    assert table is not None  # `read_lines` refuses an empty file
    return table


def _read_json_lines(path: Path, columns: Sequence[str] | None) -> Table:
    table = None if columns is None else Table(path, columns)
    for number, text in read_lines(path):
        if not text.strip():
            continue
        row = _json_object(path, number, text)
        if table is None:
            table = Table(path, list(row))
        missing = next((name for name in table.cells if name not in row), None)
        if missing is not None:
            raise file_error(
                path, number, f"{missing} is missing; the line has {', '.join(row) or 'nothing'}"
            )
        table.add(number, [row[name] for name in table.cells])
    return table or Table(path, ())


def _json_object(path: Path, number: int, text: str) -> dict[str, Any]:
    """The object in a line of a .jsonl file."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise file_error(path, number, f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise file_error(path, number, f"a JSON {type(row).__name__}; expected an object per line")
    return row


def read_labelled(path: Path, text: str = "text", label: str = "label") -> Labelled:
    """The texts and labels of a table; none may be missing."""
    table = read_table(path, (text, label))
    return Labelled(table.texts(text), table.texts(label))


# --------------------------------------------------------------------------------- pairs


def read_pairs(source: Path, target: Path | None = None) -> list[tuple[str, str]]:
    """Read parallel text: two files line by line, or one file with source, tab and target."""
    if target is None:
        pairs = []
        for number, text in read_lines(source):
            parts = text.split("\t")
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise file_error(
                    source, number, f"{len(parts)} columns; expected two texts with a tab between"
                )
            pairs.append((parts[0].strip(), parts[1].strip()))
        return pairs
    sides = []
    for path in (source, target):
        texts = [(number, text.strip()) for number, text in read_lines(path)]
        empty = next((number for number, text in texts if not text), None)
        if empty is not None:
            raise file_error(path, empty, "the line is empty; expected a text on every line")
        sides.append([text for _, text in texts])
    if len(sides[0]) != len(sides[1]):
        raise ThreefoldError(
            f"{source} has {len(sides[0])} lines, {target} has {len(sides[1])}; expected the same "
            f"number: from line {min(map(len, sides)) + 1} on the other file has none"
        )
    return list(zip(*sides, strict=True))
