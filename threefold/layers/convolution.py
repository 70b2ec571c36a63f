"""Short causal convolutions, alone and after the projections to query, key and value."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.layers.heads import split_heads
from threefold.layers.linear import Linear


class ShortConvolution(nn.Module):
    """A causal convolution of a few taps per channel, with SiLU; its state is the last inputs."""

    def __init__(
        self, channels: int, taps: int = 4, *, bias: bool = False, silu: bool = True
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(taps)
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None
        self.silu = silu

    @property
    def state_shape(self) -> tuple[int, int]:
        channels, taps = self.weight.shape
        return taps - 1, channels

    def forward(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, L, channels], state [B, taps−1, channels]."""
        return ops.short_convolution(x, self.weight, self.bias, state, lengths, silu=self.silu)


class ConvolvedHeads(nn.Module):
    """Query, key and value in heads: each a projection, then a short convolution with SiLU.

    With `taps` = 0 there is no convolution and no state; SiLU stays unless `silu` is False.
    `heads` are those of query, key and value, `channels` their channels altogether.
    """

    def __init__(
        self,
        width: int,
        heads: tuple[int, int, int],
        channels: tuple[int, int, int],
        *,
        taps: int = 4,
        silu: bool = True,
    ) -> None:
        super().__init__()
        names = ("query", "key", "value")
        self.heads = dict(zip(names, heads, strict=True))
        self.silu = silu
        sizes = dict(zip(names, channels, strict=True))
        self.projections = nn.ModuleDict(
            {name: Linear(width, size, bias=False) for name, size in sizes.items()}
        )
        convolved = sizes if taps else {}
        self.convolutions = nn.ModuleDict(
            {name: ShortConvolution(size, taps, silu=silu) for name, size in convolved.items()}
        )
        self.state_shape = {name: (taps - 1, size) for name, size in convolved.items()}

    def forward(
        self, x: Tensor, state: dict[str, Tensor], lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """x [B, L, width] to query, key, value [B, L, H, size], and the convolution state."""
        heads, after = [], {}
        for name, project in self.projections.items():
            y = project(x)
            if name in self.convolutions:
                y, after[name] = self.convolutions[name](y, state[name], lengths)
            elif self.silu:
                y = F.silu(y)
            heads.append(split_heads(y, self.heads[name]))
        return tuple(heads), after
