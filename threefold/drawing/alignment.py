"""The alignment picture: weights [L, M] as a map, source along the top, target downwards."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch import Tensor

from threefold.errors import ThreefoldError


def draw_weights(
    weights: Tensor, source: Sequence[str], target: Sequence[str], path: str | PathLike[str]
) -> None:
    """Draw weights [L, M] with a text for each place; dark is 1, white is 0."""
    if tuple(weights.shape) != (len(target), len(source)):
        raise ThreefoldError(
            f"draw_alignment: weights {tuple(weights.shape)} with {len(target)} texts of the "
            f"target and {len(source)} of the source; expected a text for each token"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ThreefoldError(
            "drawing needs matplotlib, which is not installed: pip install 'threefold[plot]'"
        ) from error
    figure = Figure(figsize=_size(source, target), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(
        weights.detach().double().cpu().numpy(), cmap="BuPu", vmin=0, vmax=1, aspect="equal"
    )
    axes.set_xticks(range(len(source)), source, rotation=90 if max(map(len, source)) > 2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.set_xticks([place - 0.5 for place in range(1, len(source))], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, len(target))], minor=True)
    axes.grid(which="minor", color="0.92", linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("source", color="0.4")
    axes.set_ylabel("target", color="0.4")
    axes.spines[:].set_color("0.8")
    bar = figure.colorbar(picture, ax=axes, ticks=[0, 0.5, 1], shrink=0.6, aspect=24, pad=0.03)
    bar.set_label("weight", color="0.4")
    bar.outline.set_visible(False)
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise ThreefoldError(f"{path}: cannot be drawn ({error})") from error


def _size(source: Sequence[str], target: Sequence[str]) -> tuple[float, float]:
    """Inches: a quarter for each place, and room for the texts and the colour bar."""
    longest = max(map(len, target))
    return 1.6 + 0.08 * longest + 0.25 * len(source), 1.2 + 0.25 * len(target)


def one_row(tokens: Tensor | Sequence[int], what: str) -> Tensor:
    """Tokens [L], as a table of one row."""
    row = torch.as_tensor(tokens)
    if row.dim() != 1 or row.numel() == 0 or row.is_floating_point():
        raise ThreefoldError(
            f"draw_alignment: the {what} is {tuple(row.shape)} {row.dtype}, expected whole numbers "
            "[length] of one row"
        )
    return row.long().unsqueeze(0)
