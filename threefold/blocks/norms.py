"""Norms by name:  rms: x / rms(x) ⊙ w;  layer: (x − mean(x)) / std(x) ⊙ w + b.

Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"; Ba et al. 2016, "Layer
Normalization".
"""

from __future__ import annotations

from torch import nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.norms import RMSNorm

NORMS = ("rms", "layer")


def make_norm(kind: str, width: int, *, eps: float = 1e-5, bias: bool = True) -> nn.Module:
    """A norm over the last axis, one of NORMS; only the layer norm has a bias."""
    if kind not in NORMS:
        raise ThreefoldError(f"unknown norm {kind!r}; {nearest(str(kind), NORMS)}")
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or eps <= 0:
        raise ThreefoldError(f"norm {kind!r}: eps is {eps!r}, expected a number above 0")
    if kind == "rms":
        return RMSNorm(width, eps=eps)
    return nn.LayerNorm(width, eps=eps, bias=bias)
