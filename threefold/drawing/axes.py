"""Axes of charts: where a value is drawn, and at which values the ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from threefold.drawing.text import format_value

NARROW_RANGE = 6.0  # highest / lowest; below it a logarithmic axis has evenly spaced ticks
DECADE_STEPS = (1.0, 2.0, 5.0)
# Widths of letters of a bold DejaVu Sans relative to the font size; all others have 0.72.
LETTER_WIDTHS = ((1.06, "mMW@%"), (0.93, "w"), (0.39, "ijl.,:;|'"), (0.5, "ftrI-_()[] "))


@dataclass(frozen=True)
class Axis:
    """What an axis shows; `better` says which end is good: "low", "high" or "" for neither."""

    title: str
    unit: str = "count"  # count, seconds, bytes, number, percent or moment (seconds since 1970)
    logarithmic: bool = False
    better: str = ""
    at: tuple[float, ...] = field(default=())  # ticks, instead of round values
    least: float = -math.inf  # no value is lower, e.g. 0 for an error
    names: Mapping[float, str] = field(default_factory=dict, compare=False)  # of ticks

    def label(self, value: float) -> str:
        """A value in the unit of this axis."""
        return self.names.get(value) or format_value(value, self.unit)


@dataclass(frozen=True)
class Scale:
    """From a value to its coordinate:

    value ↦ start + (f(value) − f(low)) / (f(high) − f(low)) · span.
    """

    axis: Axis
    low: float
    high: float
    start: float
    span: float

    def __call__(self, value: float) -> float:
        if self.axis.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * self.span

    @property
    def ticks(self) -> list[float]:
        """Values that get a tick."""
        inside = [value for value in self.axis.at if self.low <= value <= self.high]
        if inside:
            return inside
        if self.axis.logarithmic and self.axis.unit == "bytes":
            return _powers_of_two(self.low, self.high)
        return (_round_logarithms if self.axis.logarithmic else _round_values)(self.low, self.high)


def scale(axis: Axis, values: Iterable[float], start: float, span: float) -> Scale:
    """A scale that contains all finite values, with a margin."""
    shown = [v for v in values if math.isfinite(v) and (v > 0 or not axis.logarithmic)]
    low, high = (min(shown), max(shown)) if shown else (1.0, 2.0)
    if axis.logarithmic:
        margin = max((high / low) ** 0.06, 1.05)
        return Scale(axis, low / margin, high * margin, start, span)
    margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    bottom = 0.0 if 0 <= low < 0.25 * high else low - margin
    return Scale(axis, bottom, high + margin, start, span)


def _round_values(low: float, high: float, count: int = 5) -> list[float]:
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _round_logarithms(low: float, high: float, most: int = 6) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [s * 10.0**p for p in powers for s in DECADE_STEPS]
    fine = [value for value in every if low <= value <= high]
    if high / low < NARROW_RANGE:
        return _round_values(low, high, 4)
    coarse = [10.0**p for p in powers if low <= 10.0**p <= high]
    if len(fine) <= most or len(coarse) < 2:
        return fine if len(fine) <= most else fine[:: math.ceil(len(fine) / most)]
    return coarse[:: math.ceil(len(coarse) / most)]


def _powers_of_two(low: float, high: float, most: int = 6) -> list[float]:
    inside = [2.0**p for p in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    return inside[:: math.ceil(len(inside) / most) or 1]


def interval_ends(mean: float, half: float, axis: Axis) -> tuple[float, float]:
    """The ends of an interval; a percentage is never below 0 or above 100 %."""
    low, high = max(mean - half, axis.least), mean + half
    return (max(low, 0.0), min(high, 1.0)) if axis.unit == "percent" else (low, high)


def text_width(text: str, size: float = 11.5) -> float:
    """An upper bound for the width of a text, in the widest of the usual fonts."""
    return size * sum(next((w for w, letters in LETTER_WIDTHS if c in letters), 0.72) for c in text)
