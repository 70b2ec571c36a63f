"""Causal convolutions of a few taps: of each channel, of all of them, and after projections."""

from __future__ import annotations

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.kernels.parameter_cache import ParameterCache
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


class DilatedConvolution(nn.Module):
    """y_t = Σ_k W_k x_{t−d·k} + b over all channels, taps d elements apart; state: the last inputs.

    W = g v/|v| has weight normalisation (Salimans & Kingma 2016): a `direction` v and a `magnitude`
    g for each output.
    """

    def __init__(self, inputs: int, outputs: int, taps: int, dilation: int) -> None:
        super().__init__()
        self.taps, self.dilation = taps, dilation
        bound = (inputs * taps) ** -0.5
        direction = torch.empty(outputs, taps, inputs).uniform_(-bound, bound)
        self.direction = nn.Parameter(direction)  # the last tap is for the present element
        self.magnitude = nn.Parameter(direction.flatten(1).norm(dim=1))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.derived: ParameterCache[Tensor] = ParameterCache()

    @property
    def state_shape(self) -> tuple[int, int]:
        return (self.taps - 1) * self.dilation, self.direction.shape[2]

    def weight(self) -> Tensor:
        """W [outputs, taps · inputs]; without gradients computed once until a parameter changes."""

        def make() -> Tensor:
            rows = self.direction.flatten(1)
            scale: Tensor = self.magnitude / rows.norm(dim=1)
            return rows * scale.unsqueeze(1)

        return self.derived.of([self.direction, self.magnitude], make)

    def train(self, mode: bool = True) -> Self:
        """As in torch; the weight is computed again."""
        self.derived.forget()
        return super().train(mode)

    def forward(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, L, inputs], state [B, (taps−1)·dilation, inputs]."""
        length, (carried, channels) = x.shape[1], self.state_shape
        context = torch.cat([state, x], 1)
        starts = range(0, carried + 1, self.dilation)
        columns = torch.cat([context[:, start : start + length] for start in starts], -1)
        y = ops.linear(columns, self.weight(), self.bias)
        if lengths is None:
            return y, context[:, length:].clone()
        last = lengths.unsqueeze(1) + torch.arange(carried, device=x.device)
        return y, context.gather(1, last.unsqueeze(-1).expand(-1, -1, channels))


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
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """x [B, L, width] to query, key, value [B, L, H, size], and the convolution state.

        One tuple, not a tuple within another: torch's backward hooks find the tensors of the first.
        """
        heads, after = [], {}
        for name, project in self.projections.items():
            y = project(x)
            if name in self.convolutions:
                y, after[name] = self.convolutions[name](y, state[name], lengths)
            elif self.silu:
                y = F.silu(y)
            heads.append(split_heads(y, self.heads[name]))
        query, key, value = heads
        return query, key, value, after
