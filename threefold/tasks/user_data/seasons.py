"""How far a series changes by itself: the mean |y_t − y_{t−m}| of the training rows.

A forecast that is worse than repeating the value of m rows ago is worth nothing, so errors are
compared with these (Hyndman & Koehler 2006).  m is 1, and the season that the time stamps suggest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from threefold.data.time_stamps import TimeAxis
from threefold.data.time_steps import DAY
from threefold.tasks.stored import Array


def season_of(axis: TimeAxis | None) -> int:
    """Rows of a day, of a week of days, of a year of weeks or months; 1: there is no season."""
    if axis is None:
        return 1
    if axis.months:
        return max(1, 12 // axis.months)
    if axis.weekdays:
        return 5
    if axis.step < DAY:
        rows = DAY / axis.step
        return round(rows) if abs(rows - round(rows)) < 1e-6 else 1
    return {1: 7, 7: 52}.get(round(axis.step / DAY), 1)


class Stretches(NamedTuple):
    """Rows of one series; those of one stretch follow each other without a gap in time."""

    values: Array  # [time, columns]
    stretch: Array | None = None  # the number of gaps before each row; None: there are none

    def changes(self, season: int) -> Array:
        """|y_t − y_{t−season}| within a stretch."""
        changes: Array = np.abs(self.values[season:] - self.values[:-season])
        if self.stretch is not None:
            changes = changes[self.stretch[season:] == self.stretch[:-season]]
        return changes


def naive_errors(parts: Sequence[Stretches], seasons: Sequence[int]) -> dict[str, list[float]]:
    """The mean change of each column over as many rows; seasons too long are left out.

    Missing numbers do not count, nor do rows between which others are missing.
    """
    errors = {}
    for season in dict.fromkeys(seasons):
        changes = [part.changes(season) for part in parts if len(part.values) > season]
        pooled = np.concatenate(changes) if changes else np.empty((0, 1))
        known = np.isfinite(pooled)
        if len(pooled) and known.any(0).all():
            sums = np.where(known, pooled, 0.0).sum(0)
            errors[str(season)] = (sums / known.sum(0)).tolist()
    return errors
