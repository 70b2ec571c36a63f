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

from threefold.drawing.axes import Axis, Scale, scale, text_width
from threefold.drawing.series_style import belongs, colour, dash, marker

Point: TypeAlias = tuple[float, float]

WIDTH, HEIGHT = 410, 290
TOP, BOTTOM = 14, 46
LABEL_GAP = 13.0
TITLE_SIZE = 9.5  # of the title of an axis, whose letters are not bold
LONGEST_LABEL = 19  # letters of a name at the end of a line; the legend and the table have all


@dataclass(frozen=True)
class Line:
    """One line; the number `series` chooses its colour, dashes and marker."""

    name: str
    series: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()  # (x, low, high) around the line
    note: str = ""  # follows the name at the end of the line


@dataclass(frozen=True)
class Mark:
    """An annotation: a crossing at (x, y), or a vertical line at x if y is None."""

    x: float
    y: float | None
    text: str


class Guide(NamedTuple):
    """A grey line to compare with, such as what a perfect model would do."""

    points: Sequence[Point]
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
    guides: Iterable[Guide] = (),
) -> Figure:
    """A line chart; each line is labelled at its end."""
    marks, guides = tuple(marks), tuple(guides)
    shown = [line for line in lines if line.points]
    points = [p for line in shown for p in line.points]
    points += [p for guide in guides for p in guide.points]
    horizontal, vertical = plane(
        x,
        y,
        [p[0] for p in points] + [mark.x for mark in marks],
        [p[1] for p in points] + [v for line in shown for at in line.band for v in at[1:]],
        max((text_width(_end_text(line)) for line in shown), default=0) + 16,
    )
    parts = frame(horizontal, vertical)
    parts += [_guide(guide, horizontal, vertical) for guide in guides]
    parts += [_band(line, horizontal, vertical) for line in shown if line.band]
    parts += [_line(line, horizontal, vertical) for line in shown]
    parts += [_mark(mark, horizontal, vertical) for mark in marks]
    ends = [(line, vertical(line.points[-1][1])) for line in shown]
    for line, height in _spread(ends):
        last = horizontal(line.points[-1][0])
        parts.append(_label(line, last, vertical(line.points[-1][1]), horizontal, height))
    rows = tuple((line.name, x.label(a), y.label(b)) for line in shown for a, b in line.points)
    return figure_of(title, description, parts, ("model", x.title, y.title), rows)


def figure_of(
    title: str,
    description: str,
    parts: Sequence[str],
    header: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    size: tuple[float, float] = (WIDTH, HEIGHT),
) -> Figure:
    """A figure of SVG elements, with its title, its description and its numbers."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    svg = (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {size[0]:g} {size[1]:g}" role="img" '
        f'aria-labelledby="{slug}-title {slug}-desc">'
        f'<title id="{slug}-title">{escape(title)}</title>'
        f'<desc id="{slug}-desc">{escape(description)}</desc>{"".join(parts)}</svg>'
    )
    return Figure(slug, title, description, svg, header, rows)


def plane(
    x: Axis, y: Axis, across: Iterable[float], upwards: Iterable[float], right: float
) -> tuple[Scale, Scale]:
    """Both scales, with room for the tick labels on the left and `right` pixels on the right."""
    vertical = scale(y, upwards, HEIGHT - BOTTOM, TOP + BOTTOM - HEIGHT)
    left = 32 + max((text_width(y.label(v)) for v in vertical.ticks), default=8)
    return scale(x, across, left, WIDTH - left - right), vertical


def frame(horizontal: Scale, vertical: Scale) -> list[str]:
    """Grid, tick labels and titles of both axes."""
    left, right = horizontal.start, horizontal.start + horizontal.span
    parts = grid(horizontal, TOP, HEIGHT - BOTTOM)
    for value in vertical.ticks:
        y = vertical(value)
        parts.append(f'<path class="grid" d="M{left:.0f} {y:.1f}H{right:.0f}"/>')
        text = vertical.axis.label(value)
        parts.append(f'<text class="tick y" x="{left - 7:.0f}" y="{y + 4:.1f}">{text}</text>')
    hint = {"low": "lower is better", "high": "higher is better"}.get(vertical.axis.better, "")
    title = f"{vertical.axis.title}{f' ({hint})' if hint else ''}"
    if text_width(title, TITLE_SIZE) > HEIGHT:
        title = vertical.axis.title
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    parts.append(
        f'<text class="axis" transform="translate(13 {middle:.0f}) rotate(-90)">{escape(title)}'
        "</text>"
    )
    return parts


def grid(horizontal: Scale, top: float, bottom: float) -> list[str]:
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
    every = 1 if len(pixels) <= 12 else len(pixels)  # long curves: first and last only
    markers = "".join(
        f"<g><title>{escape(line.name)}: {horizontal.axis.label(point[0])}, "
        f"{vertical.axis.label(point[1])}</title>{marker(line.series, *pixel, 3.5)}</g>"
        for i, (pixel, point) in enumerate(zip(pixels, line.points, strict=True))
        if i % every == 0 or i == len(pixels) - 1
    )
    return (
        f'<g class="{colour(line.series)}" {belongs(line.series)}>'
        f'<polyline class="line" stroke-dasharray="{dash(line.series)}" '
        f'points="{path}"/>{markers}</g>'
    )


def _band(line: Line, horizontal: Scale, vertical: Scale) -> str:
    there = [f"{horizontal(x):.1f},{vertical(high):.1f}" for x, _, high in line.band]
    back = [f"{horizontal(x):.1f},{vertical(low):.1f}" for x, low, _ in reversed(line.band)]
    return (
        f'<polygon class="band {colour(line.series)}" {belongs(line.series)} '
        f'points="{" ".join(there + back)}"/>'
    )


def _guide(guide: Guide, horizontal: Scale, vertical: Scale) -> str:
    path = " ".join(f"{horizontal(x):.1f},{vertical(y):.1f}" for x, y in guide.points)
    x, y = guide.points[0]
    return (
        f'<polyline class="here" points="{path}"/><text class="note" '
        f'x="{horizontal(x) + 4:.1f}" y="{vertical(y) - 4:.1f}">{escape(guide.text)}</text>'
    )


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


def _end_text(line: Line) -> str:
    """What stands at the end of a line."""
    text = f"{line.name}{line.note}"
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1].rstrip()}…"


def _label(line: Line, x: float, y: float, horizontal: Scale, height: float) -> str:
    text = _end_text(line)
    start = round(horizontal.start + horizontal.span) + 10
    return (
        f"<g {belongs(line.series)}>"
        f'<path class="lead" d="M{x + 5:.1f} {y:.1f}L{start - 4} {height:.1f}"/>'
        f'<text class="label {colour(line.series)}" x="{start}" y="{height + 4:.1f}">'
        f"{escape(text)}</text></g>"
    )
