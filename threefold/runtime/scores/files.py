"""Scores as JSON lines or CSV, in a file that is truncated to where a stream resumes.

{"position":7,"byte":7,"token":101,"text":"e","log_likelihood":-1.20371342}
"""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable
from io import StringIO
from pathlib import Path
from typing import IO, Any

from threefold.data.atomic_files import report_write_errors
from threefold.errors import ThreefoldError, nearest, option
from threefold.runtime.scores.grouping import Columns

FORMATS = ("jsonl", "csv")


def choose_format(path: Path | None, requested: str | None) -> str:
    """Return the requested format, or the one of the file's suffix; JSON lines by default."""
    if requested is not None and requested not in FORMATS:
        raise ThreefoldError(f"unknown format {requested!r}; {nearest(requested, FORMATS)}")
    if requested is not None or path is None:
        return requested or FORMATS[0]
    formats = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
    if path.suffix not in formats:
        raise ThreefoldError(
            f"{path}: the format cannot be guessed from the suffix; use .jsonl or .csv, or say "
            f"{option('format', 'jsonl')}"
        )
    return formats[path.suffix]


class ScoreFile:
    """A file to which lines are appended, or standard output (path None).

    size: bytes of an existing file to keep, None to overwrite it.
    """

    def __init__(self, path: Path | None, file_format: str, size: int | None = None) -> None:
        self.path, self.format = path, file_format
        self.size = size or 0
        self._file: IO[bytes] | None = None if path is None else _open(path, size)
        self._has_header = size is not None and size > 0

    def write(self, columns: Columns) -> None:
        """Write a line for each row; a CSV file starts with the names of the columns."""
        if not any(map(len, columns.values())):
            return
        text = as_json_lines(columns) if self.format == "jsonl" else as_csv(columns)
        if self.format == "csv" and not self._has_header:
            text = _csv_row(columns) + text
        self._has_header = True
        data = text.encode()
        if self._file is None or self.path is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with report_write_errors(self.path):
                self._file.write(data)
        self.size += len(data)

    def sync(self) -> None:
        """Make sure that all lines are on disk."""
        if self._file is not None and self.path is not None:
            with report_write_errors(self.path):
                self._file.flush()
                if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # not a device or a pipe
                    os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _open(path: Path, size: int | None) -> IO[bytes]:
    with report_write_errors(path):
        if size is None:
            return open(path, "wb")
        actual = path.stat().st_size
        if actual < size:
            raise ThreefoldError(
                f"{path}: has {actual:,} bytes, but had {size:,} when the state was saved; restore "
                "the file, or start again without the state"
            )
        os.truncate(path, size)
        return open(path, "ab")


def as_json_lines(columns: Columns) -> str:
    """Format each row as a JSON object on a line; a missing number is null."""
    fields = ",".join(f"{json.dumps(name).replace('%', '%%')}:%s" for name in columns)
    line = "{" + fields + "}\n"
    cells = [_as_text(column, _quote, "null") for column in columns.values()]
    return "".join([line % values for values in zip(*cells, strict=True)])


def as_csv(columns: Columns) -> str:
    """Format each row as a CSV line; a missing number is an empty cell."""
    out = StringIO()
    cells = [_as_text(column, str, "") for column in columns.values()]
    csv.writer(out, lineterminator="\n").writerows(zip(*cells, strict=True))
    return out.getvalue()


def _as_text(column: Iterable[Any], quote: Callable[[str], str], missing: str) -> Iterable[str]:
    """Format the values of a column, which all have the same type."""
    column = list(column)
    if isinstance(column[0], float):
        return [f"{value:.9g}" if math.isfinite(value) else missing for value in column]
    return map(quote if isinstance(column[0], str) else str, column)


_QUOTED: dict[str, str] = {}


def _quote(text: str) -> str:
    """Return a text as JSON; cached, because the texts of tokens repeat."""
    quoted = _QUOTED.get(text)
    if quoted is None:
        quoted = json.dumps(text, ensure_ascii=False)
        if len(_QUOTED) < 1 << 16:
            _QUOTED[text] = quoted
    return quoted


def _csv_row(names: Iterable[str]) -> str:
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerow(names)
    return out.getvalue()
