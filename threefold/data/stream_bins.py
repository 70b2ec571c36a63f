"""Rows of a live series, averaged over steps of time as `time_steps.resample` does for a table.

A step is complete when a row of a later one comes; steps without a row are NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.time_steps import TimeStep, bin_begin, bin_number

MOST_EMPTY_STEPS = 10_000  # a later time stamp is not believed
Row = NDArray[np.float64]


@dataclass
class OpenBin:
    """The sums of the step that is not complete yet; JSON values."""

    number: int | None = None
    sums: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, seconds: float, row: Row, step: TimeStep) -> list[tuple[float, Row]] | None:
        """The steps that a row completes, with their begins; None if its time is out of order."""
        number = bin_number(seconds, step)
        complete: list[tuple[float, Row]] = []
        if self.number is not None and number != self.number:
            if not 0 < number - self.number <= MOST_EMPTY_STEPS:
                return None
            complete.append((bin_begin(self.number, step), self.means()))
            empty = np.full(len(row), np.nan)
            between = range(self.number + 1, number)
            complete += [(bin_begin(other, step), empty) for other in between]
        if number != self.number:
            self.number, self.sums, self.counts = number, [0.0] * len(row), [0] * len(row)
        for column, value in enumerate(row.tolist()):
            if not math.isnan(value):
                self.sums[column] += value
                self.counts[column] += 1
        return complete

    def means(self) -> Row:
        """The mean of each column, NaN without a value."""
        pairs = zip(self.sums, self.counts, strict=True)
        return np.array([total / count if count else math.nan for total, count in pairs])

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return dict(vars(self))
