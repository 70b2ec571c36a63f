"""One line of a stream as the cells of a table row: a list, or a mapping for JSON lines."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from threefold.data.cells import shown
from threefold.data.table_formats import json_object
from threefold.errors import option

CANDIDATE_SEPARATORS = "\t;,|"  # of table columns, in the order in which a line is searched
JSON_LINES = "{"  # instead of a separator


class BadLineError(Exception):
    """A line that is not a row of the table."""


def split_line(line: str, separator: str) -> Any:
    """The cells of a line: a list, or a mapping for JSON lines."""
    if separator == JSON_LINES:
        try:
            return json_object(line)
        except ValueError as error:
            raise BadLineError(str(error)) from error
    if '"' not in line:
        return [cell.strip() for cell in line.split(separator)]
    try:
        return [c.strip() for c in next(csv.reader([line], delimiter=separator, strict=True))]
    except csv.Error as error:
        raise BadLineError(f"not a table row ({error})") from error


def cell_at(cells: Any, place: Any) -> Any:
    """The cell at an index or of a name; None at the place None."""
    if place is None:
        return None
    return cells.get(place) if isinstance(cells, Mapping) else cells[place]


def decoded_line(data: bytes) -> str:
    """A line without white space around it."""
    try:
        return data.decode().strip("\r\n \ufeff")
    except UnicodeDecodeError as error:
        raise BadLineError(f"0x{data[error.start]:02x} is not valid UTF-8") from error


def missing_columns(missing: Sequence[str], wanted: Sequence[str], cells: Sequence[str]) -> str:
    """What is wrong with a table that lacks columns of the training data."""
    found = ", ".join(shown(cell)[1:-1] for cell in cells[:12])
    gone = "the column {} is" if len(missing) == 1 else "the columns {} are"
    return (
        f"{gone.format(', '.join(missing))} missing; the model was trained on "
        f"{', '.join(wanted)}, the table begins with {found}; {option('columns')} says which "
        "columns to read"
    )
