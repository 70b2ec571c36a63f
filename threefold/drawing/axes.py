"""Axes of charts: where a value is drawn, which values are written beside it, and how."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

NARROW = 6.0  # times, below which a logarithmic axis has evenly spaced values
DECADE_STEPS = (1.0, 2.0, 5.0)
# Widths of letters in parts of the size, of a bold DejaVu Sans; others have 0.72.
WIDTHS = ((1.06, "mMW@%"), (0.93, "w"), (0.39, "ijl.,:;|'"), (0.5, "ftrI-_()[] "))


@dataclass(frozen=True)
class Axis:
    """What is measured along it; `better` says which end is good: "low", "high" or neither."""

    title: str
    unit: str = "count"  # count, seconds, bytes, number or percent
    logarithmic: bool = False
    better: str = ""
    at: tuple[float, ...] = field(default=())  # values to write, instead of round ones


@dataclass(frozen=True)
class Scale:
    """From values to places: value ↦ start + (f(value) − f(low)) / (f(high) − f(low)) · span."""

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
        """Values worth writing."""
        inside = [value for value in self.axis.at if self.low <= value <= self.high]
        if inside:
            return inside
        if self.axis.logarithmic and self.axis.unit == "bytes":
            return _powers_of_two(self.low, self.high)
        return (_round_logarithms if self.axis.logarithmic else _round_values)(self.low, self.high)


def scale(axis: Axis, values: Iterable[float], start: float, span: float) -> Scale:
    """A scale on which all values have room."""
    found = [v for v in values if math.isfinite(v) and (v > 0 or not axis.logarithmic)]
    low, high = (min(found), max(found)) if found else (1.0, 2.0)
    if axis.logarithmic:
        room = max((high / low) ** 0.06, 1.05)
        return Scale(axis, low / room, high * room, start, span)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    bottom = 0.0 if 0 <= low < 0.25 * high else low - room
    return Scale(axis, bottom, high + room, start, span)


def _round_values(low: float, high: float, wanted: int = 5) -> list[float]:
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _round_logarithms(low: float, high: float, most: int = 6) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [s * 10.0**p for p in powers for s in DECADE_STEPS]
    fine = [value for value in every if low <= value <= high]
    if high / low < NARROW:
        return _round_values(low, high, 4)
    coarse = [10.0**p for p in powers if low <= 10.0**p <= high]
    if len(fine) <= most or len(coarse) < 2:
        return fine if len(fine) <= most else fine[:: math.ceil(len(fine) / most)]
    return coarse[:: math.ceil(len(coarse) / most)]


def _powers_of_two(low: float, high: float, most: int = 6) -> list[float]:
    inside = [2.0**p for p in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    return inside[:: math.ceil(len(inside) / most) or 1]


def possible(mean: float, half: float, unit: str) -> tuple[float, float]:
    """The ends of an interval; a part of all things is never below 0 nor above 1."""
    low, high = mean - half, mean + half
    return (max(low, 0.0), min(high, 1.0)) if unit == "percent" else (low, high)


def width_of(text: str, size: float = 11.5) -> float:
    """How wide a text is at most, in the widest of the usual typefaces."""
    return size * sum(next((w for w, set_ in WIDTHS if c in set_), 0.72) for c in text)


def written(value: float, unit: str) -> str:
    """A value for a person, e.g. 1.5k, 12 ms, 3 MiB."""
    if not math.isfinite(value):
        return "–"
    if unit == "percent":
        return f"{100 * value:.3g} %"
    if unit == "bytes":
        return _with_unit(value, ("B", "KiB", "MiB", "GiB", "TiB"), 1024)
    if unit == "seconds":
        if value >= 120:
            return f"{value / 60:.3g} min"
        return _with_unit(value * 1e9, ("ns", "µs", "ms", "s"), 1000)
    if unit == "number":
        return f"{value:.4g}"
    if value == int(value) and abs(value) < 100_000:
        return f"{int(value):,}"
    return _with_unit(value, ("", "k", "M", "G", "T"), 1000).replace(" ", "")


def _with_unit(value: float, units: tuple[str, ...], base: int) -> str:
    for unit in units:
        if abs(value) < base * 0.9995 or unit == units[-1]:
            break
        value /= base
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{digits} {unit}".rstrip()
