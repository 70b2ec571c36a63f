"""A scatter plot with names and a Pareto front; a third quantity is the area of a bubble."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from threefold.drawing.axes import Axis, Scale, interval_ends, text_width
from threefold.drawing.charts import LABEL_GAP, WIDTH, Figure, figure_of, frame, plane
from threefold.drawing.series_style import belongs, colour, marker

SMALLEST_BUBBLE, LARGEST_BUBBLE = 8.0, 22.0  # radii


@dataclass(frozen=True)
class Dot:
    """One point of a scatter plot; `error` is the half-width of the interval of its y."""

    name: str
    series: int
    x: float
    y: float
    error: float = 0.0
    size: float = 0.0  # a third quantity, drawn as a bubble


def dot_chart(
    title: str,
    description: str,
    dots: Sequence[Dot],
    front: Sequence[str],
    x: Axis,
    y: Axis,
    size: Axis | None = None,
) -> Figure:
    """A scatter plot; the dots of the Pareto front are larger, and joined if it has two axes."""
    horizontal, vertical = plane(
        x,
        y,
        [dot.x for dot in dots],
        [value for dot in dots for value in interval_ends(dot.y, dot.error, y.unit)],
        14 if size is None else LARGEST_BUBBLE,
    )
    parts = frame(horizontal, vertical)
    best = sorted((dot for dot in dots if dot.name in front), key=lambda dot: dot.x)
    if len(best) > 1 and size is None:
        path = " ".join(f"{horizontal(d.x):.1f},{vertical(d.y):.1f}" for d in best)
        parts.append(f'<polyline class="front" points="{path}"/>')
    if size is not None:
        parts += _bubbles(dots, front, horizontal, vertical)
    axes = (x, y) if size is None else (x, y, size)
    cells = {
        d.name: tuple(a.label(v) for a, v in zip(axes, _values(d), strict=False)) for d in dots
    }
    for dot in dots:
        told = f"{dot.name}: {', '.join(cells[dot.name])}"
        parts.append(_dot(dot, horizontal, vertical, dot.name in front, told))
    parts += _dot_names(dots, horizontal, vertical)
    rows = tuple((d.name, *cells[d.name], "yes" if d.name in front else "no") for d in dots)
    header = ("model", *(axis.title for axis in axes), "on the Pareto front")
    return figure_of(title, description, parts, header, rows)


def _values(dot: Dot) -> tuple[float, float, float]:
    return dot.x, dot.y, dot.size


def _bubbles(
    dots: Sequence[Dot], front: Sequence[str], horizontal: Scale, vertical: Scale
) -> list[str]:
    """A bubble around each dot, from the smallest to the largest size; rings on the front."""
    sizes = [math.log(max(dot.size, 1.0)) for dot in dots]
    low, high = min(sizes), max(sizes)
    parts = []
    for dot, size in sorted(zip(dots, sizes, strict=True), key=lambda item: -item[1]):
        share = (size - low) / ((high - low) or 1.0)
        radius = SMALLEST_BUBBLE + share * (LARGEST_BUBBLE - SMALLEST_BUBBLE)
        look = "bubble ring" if dot.name in front else "bubble"
        parts.append(
            f'<circle class="{look} {colour(dot.series)}" {belongs(dot.series)} '
            f'cx="{horizontal(dot.x):.1f}" cy="{vertical(dot.y):.1f}" r="{radius:.1f}"/>'
        )
    return parts


def _dot(dot: Dot, horizontal: Scale, vertical: Scale, front: bool, told: str) -> str:
    x, y = horizontal(dot.x), vertical(dot.y)
    whisker = ""
    if dot.error and math.isfinite(dot.error):
        low, high = map(vertical, interval_ends(dot.y, dot.error, vertical.axis.unit))
        whisker = f'<path class="interval" d="M{x:.1f} {high:.1f}V{low:.1f}"/>'
    return (
        f'<g class="{colour(dot.series)}" {belongs(dot.series)}>'
        f"<title>{escape(told)}</title>{whisker}"
        f"{marker(dot.series, x, y, 6 if front else 4)}</g>"
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
            f'<text class="label {colour(dot.series)}" {belongs(dot.series)} x="{at:.1f}" '
            f'y="{height + 4:.1f}" text-anchor="{anchor}">{escape(dot.name)}</text>'
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
