"""Charts as SVG without a library: each has a title, a description and the colours of page.css.

Lines differ in colour, dashes and markers and are labelled at their ends, so that a chart can be
read without colours and without a legend.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple, TypeAlias

from threefold.drawing.axes import Axis, Scale, interval_ends, scale, text_width

Point: TypeAlias = tuple[float, float]

WIDTH, HEIGHT = 410, 290
TOP, BOTTOM = 14, 46
LABEL_GAP = 13.0
ROW_HEIGHT = 30
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4", "6 2 2 2")
COLOURS = 8


@dataclass(frozen=True)
class Line:
    """One line; the number `series` chooses its colour, dashes and marker."""

    name: str
    series: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high) around the line
    note: str = ""  # follows the name at the end of the line


@dataclass(frozen=True)
class Dot:
    """One point of a scatter plot; `error` is the half-width of the interval of its y."""

    name: str
    series: int
    x: float
    y: float
    error: float = 0.0


@dataclass(frozen=True)
class Mark:
    """An annotation: a crossing at (x, y), or a vertical line at x if y is None."""

    x: float
    y: float | None
    text: str


@dataclass(frozen=True)
class Figure:
    """A chart as SVG, with its title, a sentence that describes it, and its numbers as a table."""

    slug: str
    title: str
    description: str
    svg: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def line_chart(
    title: str,
    description: str,
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    marks: Iterable[Mark] = (),
) -> Figure:
    """A line chart; each line is labelled at its end."""
    marks = tuple(marks)
    shown = [line for line in lines if line.points]
    horizontal, vertical = _plane(
        x,
        y,
        [p[0] for line in shown for p in line.points] + [mark.x for mark in marks],
        [p[1] for line in shown for p in line.points]
        + [value for line in shown for point in line.band for value in point[1:]],
        max((text_width(line.name + line.note) for line in shown), default=0) + 16,
    )
    parts = _frame(horizontal, vertical)
    parts += [_band(line, horizontal, vertical) for line in shown if line.band]
    parts += [_line(line, horizontal, vertical) for line in shown]
    parts += [_mark(mark, horizontal, vertical) for mark in marks]
    ends = [(line, vertical(line.points[-1][1])) for line in shown]
    for line, height in _spread(ends):
        last = horizontal(line.points[-1][0])
        parts.append(_label(line, last, vertical(line.points[-1][1]), horizontal, height))
    rows = tuple((line.name, x.label(a), y.label(b)) for line in shown for a, b in line.points)
    return figure_of(title, description, parts, ("model", x.title, y.title), rows)


def dot_chart(
    title: str, description: str, dots: Sequence[Dot], front: Sequence[str], x: Axis, y: Axis
) -> Figure:
    """A scatter plot; the dots of the Pareto front are joined by a line."""
    horizontal, vertical = _plane(
        x,
        y,
        [dot.x for dot in dots],
        [value for dot in dots for value in interval_ends(dot.y, dot.error, y.unit)],
        14,
    )
    parts = _frame(horizontal, vertical)
    best = sorted((dot for dot in dots if dot.name in front), key=lambda dot: dot.x)
    if len(best) > 1:
        path = " ".join(f"{horizontal(d.x):.1f},{vertical(d.y):.1f}" for d in best)
        parts.append(f'<polyline class="front" points="{path}"/>')
    for dot in dots:
        parts.append(_dot(dot, horizontal, vertical, dot.name in front))
    parts += _dot_names(dots, horizontal, vertical)
    rows = tuple(
        (
            d.name,
            x.label(d.x),
            y.label(d.y),
            "yes" if d.name in front else "no",
        )
        for d in dots
    )
    return figure_of(
        title, description, parts, ("model", x.title, y.title, "on the Pareto front"), rows
    )


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
    unit = "number" if zero else x.unit
    left = 16 + max((text_width(row.name) for row in rows), default=0)
    shown = [*_extent(rows, unit), *([0.0] if zero else [])]
    horizontal = scale(x, shown, left, WIDTH - left - 16)
    parts = horizontal_grid(horizontal, TOP, height - BOTTOM)
    if zero:
        parts.append(f'<path class="here" d="M{horizontal(0):.1f} {TOP}V{height - BOTTOM}"/>')
    for i, row in enumerate(rows):
        parts += _range(row, horizontal, left, TOP + ROW_HEIGHT * i + ROW_HEIGHT // 2, unit)
    numbers = tuple(
        (
            row.name,
            x.label(row.mean),
            f"± {x.label(row.half)}",
            "; ".join(x.label(value) for value in row.values),
        )
        for row in rows
    )
    header = ("model", x.title, "interval", "seeds")
    return figure_of(title, description, parts, header, numbers, height)


def _extent(rows: Sequence[Range], unit: str) -> list[float]:
    """All values and all finite ends of intervals."""
    known = [row for row in rows if math.isfinite(row.half)]
    ends = [end for row in known for end in interval_ends(row.mean, row.half, unit)]
    return ends + [value for row in rows for value in row.values]


def _range(row: Range, horizontal: Scale, left: float, middle: int, unit: str) -> list[str]:
    """Name, interval, single values and mean of one row at the height `middle`."""
    colour = f"s{row.series % COLOURS}"
    parts = [f'<text class="name" x="{left - 8:.0f}" y="{middle + 4}">{escape(row.name)}</text>']
    if math.isfinite(row.half):
        low, high = map(horizontal, interval_ends(row.mean, row.half, unit))
        parts.append(
            f'<path class="interval {colour}" '
            f'd="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 5}v10M{high:.1f} '
            f'{middle - 5}v10"/>'
        )
    parts += [
        f'<circle class="seed {colour}" cx="{horizontal(value):.1f}" cy="{middle}" r="3"/>'
        for value in row.values
    ]
    mean = horizontal.axis.label(row.mean)
    marker = _marker(row.series, horizontal(row.mean), middle, 5.5)
    parts.append(f'<g class="{colour}"><title>{escape(row.name)}: {mean}</title>{marker}</g>')
    return parts


def swatch(series: int) -> str:
    """A sample of a line with its marker, for a table or a legend."""
    dash = DASHES[series % len(DASHES)]
    return (
        f'<svg class="swatch s{series % COLOURS}" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path class="line" d="M1 6H27" stroke-dasharray="{dash}"/>'
        f"{_marker(series, 14, 6, 4)}</svg>"
    )


def figure_of(
    title: str,
    description: str,
    parts: Sequence[str],
    header: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    height: float = HEIGHT,
) -> Figure:
    """A figure of SVG elements, with its title, its description and its numbers."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    svg = (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'role="img" aria-labelledby="{slug}-title {slug}-desc">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>{"".join(parts)}</svg>'
    )
    return Figure(slug, title, description, svg, header, rows)


