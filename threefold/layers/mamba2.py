"""Mamba-2:  S = exp(−Δ e^A) S₋ + k⊗(Δ v),  o = Sᵀq + D v,  Δ = softplus(W x + b).

A selective state space (q, k, v are its C, B, x) with one decay per head, so that a chunk is matrix
products.
Dao & Gu 2024, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.convolution import ShortConvolution
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.initialisation import initial_delta_bias
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class Mamba2(Mixer):
    """The Mamba-2 layer as published: one input projection, RMS norm after the SiLU gate.

    Heads have 64 channels where that divides, else the nearest size that does.  `norm_groups` are
    normalised separately (None: one for each of `groups`, as in the authors' code; 1: all channels
    together).  `delta_limit` = (low, high) clamps Δ; `bias`: of the first and last projection.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("A_log", "D", "delta_bias", "norm_weight")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta_bias", "A_log")

    def __init__(
        self,
        width: int,
        *,
        expand: int = 2,
        heads: int | None = None,
        state_size: int = 128,
        groups: int = 1,
        taps: int = 4,
        delta_range: tuple[float, float] = (1e-3, 1e-1),
        delta_limit: tuple[float, float] | None = None,
        norm_groups: int | None = None,
        bias: bool = False,
        eps: float = 1e-5,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        channels = expand * width
        self.heads = choose_heads(channels, heads, 64)
        self.groups = groups
        self.norm_groups = groups if norm_groups is None else norm_groups
        self.delta_limit = None if delta_limit is None else tuple(delta_limit)
        self._check(channels)
        self.eps = eps
        self.sizes = [channels, groups * state_size, groups * state_size]
        self.fields = [channels, sum(self.sizes), self.heads]
        self.input = Linear(width, sum(self.fields), bias=bias)
        self.conv = ShortConvolution(sum(self.sizes), taps, bias=True)
        self.delta_bias = nn.Parameter(initial_delta_bias(self.heads, delta_range))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(self.heads, 1))
        self.norm_weight = nn.Parameter(torch.ones(self.norm_groups, channels // self.norm_groups))
        self.out = Linear(channels, width, bias=bias)
        self.carries(
            memory=(self.heads, state_size, channels // self.heads), conv=self.conv.state_shape
        )
        with torch.no_grad():
            self.out.weight /= math.sqrt(depth)

    def _check(self, channels: int) -> None:
        """Raise an error for options that do not fit each other."""
        if self.groups < 1 or self.heads % self.groups:
            raise ThreefoldError(f"Mamba2: {self.groups} groups do not divide {self.heads} heads")
        if self.norm_groups < 1 or channels % self.norm_groups:
            raise ThreefoldError(
                f"Mamba2: norm_groups={self.norm_groups} do not divide {channels} channels"
            )
        low, high = self.delta_limit or (0.0, math.inf)
        if not 0 <= low < high:
            raise ThreefoldError(
                f"Mamba2: delta_limit={self.delta_limit}, expected 0 ≤ low < high, e.g. (0, 0.1)"
            )

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        gate, x, delta = self.input(x).split(self.fields, -1)
        x, conv = self.conv(x, state["conv"], lengths)
        value, key, query = torch.split(x, self.sizes, -1)
        value = split_heads(value, self.heads)
        delta = F.softplus(upcast(delta) + upcast(self.delta_bias))
        if self.delta_limit is not None:
            delta = delta.clamp(*self.delta_limit)
        out, memory = recur(
            split_heads(query, self.groups),
            split_heads(key, self.groups),
            value * delta.unsqueeze(-1),
            log_decay=-upcast(self.A_log).exp() * delta,
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = split_heads((out + self.D * value).flatten(-2), self.norm_groups)
        gate = split_heads(gate, self.norm_groups)
        out = ops.rms_norm(out, self.norm_weight, gate, eps=self.eps, gate_first=True).to(x.dtype)
        return self.out(out.flatten(-2)), {"memory": memory, "conv": conv}
