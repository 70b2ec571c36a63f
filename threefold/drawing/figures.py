"""Figures of studies as PNG and SVG in one style; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from threefold.errors import ThreefoldError

# Okabe & Ito 2008: distinguishable with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, GREY, FAINT = "#222222", "#8A8A8A", "#E3E3E3"

STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "threefold",
}


def style() -> Any:
    """A context manager in which matplotlib uses the common style."""
    return _matplotlib().rc_context(STYLE)


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ThreefoldError(
            "drawing needs matplotlib; install it with: pip install 'threefold[plot]'"
        ) from error
    return matplotlib


def plain_figure(width: float, height: float) -> Any:
    """An empty figure without extra room between its axes; width and height in inches."""
    return _matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


def new_figure(width: float, height: float) -> Any:
    """An empty figure; width and height in inches."""
    figure = plain_figure(width, height)
    figure.get_layout_engine().set(wspace=0.06, hspace=0.04)
    return figure


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.svg into the folder, which is created if necessary."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ThreefoldError(
            f"{folder}: cannot be created as a folder for figures ({error})"
        ) from error
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with style():  # keeps text as text in the SVG
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
