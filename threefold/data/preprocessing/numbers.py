"""Steps for numbers: standardise columns, and fill what is missing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.preprocessing.steps import Step
from threefold.errors import ThreefoldError

Array = NDArray[Any]
ABSURD = 1e4  # deviations from the training mean, beyond which a number is not believed
MOST_ABSURD = 1 / 20  # of the numbers of a column; if more are far away, that is how they are
FENCE = 10.0  # interquartile ranges beyond the quartiles where outliers begin
FARTHEST = 1000.0  # deviations within which all numbers of training are
POLICIES = ("mask", "carry", "refuse")


@dataclass(frozen=True)
class Standardise(Step):
    """x → (x − mean) / deviation for each column of […, columns]; NaN stays NaN."""

    NAME: ClassVar[str] = "standardise"
    columns: tuple[str, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def fit(
        cls,
        values: Array | Sequence[Array],
        columns: Sequence[str],
        unscaled: Collection[str] = (),
        robust: bool = False,
    ) -> Standardise:
        """Mean and deviation of the known values of arrays [n, columns], absurd ones left out.

        unscaled: columns of codes, which stay as they are.  robust: values far outside the
        quartiles count as the farthest that is not (`without_outliers`).
        """
        rows = np.concatenate([np.reshape(part, (-1, len(columns))) for part in values])
        known = np.where(np.isfinite(rows), rows, np.nan).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            for column in known.T:
                column[absurd_numbers(column)] = np.nan
            mean, deviation = _moments(without_outliers(known) if robust else known)
            farthest = np.fmax.reduce(np.abs(known - mean), 0, initial=0.0)
        deviation = np.maximum(deviation, farthest / FARTHEST)
        usable = np.isfinite(deviation) & (deviation > 1e-9 * np.abs(mean)) & (deviation > 0)
        deviation = np.where(usable, deviation, 1.0)  # a constant column only loses its mean
        kept = np.array([name in unscaled for name in columns], bool)
        mean, deviation = np.where(kept, 0.0, mean), np.where(kept, 1.0, deviation)
        return cls(tuple(columns), tuple(mean.tolist()), tuple(deviation.tolist()))

    def select(self, columns: Sequence[str]) -> Standardise:
        """The same scaling for some of the columns."""
        chosen = [self.columns.index(name) for name in columns]
        mean, deviation = ([part[i] for i in chosen] for part in (self.mean, self.deviation))
        return Standardise(tuple(columns), tuple(mean), tuple(deviation))

    @property
    def limits(self) -> list[tuple[float, float]]:
        """The lowest and the highest number of each column that is believed."""
        pairs = zip(self.mean, self.deviation, strict=True)
        return [(mean - ABSURD * spread, mean + ABSURD * spread) for mean, spread in pairs]

    def apply(self, data: Array) -> Array:
        """Standardise [..., columns]."""
        scaled: Array = (np.asarray(data, np.float64) - self.mean) / np.array(self.deviation)
        return scaled

    def invert(self, data: Array) -> Array:
        """Back to the original units."""
        values: Array = np.asarray(data, np.float64) * self.deviation + np.array(self.mean)
        return values

    def absurd_counts(self, values: Sequence[Array]) -> dict[str, int]:
        """How many numbers of each column are infinite or far from the training mean, if any."""
        rows = np.concatenate([np.reshape(part, (-1, len(self.columns))) for part in values])
        counts = (np.abs(self.apply(rows)) > ABSURD).sum(0)
        return {n: c for n, c in zip(self.columns, counts.tolist(), strict=True) if c}


def absurd_numbers(column: Array) -> NDArray[np.bool_]:
    """Which few numbers are so far from the median that no others lie between.

    In the order of their distances, absurd are all from the first on that is more than ABSURD
    times the root mean square of those before it: a heavy tail, which thins out, is believed.
    """
    none = np.zeros(len(column), bool)
    present = column[~np.isnan(column)]
    if not len(present):
        return none
    centre = np.median(present)
    distances = np.abs(present - centre)
    if distances.max() <= ABSURD * np.median(distances):
        return none
    ordered = np.sort(distances)
    first = len(ordered) - max(1, int(MOST_ABSURD * len(ordered)))
    with np.errstate(over="ignore"):
        spread = np.sqrt(np.cumsum(ordered**2) / np.arange(1, len(ordered) + 1))
    far = (ordered[1:] > ABSURD * spread[:-1]) & (spread[:-1] > 0)
    places = np.flatnonzero(far) + 1
    if not len(places) or places[0] < first:
        return none
    return np.asarray(np.abs(column - centre) >= ordered[places[0]])


def without_outliers(rows: Array) -> Array:
    """Columns of [n, columns] clipped to FENCE interquartile ranges beyond their quartiles.

    Nearly all columns stay as they are.  One with rare spikes, whose deviation would be that of the
    spikes, is scaled by what it is like between them.
    """
    clipped = np.array(rows, np.float64)
    for column in clipped.T:
        present = column[~np.isnan(column)]
        if not len(present):
            continue
        low, high = np.quantile(present, (0.25, 0.75))
        reach = FENCE * (high - low)
        if 0 < reach < np.inf:
            np.clip(column, low - reach, high + reach, out=column)
    return clipped


def _moments(known: Array) -> tuple[Array, Array]:
    counts = np.maximum(np.isfinite(known).sum(0), 1)
    mean = np.nansum(known, 0) / counts
    return mean, np.sqrt(np.nansum((known - mean) ** 2, 0) / counts)


@dataclass(frozen=True)
class FillMissing(Step):
    """Missing and absurd numbers of standardised columns [n, columns].

    carry: the last known value of the column, 0 (the training mean) before the first.
    mask: the same, and one more column of 0 and 1 for each column of `masked` says where.
    refuse: an error that names row and column.
    Absurd is what is infinite or more than 10,000 deviations from the training mean.
    """

    NAME: ClassVar[str] = "fill_missing"
    columns: tuple[str, ...]
    policy: str
    masked: tuple[str, ...] = ()

    @classmethod
    def fit(cls, values: Array, columns: Sequence[str], policy: str) -> FillMissing:
        """`masked` are the columns in which standardised training data lack values."""
        complete: Array = np.asarray((np.abs(values) <= ABSURD).all(0))
        names = [name for name, whole in zip(columns, complete, strict=True) if not whole]
        return cls(tuple(columns), policy, tuple(names) if policy == "mask" else ())

    @property
    def width(self) -> int:
        """Columns of the result."""
        return len(self.columns) + len(self.masked)

    def apply(self, data: Array) -> Array:
        """Fill the rows of one table."""
        return self.fill(data, np.zeros(len(self.columns)))[0]

    def fill(self, data: Array, last: Array, limit: float = ABSURD) -> tuple[Array, Array]:
        """Fill rows that follow others; `last` are the last known values, and their successors.

        limit: numbers beyond it are absurd.
        """
        missing = ~(np.abs(data) <= limit)
        if self.policy == "refuse" and missing.any():
            row, column = np.argwhere(missing)[0].tolist()
            raise MissingNumberError(row, self.columns[column])
        filled = np.vstack([last, np.where(missing, 0.0, data)])
        positions = np.arange(1, len(filled))[:, None]
        source = np.maximum.accumulate(np.where(missing, 0, positions), 0)
        result = np.take_along_axis(filled, source, 0)
        flags = missing[:, [self.columns.index(name) for name in self.masked]]
        return np.hstack([result, flags.astype(np.float64)]), (result[-1] if len(result) else last)

    def invert(self, data: Array) -> Array:
        """Without the columns that say what was missing."""
        return np.asarray(data)[..., : len(self.columns)]


class MissingNumberError(ThreefoldError):
    """A number that is missing or absurd, and must not be."""

    def __init__(self, row: int, column: str) -> None:
        super().__init__(
            f"row {row + 1}, column {column!r}: missing, or far outside the training data; fill "
            "it in, or have what is missing carried (the last value repeated) or masked"
        )
        self.row, self.column = row, column


@dataclass(frozen=True)
class RowAsSequence(Step):
    """The numbers of one row [1, columns] → a sequence [columns, 1]."""

    NAME: ClassVar[str] = "row_as_sequence"

    def apply(self, data: Array) -> Array:
        """One element for each column."""
        return np.reshape(data, (-1, 1))

    def invert(self, data: Array) -> Array:
        """One row again."""
        return np.reshape(data, (1, -1))


@dataclass(frozen=True)
class Truncate(Step):
    """The first `length` elements of a sequence."""

    NAME: ClassVar[str] = "truncate"
    length: int

    def apply(self, data: Any) -> Any:
        """Cut what is longer."""
        return data[: self.length]
