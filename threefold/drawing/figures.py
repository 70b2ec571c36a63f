"""Figures as PNG and SVG, in one look; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from threefold.errors import ThreefoldError

# Okabe & Ito 2008: told apart with every kind of sight.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, GREY, FAINT = "#222222", "#8A8A8A", "#E3E3E3"

LOOK: dict[str, Any] = {
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


def look() -> Any:
    """A context in which what is drawn has the common look."""
    try:
        import matplotlib
    except ImportError as error:
        raise ThreefoldError(
            "drawing needs matplotlib, which is not installed: pip install 'threefold[plot]'"
        ) from error
    return matplotlib.rc_context(LOOK)  # type: ignore[arg-type]


def new_figure(width: float, height: float) -> Any:
    """An empty figure of that many inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06, hspace=0.04)  # type: ignore[union-attr, call-arg]
    return figure


def save(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write `name`.png and `name`.svg into the folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ThreefoldError(f"{folder}: cannot be made a folder for figures ({error})") from error
    paths = folder / f"{name}.png", folder / f"{name}.svg"
    with look():  # text stays text in the SVG
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
