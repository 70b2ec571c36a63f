"""RG-LRU:  h = a⊙h₋ + √(1−a²)⊙(i⊙x),  a = exp(−c softplus(Λ)⊙r),  r, i = σ(W x + b),  c = 8.

A gated linear recurrence that keeps its size; in Griffin, between a short convolution and a gate.
De et al. 2024, "Griffin: Mixing Gated Linear Recurrences with Local Attention".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.convolution import ShortConvolution
from threefold.layers.heads import choose_heads
from threefold.layers.linear import BlockLinear, Linear
from threefold.layers.mixer import Mixer
from threefold.layers.positions import advance_position, element_positions
from threefold.layers.precision import upcast
from threefold.memory.linear.diagonal import diagonal_recurrence
from threefold.memory.state import State

SHARPNESS = 8.0  # the paper's c


class RGLRU(Mixer):
    """Griffin's recurrent block: convolution and RG-LRU on one branch, GeLU on the other.

    The matrices of the gates are block-diagonal, as in the authors' code.  `scale_first` = False
    leaves out √(1−a²) at the first element of a sequence, as RecurrentGemma does; the paper has it.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("rate",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("forget", "write", "rate")

    def __init__(
        self,
        width: int,
        *,
        expand: int = 1,
        heads: int | None = None,
        taps: int = 4,
        scale_first: bool = True,
    ) -> None:
        super().__init__(width)
        channels = expand * width
        heads = choose_heads(channels, heads, 64)
        self.input = Linear(width, channels)
        self.gate = Linear(width, channels)
        self.conv = ShortConvolution(channels, taps, bias=True, silu=False)
        self.forget = BlockLinear(channels, channels, heads)
        self.write = BlockLinear(channels, channels, heads)
        # softplus(rate)·c is −log of a decay that is uniform between 0.9 and 0.999 at r = 1.
        decay = torch.empty(channels).uniform_(0.9, 0.999)
        self.rate = nn.Parameter(torch.log(torch.expm1(-decay.log() / SHARPNESS)))
        self.out = Linear(channels, width)
        self.scale_first = scale_first
        self.carries(memory=(channels,), conv=self.conv.state_shape)
        if not scale_first:
            self.carries(position=())

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        gate = F.gelu(self.gate(x), approximate="tanh")
        u, conv = self.conv(self.input(x), state["conv"], lengths)
        log_decay = (
            -SHARPNESS * F.softplus(upcast(self.rate)) * torch.sigmoid(upcast(self.forget(u)))
        )
        scale, after = root(-torch.expm1(2 * log_decay)), {}
        if not self.scale_first:
            first = element_positions(x, state["position"]).unsqueeze(-1) == 0
            scale = torch.where(first, 1.0, scale)
            after["position"] = advance_position(state["position"], x.shape[1], lengths)
        write = scale * torch.sigmoid(upcast(self.write(u))) * upcast(u)
        y, memory = diagonal_recurrence(
            log_decay.exp(), write, state["memory"], form=form, lengths=lengths
        )
        return self.out(y.to(x.dtype) * gate), {"memory": memory, "conv": conv, **after}


def root(x: Tensor) -> Tensor:
    """√x for x ≥ 0; at 0 its slope is set to 0, which is that of the gate there."""
    zero = x <= torch.finfo(x.dtype).tiny
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, x)))
