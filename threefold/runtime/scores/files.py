"""Scores as lines: JSON lines or CSV, to a file that is cut back to where a stream goes on.

{"position":7,"byte":7,"token":101,"text":"e","log_likelihood":-1.20371}
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
from threefold.errors import ThreefoldError, nearest
from threefold.runtime.scores.grouping import Columns

FORMATS = ("jsonl", "csv")


def format_of(path: Path | None, asked: str | None) -> str:
    """The format that was asked for, or that a file's name says; JSON lines by default."""
    if asked is not None and asked not in FORMATS:
        raise ThreefoldError(f"unknown format {asked!r}; {nearest(asked, FORMATS)}")
    if asked is not None or path is None:
        return asked or FORMATS[0]
    known = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}
    if path.suffix not in known:
        raise ThreefoldError(
            f"{path}: a name that says no format; expected .jsonl or .csv, or --format"
        )
    return known[path.suffix]


class ScoreFile:
    """Lines at the end of a file, or on standard output (path None).

    size: bytes to keep of what the file has, None to begin it anew.
    """

    def __init__(self, path: Path | None, kind: str, size: int | None = None) -> None:
        self.path, self.kind = path, kind
        self.size = size or 0
        self._file: IO[bytes] | None = None if path is None else _opened(path, size)
        self._headed = size is not None and size > 0

    def write(self, columns: Columns) -> None:
        """A line for each row; a CSV file begins with the names."""
        if not columns:
            return
        text = as_json_lines(columns) if self.kind == "jsonl" else as_csv(columns)
        if self.kind == "csv" and not self._headed:
            text = _row(columns) + text
        self._headed = True
        data = text.encode()
        if self._file is None or self.path is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with report_write_errors(self.path):
                self._file.write(data)
        self.size += len(data)

    def sync(self) -> None:
        """Have the disk hold all lines."""
        if self._file is not None and self.path is not None:
            with report_write_errors(self.path):
                self._file.flush()
                if stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):  # no device, no pipe
                    os.fsync(self._file.fileno())

    def close(self) -> None:
        """Leave the file."""
        if self._file is not None:
            self._file.close()


def _opened(path: Path, size: int | None) -> IO[bytes]:
    with report_write_errors(path):
        if size is None:
            return open(path, "wb")
        has = path.stat().st_size
        if has < size:
            raise ThreefoldError(
                f"{path}: has {has:,} bytes, and the state was written after {size:,}; it was cut "
                "by something else: put it back, or begin anew without the state"
            )
        os.truncate(path, size)
        return open(path, "ab")


def as_json_lines(columns: Columns) -> str:
    """An object on each line; null for a number that there is not."""
    shape = ",".join(f"{json.dumps(name).replace('%', '%%')}:%s" for name in columns)
    line = "{" + shape + "}\n"
    shown = [_shown(column, _quoted, "null") for column in columns.values()]
    return "".join([line % values for values in zip(*shown, strict=True)])


def as_csv(columns: Columns) -> str:
    """A row on each line; an empty cell for a number that there is not."""
    out = StringIO()
    shown = [_shown(column, str, "") for column in columns.values()]
    csv.writer(out, lineterminator="\n").writerows(zip(*shown, strict=True))
    return out.getvalue()


def _shown(column: Iterable[Any], text: Callable[[str], str], nothing: str) -> Iterable[str]:
    """The values of a column as text; they are all of one kind."""
    column = list(column)
    if isinstance(column[0], float):
        return [f"{value:.6g}" if math.isfinite(value) else nothing for value in column]
    return map(text if isinstance(column[0], str) else str, column)


_QUOTED: dict[str, str] = {}


def _quoted(text: str) -> str:
    """A text in JSON; the texts of tokens come again and again."""
    found = _QUOTED.get(text)
    if found is None:
        found = json.dumps(text, ensure_ascii=False)
        if len(_QUOTED) < 1 << 16:
            _QUOTED[text] = found
    return found


def _row(names: Iterable[str]) -> str:
    out = StringIO()
    csv.writer(out, lineterminator="\n").writerow(names)
    return out.getvalue()