def _plane(
    x: Axis, y: Axis, across: Iterable[float], upwards: Iterable[float], right: float
) -> tuple[Scale, Scale]:
    """Both scales, with room for the tick labels on the left and `right` pixels on the right."""
    vertical = scale(y, upwards, HEIGHT - BOTTOM, TOP + BOTTOM - HEIGHT)
    left = 32 + max((text_width(y.label(v)) for v in vertical.ticks), default=8)
    return scale(x, across, left, WIDTH - left - right), vertical


def _frame(horizontal: Scale, vertical: Scale) -> list[str]:
    """Grid, tick labels and titles of both axes."""
    left, right = horizontal.start, horizontal.start + horizontal.span
    parts = horizontal_grid(horizontal, TOP, HEIGHT - BOTTOM)
    for value in vertical.ticks:
        y = vertical(value)
        parts.append(f'<path class="grid" d="M{left:.0f} {y:.1f}H{right:.0f}"/>')
        text = vertical.axis.label(value)
        parts.append(f'<text class="tick y" x="{left - 7:.0f}" y="{y + 4:.1f}">{text}</text>')
    hint = {"low": "lower is better", "high": "higher is better"}.get(vertical.axis.better, "")
    title = f"{vertical.axis.title}{f' ({hint})' if hint else ''}"
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(
        f'<text class="axis" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(title)}'
        "</text>"
    )
    return parts


