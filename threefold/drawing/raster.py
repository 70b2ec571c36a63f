"""A raster of spikes as SVG: time across, one row for each neuron, one stroke for each spike."""

from __future__ import annotations

from collections.abc import Sequence

from threefold.drawing.axes import Axis, scale, text_width
from threefold.drawing.charts import BOTTOM, TOP, WIDTH, Figure, figure_of, grid
from threefold.drawing.series_style import colour

LEAST_HEIGHT, MOST_HEIGHT, ROW = 120.0, 640.0, 3.0


def raster_chart(
    title: str,
    description: str,
    groups: Sequence[tuple[str, Sequence[Sequence[float]]]],
    time: Axis,
    end: float,
) -> Figure:
    """Groups of neurons from the top down, each neuron the times of its spikes, from 0 to `end`."""
    rows = sum(len(neurons) for _, neurons in groups)
    inside = min(max(ROW * rows, LEAST_HEIGHT), MOST_HEIGHT)
    pitch = inside / max(rows, 1)
    left = 16 + max((text_width(name) for name, _ in groups), default=0)
    horizontal = scale(time, [0.0, end], left, WIDTH - left - 16)
    parts = grid(horizontal, TOP, TOP + inside)
    table, first = [], 0
    for series, (name, neurons) in enumerate(groups):
        middle = TOP + pitch * (first + len(neurons) / 2)
        parts.append(
            f'<text class="label {colour(series)}" text-anchor="end" x="{left - 8:.0f}" '
            f'y="{middle + 4:.1f}">{name}</text>'
        )
        for number, times in enumerate(neurons):
            y = TOP + pitch * (first + number)
            strokes = "".join(f"M{horizontal(at):.1f} {y:.1f}v{0.8 * pitch:.2f}" for at in times)
            if strokes:
                parts.append(f'<path class="spike {colour(series)}" d="{strokes}"/>')
            table.append((f"{name} {number}", f"{len(times):,}"))
        first += len(neurons)
    header, height = ("neuron", "spikes"), TOP + inside + BOTTOM
    return figure_of(title, description, parts, header, tuple(table), (WIDTH, height))
