"""Columns of categories as inputs: cells → codes → one column of 0 and 1 for each category.

colour    red   blue        green     known: blue, red
code      2     1     NaN   0         NaN is missing, and filled as numbers are; 0 is unknown
inputs    0 1   1 0   1 0   0 0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from threefold.data.cells import is_missing, label_of, label_order, shown
from threefold.data.preprocessing.numbers import Array
from threefold.data.preprocessing.steps import Step
from threefold.data.tables import Table

MOST_CATEGORIES = 50  # of a column; each becomes an input

Categories = Mapping[str, Sequence[str]]  # the known ones, by column


@dataclass(frozen=True)
class OneHot(Step):
    """Codes in some columns of [n, columns and more] → columns of 0 and 1 behind all others."""

    NAME: ClassVar[str] = "one_hot"
    columns: tuple[str, ...]
    categories: dict[str, list[str]]

    @classmethod
    def fit(cls, columns: Sequence[str], categories: Categories) -> OneHot:
        """The step for the columns of a table, of which some hold codes."""
        return cls(tuple(columns), {name: list(known) for name, known in categories.items()})

    @property
    def _codes(self) -> list[tuple[int, int]]:
        """The place of each column of codes, and the number of its categories."""
        known = self.categories
        return [(i, len(known[name])) for i, name in enumerate(self.columns) if name in known]

    def apply(self, data: Array) -> Array:
        """Columns of 0 and 1; a code of 0 has no 1."""
        parts = [np.delete(data, [place for place, _ in self._codes], -1)]
        for place, size in self._codes:
            parts.append(data[..., place : place + 1] == np.arange(1, size + 1))
        return np.concatenate([part.astype(np.float64) for part in parts], -1)

    def invert(self, data: Array) -> Array:
        """Codes again, in their places."""
        begin = data.shape[-1] - sum(size for _, size in self._codes)
        columns = list(np.moveaxis(data[..., :begin], -1, 0))
        for place, size in self._codes:
            marks = data[..., begin : begin + size]
            columns.insert(place, np.where(marks.any(-1), marks.argmax(-1) + 1.0, 0.0))
            begin += size
        return np.stack(columns, -1)


def find_categories(table: Table, columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The categories of columns of a table, in alphabetical order (numbers in numerical order)."""
    return {
        name: tuple(sorted({label_of(c) for c in table.column(name) if not is_missing(c)},
                           key=label_order))
        for name in columns
    }  # fmt: skip


def column_values(
    table: Table, columns: Sequence[str], categories: Categories, policy: str | None = None
) -> Array:
    """Numbers and codes [rows, columns]; NaN is missing.

    Cells with an unknown category become a note of the table, or an error if policy is refuse.
    """
    read = [
        _codes(table, name, categories[name], policy) if name in categories else table.numbers(name)
        for name in columns
    ]
    return np.stack(read, 1)


def _codes(table: Table, name: str, known: Sequence[str], policy: str | None) -> Array:
    numbers = {category: number for number, category in enumerate(known, 1)}
    cells = table.column(name)
    codes = [np.nan if is_missing(c) else float(numbers.get(label_of(c), 0)) for c in cells]
    unknown = [row for row, code in enumerate(codes) if code == 0]
    if unknown:
        row = unknown[0]
        if policy == "refuse":
            raise table.error(
                table.line_numbers[row],
                f"{name} is {shown(cells[row])}; the model was trained on {_listed(known)}",
            )
        place = table.position(table.line_numbers[row])
        table.notes.append(unseen_note(name, known, len(unknown), shown(cells[row]), place))
    return np.array(codes)


def unseen_note(name: str, known: Sequence[str], count: int, first: str, place: str) -> str:
    """A note on cells of a column whose categories were not in the training data."""
    cells = "1 cell has" if count == 1 else f"{count:,} cells have"
    return (
        f"{name}: {cells} a category that training has not seen, read as none of "
        f"{_listed(known)} (the first is {first}, {place})"
    )


def _listed(known: Sequence[str]) -> str:
    return ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
