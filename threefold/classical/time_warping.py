"""label(x) = label of argmin_i dtw(x, x_i): the nearest neighbour by dynamic time warping.

A path may be at most `window` of the series' length from the diagonal.
Sakoe & Chiba 1978, "Dynamic programming algorithm optimization for spoken word recognition".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops

QUERIES_AT_ONCE = 64


def time_warping_distances(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    *,
    window: float = 0.1,
) -> Tensor:
    """Sums of squared differences [N, M] along the best path between series [·, L, D]."""
    if not 0 <= window <= 1:
        raise ThreefoldError(f"window is {window}, expected a number from 0 to 1")
    return ops.time_warping(x, y, x_lengths, y_lengths, window=window)


def nearest_neighbours(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor | None = None,
    y_lengths: Tensor | None = None,
    *,
    window: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """For each series of x, the nearest of y (the first of equals) and its distance."""
    indices, distances = [], []
    for first in range(0, len(x), QUERIES_AT_ONCE):
        rows = slice(first, first + QUERIES_AT_ONCE)
        lengths = None if x_lengths is None else x_lengths[rows]
        table = time_warping_distances(x[rows], y, lengths, y_lengths, window=window)
        found = table.min(1)
        indices.append(found.indices)
        distances.append(found.values)
    return torch.cat(indices), torch.cat(distances)