def horizontal_grid(horizontal: Scale, top: float, bottom: float) -> list[str]:
    """Vertical grid lines, the tick labels below them, and the title of the axis."""
    parts = []
    last = -math.inf
    for value in horizontal.ticks:
        x, text = horizontal(value), horizontal.axis.label(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {top}V{bottom:g}"/>')
        if x - last > text_width(text) + 4:
            parts.append(f'<text class="tick x" x="{x:.1f}" y="{bottom + 16:g}">{text}</text>')
            last = x
    hint = {"low": " (lower is better)", "high": " (higher is better)"}
    title = horizontal.axis.title + hint.get(horizontal.axis.better, "")
    middle = horizontal.start + horizontal.span / 2
    parts.append(f'<text class="axis" x="{middle:.0f}" y="{bottom + 36:g}">{escape(title)}</text>')
    return parts


def _line(line: Line, horizontal: Scale, vertical: Scale) -> str:
    pixels = [(horizontal(x), vertical(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in pixels)
    dash = DASHES[line.series % len(DASHES)]
    every = 1 if len(pixels) <= 12 else len(pixels)  # long curves: first and last only
    markers = "".join(
        f"<g><title>{escape(line.name)}: {horizontal.axis.label(point[0])}, "
        f"{vertical.axis.label(point[1])}</title>{_marker(line.series, *pixel, 3.5)}</g>"
        for i, (pixel, point) in enumerate(zip(pixels, line.points, strict=True))
        if i % every == 0 or i == len(pixels) - 1
    )
    return (
        f'<g class="s{line.series % COLOURS}"><polyline class="line" stroke-dasharray="{dash}" '
        f'points="{path}"/>{markers}</g>'
    )


def _band(line: Line, horizontal: Scale, vertical: Scale) -> str:
    there = [f"{horizontal(x):.1f},{vertical(high):.1f}" for x, _, high in line.band]
    back = [f"{horizontal(x):.1f},{vertical(low):.1f}" for x, low, _ in reversed(line.band)]
    return f'<polygon class="band s{line.series % COLOURS}" points="{" ".join(there + back)}"/>'


def _dot(dot: Dot, horizontal: Scale, vertical: Scale, front: bool) -> str:
    x, y = horizontal(dot.x), vertical(dot.y)
    whisker = ""
    if dot.error and math.isfinite(dot.error):
        low, high = map(vertical, interval_ends(dot.y, dot.error, vertical.axis.unit))
        whisker = f'<path class="interval" d="M{x:.1f} {high:.1f}V{low:.1f}"/>'
    values = f"{horizontal.axis.label(dot.x)}, {vertical.axis.label(dot.y)}"
    return (
        f'<g class="s{dot.series % COLOURS}"><title>{escape(dot.name)}: {values}</title>{whisker}'
        f"{_marker(dot.series, x, y, 6 if front else 4)}</g>"
    )


def _dot_names(dots: Sequence[Dot], horizontal: Scale, vertical: Scale) -> list[str]:
    """Labels of dots: to the right if there is room, and without overlaps if possible."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []  # (left, right, height) of names and dots
    taken += [(horizontal(d.x) - 6, horizontal(d.x) + 6, vertical(d.y)) for d in dots]
    for dot in sorted(dots, key=lambda dot: dot.x):
        tries = _label_places(dot, horizontal, vertical)
        free = [t for t in tries if not any(_touches(t, other) for other in taken)]
        left, right, anchor, height = (free or tries)[0]
        taken.append((left, right, height))
        at = left if anchor == "start" else right
        parts.append(
            f'<text class="label s{dot.series % COLOURS}" x="{at:.1f}" y="{height + 4:.1f}" '
            f'text-anchor="{anchor}">{escape(dot.name)}</text>'
        )
    return parts


def _label_places(
    dot: Dot, horizontal: Scale, vertical: Scale
) -> list[tuple[float, float, str, float]]:
    """(left, right, anchor, height) of the places for a dot's label in the chart, best first."""
    x, y, size = horizontal(dot.x), vertical(dot.y), text_width(dot.name)
    sides = [(x + 10, x + 10 + size, "start"), (x - 10 - size, x - 10, "end")]
    return [
        (left, right, anchor, y + shift)
        for shift in (0, -13, 13, -26, 26, -39, 39)
        for left, right, anchor in sides
        if right < WIDTH and left > horizontal.start
    ]


def _touches(name: tuple[float, float, str, float], other: tuple[float, float, float]) -> bool:
    left, right, _, height = name
    return left < other[1] and other[0] < right and abs(height - other[2]) < LABEL_GAP


def _mark(mark: Mark, horizontal: Scale, vertical: Scale) -> str:
    x = horizontal(mark.x)
    if mark.y is None:
        return (
            f'<path class="here" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
            f'<text class="note" x="{x + 4:.1f}" y="{TOP + 10}">{escape(mark.text)}</text>'
        )
    y = vertical(mark.y)
    return (
        f'<g><title>{escape(mark.text)}</title><circle class="crossing" cx="{x:.1f}" '
        f'cy="{y:.1f}" r="8"/><text class="note" x="{x - 4:.1f}" y="{y - 11:.1f}" '
        f'text-anchor="middle">{escape(mark.text)}</text></g>'
    )


def _spread(items: Sequence[tuple[Line, float]]) -> list[tuple[Line, float]]:
    """Heights of labels that do not overlap, each as near to its line as possible."""
    order = sorted(items, key=lambda item: item[1])
    heights = [height for _, height in order]
    for _ in range(60):
        for i in range(len(heights) - 1):
            overlap = LABEL_GAP - (heights[i + 1] - heights[i])
            if overlap > 0:
                heights[i] -= overlap / 2
                heights[i + 1] += overlap / 2
        heights = [min(max(height, TOP + 4), HEIGHT - BOTTOM) for height in heights]
    return [(line, height) for (line, _), height in zip(order, heights, strict=True)]


def _label(line: Line, x: float, y: float, horizontal: Scale, height: float) -> str:
    text = f"{line.name}{line.note}"
    start = round(horizontal.start + horizontal.span) + 10
    return (
        f'<path class="lead" d="M{x + 5:.1f} {y:.1f}L{start - 4} {height:.1f}"/>'
        f'<text class="label s{line.series % COLOURS}" x="{start}" y="{height + 4:.1f}">'
        f"{escape(text)}</text>"
    )


def _marker(series: int, x: float, y: float, r: float) -> str:
    """A marker; there are six shapes."""
    shape = series % 6
    if shape == 0:
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        4: ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
        5: ((-0.5, -1.3), (0.5, -1.3), (1.3, 0), (0.5, 1.3), (-0.5, 1.3), (-1.3, 0)),
    }[shape]
    points = " ".join(f"{x + r * 0.95 * a:.1f},{y + r * 0.95 * b:.1f}" for a, b in corners)
    return f'<polygon class="dot" points="{points}"/>'
