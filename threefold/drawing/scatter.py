"""A scatter plot with names and a Pareto front; a third quantity is the area of a bubble."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from threefold.drawing.axes import Axis, Scale, interval_ends, text_width
from threefold.drawing.charts import (
    BOTTOM,
    HEIGHT,
    LABEL_GAP,
    TOP,
    WIDTH,
    Figure,
    figure_of,
    frame,
    plane,
)
from threefold.drawing.series_style import belongs, colour, marker

SMALLEST_BUBBLE, LARGEST_BUBBLE = 8.0, 22.0  # radii
# Up and down from a dot, where its name may stand, nearest first.
LABEL_SHIFTS = tuple(sign * LABEL_GAP * i for i in range(14) for sign in (-1, 1))
FAR_LABEL = 20.0  # distance from which on a line leads from a dot to its name


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
        _heights(dots, y),
        14 if size is None else LARGEST_BUBBLE,
    )
    parts = frame(horizontal, vertical)
    best = sorted((dot for dot in dots if dot.name in front), key=lambda dot: dot.x)
    if len(best) > 1 and size is None:
        path = " ".join(f"{horizontal(d.x):.1f},{vertical(d.y):.1f}" for d in best)
        parts.append(f'<polyline class="front" points="{path}"/>')
    radii = _radii(dots) if size is not None else {}
    parts += [_bubble(d, d.name in front, horizontal, vertical, r) for d, r in radii.items()]
    axes = (x, y) if size is None else (x, y, size)
    cells = {
        d.name: tuple(a.label(v) for a, v in zip(axes, _values(d), strict=False)) for d in dots
    }
    for dot in dots:
        told = f"{dot.name}: {', '.join(cells[dot.name])}"
        parts.append(_dot(dot, horizontal, vertical, dot.name in front, told))
    parts += _dot_names(dots, horizontal, vertical, radii)
    rows = tuple((d.name, *cells[d.name], "yes" if d.name in front else "no") for d in dots)
    header = ("model", *(axis.title for axis in axes), "on the Pareto front")
    return figure_of(title, description, parts, header, rows)


def _heights(dots: Sequence[Dot], y: Axis) -> list[float]:
    """The values to show: all dots, and intervals as long as they do not crowd the dots."""
    low, high = min(dot.y for dot in dots), max(dot.y for dot in dots)
    room = (high - low) or math.inf
    ends = [end for dot in dots for end in interval_ends(dot.y, dot.error, y)]
    return [low, high, *(min(max(end, low - room), high + room) for end in ends)]


def _values(dot: Dot) -> tuple[float, float, float]:
    return dot.x, dot.y, dot.size


def _radii(dots: Sequence[Dot]) -> dict[Dot, float]:
    """The radii of the bubbles, from the smallest to the largest size, the largest first."""
    sizes = {dot: math.log(max(dot.size, 1.0)) for dot in dots}
    low, high = min(sizes.values()), max(sizes.values())
    span = (LARGEST_BUBBLE - SMALLEST_BUBBLE) / ((high - low) or 1.0)
    order = sorted(dots, key=lambda dot: -dot.size)
    return {dot: SMALLEST_BUBBLE + (sizes[dot] - low) * span for dot in order}


def _bubble(dot: Dot, front: bool, horizontal: Scale, vertical: Scale, radius: float) -> str:
    """The bubble of a dot; a ring if it is on the front."""
    return (
        f'<circle class="{"bubble ring" if front else "bubble"} {colour(dot.series)}" '
        f'{belongs(dot.series)} cx="{horizontal(dot.x):.1f}" cy="{vertical(dot.y):.1f}" '
        f'r="{radius:.1f}"/>'
    )


def _dot(dot: Dot, horizontal: Scale, vertical: Scale, front: bool, told: str) -> str:
    x, y = horizontal(dot.x), vertical(dot.y)
    whisker = ""
    if dot.error and math.isfinite(dot.error):
        ends = interval_ends(dot.y, dot.error, vertical.axis)
        low, high = vertical(max(ends[0], vertical.low)), vertical(min(ends[1], vertical.high))
        whisker = f'<path class="interval" d="M{x:.1f} {high:.1f}V{low:.1f}"/>'
    return (
        f'<g class="{colour(dot.series)}" {belongs(dot.series)}>'
        f"<title>{escape(told)}</title>{whisker}"
        f"{marker(dot.series, x, y, 6 if front else 4)}</g>"
    )


def _dot_names(
    dots: Sequence[Dot], horizontal: Scale, vertical: Scale, radii: Mapping[Dot, float]
) -> list[str]:
    """Labels of dots: to the right if there is room, and without overlaps if possible."""
    parts: list[str] = []
    taken: list[tuple[float, float, float]] = []  # (left, right, height) of names and dots
    taken += [(horizontal(d.x) - 6, horizontal(d.x) + 6, vertical(d.y)) for d in dots]
    for dot in sorted(dots, key=lambda dot: dot.x):
        tries = _label_places(dot, horizontal, vertical, radii.get(dot, 6.0) + 4)
        free = [t for t in tries if not any(_touches(t, other) for other in taken)]
        left, right, anchor, height = (free or tries)[0]
        taken.append((left, right, height))
        at = left if anchor == "start" else right
        x, y = horizontal(dot.x), vertical(dot.y)
        if abs(height - y) > FAR_LABEL:
            parts.append(
                f'<path class="lead" {belongs(dot.series)} d="M{x:.1f} {y:.1f}L{at:.1f} '
                f'{height:.1f}"/>'
            )
        parts.append(
            f'<text class="label {colour(dot.series)}" {belongs(dot.series)} x="{at:.1f}" '
            f'y="{height + 4:.1f}" text-anchor="{anchor}">{escape(dot.name)}</text>'
        )
    return parts


def _label_places(
    dot: Dot, horizontal: Scale, vertical: Scale, gap: float
) -> list[tuple[float, float, str, float]]:
    """(left, right, anchor, height) of the places for a dot's label in the chart, best first."""
    x, y, size = horizontal(dot.x), vertical(dot.y), text_width(dot.name)
    sides = [(x + gap, x + gap + size, "start"), (x - gap - size, x - gap, "end")]
    return [
        (left, right, anchor, y + shift)
        for shift in LABEL_SHIFTS
        for left, right, anchor in sides
        if right < WIDTH and left > horizontal.start and TOP <= y + shift <= HEIGHT - BOTTOM
    ]


def _touches(name: tuple[float, float, str, float], other: tuple[float, float, float]) -> bool:
    left, right, _, height = name
    return left < other[1] and other[0] < right and abs(height - other[2]) < LABEL_GAP
