"""A confusion matrix as SVG: labels down, answers across, shaded by the share of each row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from threefold.drawing.axes import text_width
from threefold.drawing.charts import WIDTH, Figure, figure_of

LARGEST_CELL, SMALLEST_CELL = 44.0, 14.0
LEGIBLE_CELL = 22.0  # below this no numbers are written into the cells
LONGEST_NAME = 14
DARK = 0.55  # share of a row above which a number is written in the colour of the paper


def matrix_chart(
    title: str, description: str, names: Sequence[str], counts: Sequence[Sequence[int]]
) -> Figure:
    """Counts [label][answer]; the table beneath lists every cell that is not 0."""
    shown = [
        name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…" for name in names
    ]
    widest = max(text_width(name) for name in shown)
    left, top = widest + 30, widest * 0.72 + 34
    cell = max(SMALLEST_CELL, min(LARGEST_CELL, (WIDTH - left - 8) / len(names)))
    parts = [
        f'<text class="axis" x="{left + cell * len(names) / 2:.0f}" y="12">answer</text>',
        f'<text class="axis" transform="translate(12 {top + cell * len(names) / 2:.0f}) '
        'rotate(-90)">label</text>',
    ]
    for i, name in enumerate(shown):
        middle = top + cell * (i + 0.5)
        parts.append(
            f'<text class="name" x="{left - 7:.1f}" y="{middle + 4:.1f}">{escape(name)}</text>'
        )
        x = left + cell * (i + 0.5) + 4
        parts.append(
            f'<text class="name slanted" transform="translate({x:.1f} {top - 7:.1f}) rotate(-45)">'
            f"{escape(name)}</text>"
        )
        parts += _row(counts[i], names, i, (left, top + cell * i, cell))
    rows = tuple(
        (names[i], names[j], f"{count:,}")
        for i, line in enumerate(counts)
        for j, count in enumerate(line)
        if count
    )
    height = top + cell * len(names) + 10
    return figure_of(
        title, description, parts, ("label", "answer", "number"), rows, (WIDTH, height)
    )


def _row(
    line: Sequence[int], names: Sequence[str], label: int, place: tuple[float, float, float]
) -> list[str]:
    """The cells of one label."""
    left, y, cell = place
    total = sum(line) or 1
    parts = []
    for j, count in enumerate(line):
        share, x = count / total, left + cell * j
        parts.append(
            f"<g><title>{escape(names[label])} answered as {escape(names[j])}: {count:,}</title>"
            f'<rect class="cell-frame" x="{x:.1f}" y="{y:.1f}" width="{cell:.1f}" '
            f'height="{cell:.1f}"/><rect class="cell" x="{x + 1:.1f}" y="{y + 1:.1f}" '
            f'width="{cell - 2:.1f}" height="{cell - 2:.1f}" fill-opacity="{share:.3f}"/></g>'
        )
        if cell >= LEGIBLE_CELL and count:
            over = " over" if share > DARK else ""
            parts.append(
                f'<text class="cell-text{over}" x="{x + cell / 2:.1f}" y="{y + cell / 2 + 4:.1f}">'
                f"{_short(count)}</text>"
            )
    return parts


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"
