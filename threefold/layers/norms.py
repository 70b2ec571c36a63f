"""Norms over the last axis: RMS, per head, and to unit length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.layers.precision import upcast


class RMSNorm(nn.RMSNorm):
    """x / rms(x) ⊙ weight along the last axis, then ⊙ silu(gate) if there is one."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__(size, eps)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return ops.rms_norm(x, self.weight, gate, eps=self.eps or 0.0)


class HeadNorm(nn.Module):
    """LayerNorm over each head of [B, L, H, V], then weight and bias per channel (GroupNorm)."""

    def __init__(self, heads: int, size: int, *, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, size)) if affine else None
        self.bias = nn.Parameter(torch.zeros(heads, size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        if self.weight is None or self.bias is None:
            return x
        return x * self.weight + self.bias


def l2_normalize(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / √(|x|² + eps) along the last axis: unit length; smooth at zero."""
    x = upcast(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
