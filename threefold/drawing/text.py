"""Numbers as text: values with a unit, durations, and curves of block characters (▁▂▅█▆▂▁)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean

BLOCKS = "▁▂▃▄▅▆▇█"
BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
SECOND_UNITS = ("ns", "µs", "ms", "s")
COUNT_UNITS = ("", "k", "M", "G", "T")


def format_value(value: float, unit: str) -> str:
    """A value in a unit of `axes.Axis`, e.g. 1.5k, 12 ms, 3 MiB, 50 %."""
    if not math.isfinite(value):
        return "–"
    if unit == "percent":
        shown = 100 * value
        return f"{shown:.3g} %" if abs(shown) < 999.5 else f"{shown:,.0f} %"
    if unit == "number":
        return format_number(value) if abs(value) >= 1e5 else f"{value:.4g}"
    if unit == "moment":
        moment = datetime(1970, 1, 1) + timedelta(seconds=round(value))
        return moment.isoformat(" ", "minutes" if moment.second == 0 else "seconds")
    return {"bytes": format_bytes, "seconds": format_seconds}.get(unit, format_count)(value)


def format_number(value: float) -> str:
    """A number with four digits at least: 0.01234, 1,234, 158,453; very large ones as 1.235e+12."""
    if isinstance(value, int) or 1e3 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_bytes(value: float) -> str:
    """Bytes with three significant digits, e.g. 64 KiB."""
    return _with_unit(value, BYTE_UNITS, 1024)


def format_seconds(value: float) -> str:
    """A measured time with three significant digits, e.g. 12 ms; minutes from 120 s on."""
    if value >= 120:
        return f"{value / 60:.3g} min"
    return _with_unit(value * 1e9, SECOND_UNITS, 1000)


def format_duration(seconds: float) -> str:
    """A duration in whole seconds: 45 s, 3 min 20 s, 2 h 5 min."""
    if not math.isfinite(seconds):
        return "?"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def format_count(value: float) -> str:
    """A count: whole numbers below 100,000 in full, others with three digits, e.g. 1.5M."""
    if value == int(value) and abs(value) < 100_000:
        return f"{int(value):,}"
    return _with_unit(value, COUNT_UNITS, 1000).replace(" ", "")


def _with_unit(value: float, units: Sequence[str], base: int) -> str:
    for unit in units:
        if abs(value) < base * 0.9995 or unit == units[-1]:
            break
        value /= base
    digits = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{digits} {unit}".rstrip()


def sparkline(
    values: Sequence[float], width: int, combine: Callable[[Sequence[float]], float] = fmean
) -> str:
    """A curve of at most `width` block characters, from the lowest value to the highest.

    Longer series are cut into equal parts, and `combine` gives the height of each part.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(i * len(finite) / count) for i in range(count + 1)]
    heights = [combine(finite[start:end]) for start, end in pairwise(edges)]
    low, high = min(heights), max(heights)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((height - low) * scale)] for height in heights)


def largest(values: Sequence[float]) -> float:
    """The value of the largest magnitude: keeps single peaks visible in a sparkline."""
    return max(values, key=abs)
