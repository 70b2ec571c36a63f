"""How the series of charts differ: colour, dashes and marker, so that no chart needs colours alone.

Models have a colour each and filled markers; baselines are grey and have hollow markers.
"""

from __future__ import annotations

DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4", "6 2 2 2")
COLOURS = 8
GREY = 7
BASELINE = 100  # the series of the first baseline


def colour(series: int) -> str:
    """The class of page.css that sets the colour."""
    return f"s{GREY if series >= BASELINE else series % COLOURS}"


def dash(series: int) -> str:
    """The dashes of a line."""
    return DASHES[(series - BASELINE + 1 if series >= BASELINE else series) % len(DASHES)]


def belongs(series: int) -> str:
    """The attribute by which a script hides everything of a series."""
    return f'data-series="{series}"'


def swatch(series: int) -> str:
    """A sample of a line with its marker, for a table or a legend."""
    return (
        f'<svg class="swatch {colour(series)}" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path class="line" d="M1 6H27" stroke-dasharray="{dash(series)}"/>'
        f"{marker(series, 14, 6, 4)}</svg>"
    )


def marker(series: int, x: float, y: float, r: float) -> str:
    """A marker; there are six shapes."""
    shape = (series - BASELINE if series >= BASELINE else series) % 6
    look = "dot hollow" if series >= BASELINE else "dot"
    if shape == 0:
        return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/>'
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
        3: ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        4: ((0, 1.3), (1.2, -0.9), (-1.2, -0.9)),
        5: ((-0.5, -1.3), (0.5, -1.3), (1.3, 0), (0.5, 1.3), (-0.5, 1.3), (-1.3, 0)),
    }[shape]
    points = " ".join(f"{x + r * 0.95 * a:.1f},{y + r * 0.95 * b:.1f}" for a, b in corners)
    return f'<polygon class="{look}" points="{points}"/>'
