"""One row for N elements: groups [gN, (g+1)N) of positions, whatever pieces they come in.

sum       the log-likelihood of the group: `elements` that have one, and their sum
largest   the element with the largest score
last      the last element
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
Columns: TypeAlias = dict[str, Sequence[Any]]
SUMMED = "log_likelihood"


class Groups:
    """Columns of elements in, columns of groups out; the group that is open is carried."""

    def __init__(self, every: int, reduces: str) -> None:
        self.every, self.reduces = every, reduces
        self.open: Row | None = None  # the beginning of a group
        self.number = -1  # of that group

    def add(self, columns: Columns) -> Columns:
        """The groups that these elements complete."""
        positions = columns["position"]
        first, last = positions[0], positions[-1]
        done: list[Row] = []
        for number in range(first // self.every, last // self.every + 1):
            begin = max(number * self.every, first) - first
            end = min((number + 1) * self.every, last + 1) - first
            row = self._reduce({name: column[begin:end] for name, column in columns.items()})
            if number == self.number and self.open is not None:
                row = self._merge(self.open, row)
            elif self.open is not None:
                done.append(self.open)  # cut short by the end of an earlier input
            self.open, self.number = row, number
            if first + end == (number + 1) * self.every:
                done.append(row)
                self.open = None
        return _as_columns(done)

    def finish(self) -> Columns:
        """The group that the end of the input leaves open."""
        done = [] if self.open is None else [self.open]
        self.open = None
        return _as_columns(done)

    def _reduce(self, columns: Columns) -> Row:
        if self.reduces == "last":
            return {name: column[-1] for name, column in columns.items()}
        if self.reduces == "largest":
            scores = columns["score"]
            place = max(range(len(scores)), key=lambda i: _known(scores[i]))
            return {name: column[place] for name, column in columns.items()}
        counted = [value for value in columns[SUMMED] if not math.isnan(value)]
        row = {name: columns[name][0] for name in columns if name in ("position", "byte")}
        return {**row, "elements": len(counted), SUMMED: math.fsum(counted)}

    def _merge(self, one: Row, two: Row) -> Row:
        if self.reduces == "last":
            return two
        if self.reduces == "largest":
            return two if _known(two["score"]) > _known(one["score"]) else one
        return {**one, **{name: one[name] + two[name] for name in ("elements", SUMMED)}}


def _known(score: float) -> float:
    return -math.inf if math.isnan(score) else score


def _as_columns(rows: list[Row]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
