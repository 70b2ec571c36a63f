"""The number of heads, and channels split into heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from threefold.errors import ThreefoldError


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H·size] to [B, L, H, size]."""
    return torch.unflatten(x, -1, (heads, x.shape[-1] // heads))


def expand_width(width: int, factor: float) -> int:
    """width · factor as a whole number: 2304 · (4096/2304) is 4096, whatever rounding says."""
    return round(width * factor)


def choose_heads(width: int, heads: int | None, size: int) -> int:
    """`heads`, if they divide the width; if None, the number that gives sizes nearest to `size`."""
    if heads is None:
        divisors = [h for h in range(1, width + 1) if width % h == 0]
        return min(divisors, key=lambda h: abs(math.log(width / h / size)))
    if heads < 1 or width % heads:
        divisors = [h for h in range(1, min(width, 64) + 1) if width % h == 0]
        raise ThreefoldError(
            f"{heads} heads do not divide {width} channels; choose among {divisors}"
        )
    return heads
