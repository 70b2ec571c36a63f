"""One row per N elements: groups [gN, (g+1)N) of positions, however they are cut into chunks.

sum       the log-likelihood of the group: the number of elements that have one, and their sum
largest   the element with the largest score, of those with an alarm if there are any
last      the last element
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = dict[str, Any]
Columns: TypeAlias = dict[str, Sequence[Any]]
SUMMED = "log_likelihood"
PLACES = ("position", "byte", "seconds", "time")  # of a group: those of its first element


class Groups:
    """Reduce columns of elements to columns of groups; an incomplete group is carried over."""

    def __init__(self, group_size: int, reduction: str) -> None:
        self.group_size, self.reduction = group_size, reduction
        self.open_row: Row | None = None  # of the incomplete group
        self.number = -1  # of that group

    def add(self, columns: Columns) -> Columns:
        """Return the groups that these elements complete."""
        positions = columns["position"]
        first, last = positions[0], positions[-1]
        rows: list[Row] = []
        for number in range(first // self.group_size, last // self.group_size + 1):
            begin = max(number * self.group_size, first) - first
            end = min((number + 1) * self.group_size, last + 1) - first
            row = self._reduce({name: column[begin:end] for name, column in columns.items()})
            if number == self.number and self.open_row is not None:
                row = self._merge(self.open_row, row)
            elif self.open_row is not None:
                rows.append(self.open_row)  # an earlier input ended inside it
            self.open_row, self.number = row, number
            if first + end == (number + 1) * self.group_size:
                rows.append(row)
                self.open_row = None
        return _as_columns(rows)

    def finish(self) -> Columns:
        """Return the group that is incomplete at the end of the input."""
        rows = [] if self.open_row is None else [self.open_row]
        self.open_row = None
        return _as_columns(rows)

    def _reduce(self, columns: Columns) -> Row:
        if self.reduction == "last":
            return {name: column[-1] for name, column in columns.items()}
        if self.reduction == "largest":
            judged = {name: columns[name] for name in ("score", "alarm") if name in columns}
            heights = [_height(*values) for values in zip(*judged.values(), strict=True)]
            largest = max(range(len(heights)), key=heights.__getitem__)
            return {name: column[largest] for name, column in columns.items()}
        counted = [value for value in columns[SUMMED] if not math.isnan(value)]
        row = {name: columns[name][0] for name in columns if name in PLACES}
        return {**row, "elements": len(counted), SUMMED: math.fsum(counted)}

    def _merge(self, first: Row, second: Row) -> Row:
        if self.reduction == "last":
            return second
        if self.reduction == "largest":
            return max(first, second, key=lambda row: _height(row["score"], row.get("alarm", "")))
        return {**first, **{name: first[name] + second[name] for name in ("elements", SUMMED)}}


def _height(score: float, alarm: str = "") -> tuple[bool, float]:
    """Rows with an alarm come before all others; a missing score counts as the lowest."""
    return bool(alarm), -math.inf if math.isnan(score) else score


def _as_columns(rows: list[Row]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def in_order(parts: Sequence[Columns], order: Sequence[Sequence[int]]) -> Columns:
    """The columns of several series as one, every element at its place."""
    if len(parts) <= 1:
        return parts[0] if parts else {}
    places = np.argsort(np.concatenate([np.asarray(numbers) for numbers in order]), kind="stable")
    merged: Columns = {}
    for name in parts[0]:
        values = [value for part in parts for value in part[name]]
        merged[name] = [values[place] for place in places.tolist()]
    return merged


def concatenate(first: Columns, second: Columns) -> Columns:
    """The rows of both."""
    if not first or not second:
        return first or second
    return {name: [*first[name], *second[name]] for name in first}
