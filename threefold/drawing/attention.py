"""Pictures of attention weights and of images; needs matplotlib (the extra `plot`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any

from torch import Tensor

from threefold.drawing.figures import plain_figure
from threefold.errors import ThreefoldError

CELL = 0.25  # inches per labelled row and column


def draw_weights(
    weights: Tensor,
    path: str | PathLike[str] | None = None,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    names: tuple[str, str] = ("query", "key"),
) -> Any:
    """Draw attention weights [L, S], or [H, L, S] head by head; dark is 1, white is 0.

    Rows are queries, columns are keys; both may be labelled, for example with tokens, and `names`
    are the titles of both axes.  Returns the figure, which is also saved if a path is given.
    """
    heads = _heads(weights, queries, keys)
    size = (_side(keys, queries), _side(queries, keys))
    figure, axes = _grid(len(heads), math.ceil(math.sqrt(len(heads))), size)
    aspect = "auto" if queries is None or keys is None else "equal"
    picture = None
    for number, (axis, head) in enumerate(zip(axes, heads.detach().float().cpu(), strict=False)):
        picture = axis.imshow(head.numpy(), vmin=0, vmax=1, cmap="BuPu", aspect=aspect)
        if len(heads) > 1:
            axis.set_title(f"head {number}")
        _label(axis, queries, keys, names)
    bar = figure.colorbar(picture, ax=list(axes), ticks=[0, 0.5, 1], shrink=0.6, aspect=24)
    bar.set_label("weight", color="0.4")
    bar.outline.set_visible(False)
    _save(figure, path)
    return figure


def draw_attention_on_image(
    weights: Tensor,
    image: Tensor,
    grid: tuple[int, int],
    path: str | PathLike[str] | None = None,
    *,
    words: Sequence[str],
) -> Any:
    """Draw where a captioner looks: weights [words, positions] over an image, word by word.

    image [channels, height, width], from −1 to 1, of 1 or 3 channels; grid: the rows and columns of
    positions.  What a word does not look at is grey.
    """
    down, across = grid
    if weights.dim() != 2 or weights.shape != (len(words), down * across):
        raise ThreefoldError(
            f"draw_attention_on_image: weights are {tuple(weights.shape)}, expected "
            f"[{len(words)} words, {down} · {across} positions]"
        )
    if image.dim() != 3 or len(image) not in (1, 3):
        raise ThreefoldError(
            f"draw_attention_on_image: the image is {tuple(image.shape)}, expected [channels, "
            "height, width] with 1 or 3 channels"
        )
    pixels = (image.detach().float().cpu().expand(3, -1, -1).permute(1, 2, 0) + 1) / 2
    shares = weights.detach().float().cpu().view(-1, down, across)
    extent = (-0.5, image.shape[2] - 0.5, image.shape[1] - 0.5, -0.5)
    figure, axes = _grid(len(words) + 1, min(len(words) + 1, 6), (1.5, 1.7))
    for axis, title in zip(axes, ["image", *words], strict=True):
        axis.set_axis_off()
        axis.set_title(title, fontsize=8)
        axis.imshow(pixels.clamp(0, 1).numpy())
    for axis, share in zip(axes[1:], shares, strict=True):
        shade = 0.85 * (1 - share / share.max().clamp(min=1e-12))
        grey = shade.new_full(shade.shape, 0.6).numpy()  # seen on dark and on light images
        axis.imshow(grey, cmap="gray", vmin=0, vmax=1, alpha=shade.numpy(), extent=extent)
    _save(figure, path)
    return figure


def draw_sheet(
    images: Tensor, path: str | PathLike[str] | None = None, *, titles: Sequence[str] | None = None
) -> Any:
    """A contact sheet of square images given as sequences [N, pixels(, 1)] from 0 to 1."""
    side = _image_side(images)
    if titles is not None and len(titles) != len(images):
        raise ThreefoldError(f"draw_sheet: {len(titles)} titles for {len(images)} images")
    figure, axes = _grid(len(images), min(len(images), 8), (1.5, 1.7))
    for number, (axis, image) in enumerate(zip(axes, images, strict=False)):
        pixels = image.detach().float().cpu().view(side, side)
        axis.set_axis_off()
        axis.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1)
        if titles is not None:
            axis.set_title(titles[number], fontsize=8)
    _save(figure, path)
    return figure


def _image_side(images: Tensor) -> int:
    """Pixels along each side of the images."""
    side = math.isqrt(images[0].numel()) if len(images) else 0
    if side == 0 or side**2 != images[0].numel():
        raise ThreefoldError(
            f"draw_sheet: images are {tuple(images.shape)}, expected [images, pixels] with a "
            "square number of pixels"
        )
    return side


def _heads(weights: Tensor, queries: Sequence[str] | None, keys: Sequence[str] | None) -> Tensor:
    """Weights as [H, L, S], checked against their labels."""
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
            raise ThreefoldError(
                f"draw_weights: {len(labels)} labels for {count} {what}; expected one for each"
            )
    return heads


def _grid(count: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure with `count` axes of that many inches each; the rest of the last row is empty."""
    rows = math.ceil(count / columns)
    figure = plain_figure(size[0] * columns, size[1] * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def _side(labels: Sequence[str] | None, others: Sequence[str] | None) -> float:
    """Inches along one axis: room for its own labels, and for the text of the other axis's."""
    if labels is None:
        return 4.0
    longest = max(map(len, others), default=0) if others else 0
    return max(3.0, 1.6 + 0.08 * longest + CELL * len(labels))


def _label(
    axis: Any, queries: Sequence[str] | None, keys: Sequence[str] | None, names: tuple[str, str]
) -> None:
    """Titles of both axes, and a text and a grid line for each labelled row and column."""
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.set_ylabel(names[0], color="0.4")
    axis.set_xlabel(names[1], color="0.4")
    axis.spines[:].set_color("0.8")
    if keys is not None:
        axis.set_xticks(range(len(keys)), keys, rotation=90 if max(map(len, keys)) > 2 else 0)
        axis.set_xticks([i - 0.5 for i in range(1, len(keys))], minor=True)
    if queries is not None:
        axis.set_yticks(range(len(queries)), queries)
        axis.set_yticks([i - 0.5 for i in range(1, len(queries))], minor=True)
    axis.grid(which="minor", color="0.92", linewidth=0.6)
    axis.tick_params(which="both", length=0)


def _save(figure: Any, path: str | PathLike[str] | None) -> None:
    """Write the figure in the format that the suffix names."""
    if path is None:
        return
    if not isinstance(path, str | PathLike):
        raise ThreefoldError(f"path is {path!r}; expected a path")
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as error:
        raise ThreefoldError(f"{path}: the figure cannot be saved ({error})") from error
