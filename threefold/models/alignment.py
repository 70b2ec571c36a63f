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
    """Draw weights [L, M] with a text for each place; black is 1, white is 0."""
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
    size = 1.5 + 0.25 * len(source), 1.5 + 0.25 * len(target)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.imshow(
        weights.detach().double().cpu().numpy(), cmap="Greys", vmin=0, vmax=1, aspect="equal"
    )
    axes.set_xticks(range(len(source)), source, rotation=90 if max(map(len, source)) > 2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.set_xlabel("source")
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("target")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ThreefoldError(f"{path}: cannot be drawn ({error})") from error


def one_row(tokens: Tensor | Sequence[int], what: str) -> Tensor:
    """Tokens [L], as a table of one row."""
    row = torch.as_tensor(tokens)
    if row.dim() != 1 or row.numel() == 0 or row.is_floating_point():
        raise ThreefoldError(
            f"draw_alignment: the {what} is {tuple(row.shape)} {row.dtype}, expected whole numbers "
            "[length] of one row"
        )
    return row.long().unsqueeze(0)
