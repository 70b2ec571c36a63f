"""A chart with one row per series: single values, their mean and its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import NamedTuple

from threefold.drawing.axes import Axis, Scale, interval_ends, scale, text_width
from threefold.drawing.charts import BOTTOM, TOP, WIDTH, Figure, figure_of, grid
from threefold.drawing.series_style import belongs, colour, marker

ROW_HEIGHT = 30


class Range(NamedTuple):
    """One row of a range chart: single values, their mean and the half-width of its interval."""

    name: str
    series: int
    mean: float
    half: float
    values: Sequence[float]


def range_chart(
    title: str, description: str, rows: Sequence[Range], x: Axis, zero: bool = False
) -> Figure:
    """One row for each range: every value, the mean and its interval; `zero` adds a line at 0."""
    height = TOP + ROW_HEIGHT * len(rows) + BOTTOM
    limits = replace(x, unit="number", least=-math.inf) if zero else x  # differences have none
    left = 16 + max((text_width(row.name) for row in rows), default=0)
    shown = [*_extent(rows, limits), *([0.0] if zero else [])]
    horizontal = scale(x, shown, left, WIDTH - left - 16)
    parts = grid(horizontal, TOP, height - BOTTOM)
    if zero:
        parts.append(f'<path class="here" d="M{horizontal(0):.1f} {TOP}V{height - BOTTOM}"/>')
    for i, row in enumerate(rows):
        parts += _range(row, horizontal, left, TOP + ROW_HEIGHT * i + ROW_HEIGHT // 2, limits)
    numbers = tuple(
        (
            row.name,
            x.label(row.mean),
            f"± {x.label(row.half)}" if math.isfinite(row.half) else "unknown",
            "; ".join(x.label(value) for value in row.values),
        )
        for row in rows
    )
    header = ("model", x.title, "interval", "seeds")
    return figure_of(title, description, parts, header, numbers, (WIDTH, height))


def _extent(rows: Sequence[Range], limits: Axis) -> list[float]:
    """All values and all finite ends of intervals."""
    known = [row for row in rows if math.isfinite(row.half)]
    ends = [end for row in known for end in interval_ends(row.mean, row.half, limits)]
    return ends + [value for row in rows for value in row.values]


def _range(row: Range, horizontal: Scale, left: float, middle: int, limits: Axis) -> list[str]:
    """Name, interval, single values and mean of one row at the height `middle`."""
    parts = [f'<text class="name" x="{left - 8:.0f}" y="{middle + 4}">{escape(row.name)}</text>']
    if math.isfinite(row.half):
        low, high = map(horizontal, interval_ends(row.mean, row.half, limits))
        parts.append(
            f'<path class="interval" '
            f'd="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 5}v10M{high:.1f} '
            f'{middle - 5}v10"/>'
        )
    parts += [
        f'<circle class="seed" cx="{horizontal(value):.1f}" cy="{middle}" r="3"/>'
        for value in row.values
    ]
    mean = horizontal.axis.label(row.mean)
    shape = marker(row.series, horizontal(row.mean), middle, 5.5)
    parts.append(f"<g><title>{escape(row.name)}: {mean}</title>{shape}</g>")
    return [f'<g class="{colour(row.series)}" {belongs(row.series)}>', *parts, "</g>"]
