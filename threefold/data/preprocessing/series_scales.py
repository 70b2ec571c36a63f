"""Standardise several series, each on its own scale: one shop sells tens, another thousands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from threefold.data.preprocessing.numbers import Array, Standardise
from threefold.data.preprocessing.steps import Step
from threefold.errors import ThreefoldError, nearest


@dataclass(frozen=True)
class SeriesScales(Step):
    """The `Standardise` of every series by its name; `of` gives that of one series."""

    NAME: ClassVar[str] = "standardise_by_series"
    columns: tuple[str, ...]
    scales: dict[str, dict[str, Any]]  # mean and deviation of each column, by series

    @classmethod
    def fit(
        cls, series: Mapping[str, Array], columns: Sequence[str], unscaled: Collection[str] = ()
    ) -> SeriesScales:
        """Mean and deviation of each series [n, columns]; those of `unscaled` are 0 and 1."""
        fitted = {
            name: Standardise.fit([part], columns, unscaled, robust=True)
            for name, part in series.items()
        }
        scales = {
            name: {"mean": list(scale.mean), "deviation": list(scale.deviation)}
            for name, scale in fitted.items()
        }
        return cls(tuple(columns), scales)

    def of(self, name: str, history: Array | None = None) -> Standardise:
        """The scaling of a series; one that training has not seen is scaled by its history."""
        if name in self.scales:
            scale = self.scales[name]
            return Standardise(self.columns, tuple(scale["mean"]), tuple(scale["deviation"]))
        if history is None:
            raise ThreefoldError(
                f"the series {name!r} was not in the training data, and there is no history to "
                f"scale it by; {nearest(name, self.scales)}"
            )
        return Standardise.fit([history], self.columns, robust=True)

    def select(self, columns: Sequence[str]) -> SeriesScales:
        """The same scaling for some of the columns."""
        chosen = [self.columns.index(name) for name in columns]
        scales = {
            name: {key: [values[i] for i in chosen] for key, values in scale.items()}
            for name, scale in self.scales.items()
        }
        return SeriesScales(tuple(columns), scales)

    @property
    def limits(self) -> list[tuple[float, float]]:
        """The lowest and the highest number of each column that is believed of some series."""
        every = [self.of(name).limits for name in self.scales]
        return [
            (min(low for low, _ in column), max(high for _, high in column))
            for column in zip(*every, strict=True)
        ]

    def apply(self, data: Array) -> Array:
        """Refused: the name of the series decides."""
        raise ThreefoldError(
            f"every series has its own scale ({', '.join(list(self.scales)[:4])}, …); choose one"
        )

    def invert(self, data: Array) -> Array:
        """Refused: the name of the series decides."""
        return self.apply(data)
