"""Mamba:  S = exp(Δ A) ⊙ S₋ + Δ B x,  y = C·S + D x,  with Δ, B, C read from the input.

A selective state space between a short convolution and a SiLU gate.
Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.kernels.parameter_cache import ParameterCache
from threefold.layers.convolution import ShortConvolution
from threefold.layers.initialisation import initial_delta_bias
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.selective import selective_recurrence
from threefold.memory.state import State


class Mamba(Mixer):
    """The Mamba layer as published; `zero_order_hold` discretises B exactly instead of by Δ B.

    `bias`: of the first and last projection.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("A_log", "D", "delta_bias")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta", "A_log")

    def __init__(
        self,
        width: int,
        *,
        expand: int = 2,
        state_size: int = 16,
        taps: int = 4,
        delta_rank: int | None = None,
        delta_range: tuple[float, float] = (1e-3, 1e-1),
        zero_order_hold: bool = False,
        bias: bool = False,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        channels = expand * width
        rank = math.ceil(width / 16) if delta_rank is None else delta_rank
        self.sizes = (rank, state_size, state_size)
        self.zero_order_hold = zero_order_hold
        self.input = Linear(width, 2 * channels, bias=bias)
        self.conv = ShortConvolution(channels, taps, bias=True)
        self.select = Linear(channels, sum(self.sizes), bias=False)
        self.delta = Linear(rank, channels, bias=False)
        self.delta_bias = nn.Parameter(initial_delta_bias(channels, delta_range))
        self.A_log = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(channels, 1))
        self.derived: ParameterCache[Tensor] = ParameterCache()
        self.D = nn.Parameter(torch.ones(channels))
        self.out = Linear(channels, width, bias=bias)
        self.carries(memory=(channels, state_size), conv=self.conv.state_shape)
        nn.init.uniform_(self.delta.weight, -(rank**-0.5), rank**-0.5)
        with torch.no_grad():
            self.out.weight /= math.sqrt(depth)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        x, gate = self.input(x).chunk(2, -1)
        x, conv = self.conv(x, state["conv"], lengths)
        delta, B, C = self.select(x).split(self.sizes, -1)
        y, memory = selective_recurrence(
            x,
            self.delta(delta),
            self.derived.of([self.A_log], lambda: -upcast(self.A_log).exp()),
            B,
            C,
            self.D,
            gate,
            delta_bias=self.delta_bias,
            softplus=True,
            state=state["memory"],
            form=form,
            lengths=lengths,
            hold=self.zero_order_hold,
        )
        return self.out(y), {"memory": memory, "conv": conv}
