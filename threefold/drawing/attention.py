"""Pictures of what a model does; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from threefold.errors import ThreefoldError


def draw_weights(
    weights: Tensor,
    path: str | Path | None = None,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> Any:
    """A picture of attention weights [L, S], or [H, L, S] head by head; returns the figure.

    Rows are queries, columns what they read; labels may be tokens.  With a path it is saved.
    """
    heads = weights.unsqueeze(0) if weights.dim() == 2 else weights
    if heads.dim() != 3 or 0 in heads.shape:
        raise ThreefoldError(
            f"draw_weights: weights are {tuple(weights.shape)}, expected [queries, keys] or "
            "[heads, queries, keys]; pick one row of a batch"
        )
    for what, labels, count in (
        ("queries", queries, heads.shape[1]),
        ("keys", keys, heads.shape[2]),
    ):
        if labels is not None and len(labels) != count:
            raise ThreefoldError(f"draw_weights: {len(labels)} labels for {count} {what}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ThreefoldError(
            "draw_weights needs matplotlib; install it with: pip install 'threefold[plot]'"
        ) from error
    columns = math.ceil(math.sqrt(len(heads)))
    rows = math.ceil(len(heads) / columns)
    figure = Figure(figsize=(4 * columns, 4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for number, (axis, head) in enumerate(zip(axes, heads.detach().float().cpu(), strict=False)):
        axis.imshow(head.numpy(), vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(f"head {number}" if len(heads) > 1 else "weights")
        axis.set_xlabel("read")
        axis.set_ylabel("by")
        if keys is not None:
            axis.set_xticks(range(len(keys)), keys, rotation=90)
        if queries is not None:
            axis.set_yticks(range(len(queries)), queries)
    for axis in axes[len(heads) :]:
        axis.set_axis_off()
    if path is not None:
        figure.savefig(path)
    return figure


def draw_sheet(
    images: Tensor, path: str | Path | None = None, *, titles: Sequence[str] | None = None
) -> Any:
    """A contact sheet of square images that come as sequences [N, pixels(, 1)], from 0 to 1."""
    side = math.isqrt(images[0].numel()) if len(images) else 0
    if side == 0 or side**2 != images[0].numel():
        raise ThreefoldError(
            f"draw_sheet: images are {tuple(images.shape)}, expected [images, pixels] with a "
            "square number of pixels"
        )
    if titles is not None and len(titles) != len(images):
        raise ThreefoldError(f"draw_sheet: {len(titles)} titles for {len(images)} images")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ThreefoldError(
            "draw_sheet needs matplotlib; install it with: pip install 'threefold[plot]'"
        ) from error
    columns = min(len(images), 8)
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.5 * columns, 1.7 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes:
        axis.set_axis_off()
    for number, (axis, image) in enumerate(zip(axes, images, strict=False)):
        pixels = image.detach().float().cpu().view(side, side)
        axis.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1)
        if titles is not None:
            axis.set_title(titles[number], fontsize=8)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
