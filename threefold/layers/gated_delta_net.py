"""Gated DeltaNet:  S = α (I − β k kᵀ) S₋ + β k⊗v,  o = Sᵀq,  α = exp(−e^A softplus(W x + b)).

The delta rule replaces one association, Mamba-2's scalar gate forgets all of them at once.
Yang, Kautz & Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.convolution import ConvolvedHeads
from threefold.layers.heads import choose_heads, expand_width, split_heads
from threefold.layers.initialisation import initial_delta_bias, initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm, l2_normalize
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class GatedDeltaNet(Mixer):
    """The Gated DeltaNet layer: keys of ¾ width, values twice as wide, a gated RMS norm per head.

    Both expansions are relative to the width (the authors' `expand_v` = 2 is relative to the keys).
    `value_heads`, a multiple of `heads`: several value heads share the queries and keys of one.
    With `taps` = 0 there is no convolution; SiLU stays.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("A_log", "delta_bias")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta", "strength", "A_log")

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        value_heads: int | None = None,
        expand_key: float = 0.75,
        expand_value: float = 1.5,
        taps: int = 4,
        negative_eigenvalues: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        key_heads = choose_heads(keys, heads, 256)
        self.heads = choose_heads(values, value_heads or key_heads, 256)
        if self.heads % key_heads:
            raise ThreefoldError(
                f"{self.name}: value_heads={self.heads} and heads={key_heads}, expected as many "
                "value heads as key heads, or a multiple"
            )
        key_size, value_size = keys // key_heads, values // self.heads
        self.strongest = 2.0 if negative_eigenvalues else 1.0
        self.convolved = ConvolvedHeads(
            width, (key_heads, key_heads, self.heads), (keys, keys, values), taps=taps
        )
        self.strength = Linear(width, self.heads, bias=False)
        self.delta = Linear(width, self.heads, bias=False)
        self.delta_bias = nn.Parameter(initial_delta_bias(self.heads, (1e-3, 1e-1)))
        # Uniform in (0, 16]: at 0 the logarithm would not be finite.
        self.A_log = nn.Parameter((16 * (1 - torch.rand(self.heads))).log())
        self.gate = Linear(width, values, bias=False)
        self.norm = RMSNorm(value_size, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, key_size, value_size), conv=self.convolved.state_shape)
        initialise_linears(self)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, conv = self.convolved(x, state["conv"], lengths)
        delta = F.softplus(upcast(self.delta(x)) + upcast(self.delta_bias))
        out, memory = recur(
            l2_normalize(query) * query.shape[-1] ** -0.5,
            l2_normalize(key),
            value,
            log_decay=-upcast(self.A_log).exp() * delta,
            strength=self.strongest * torch.sigmoid(upcast(self.strength(x))),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = self.norm(out, split_heads(self.gate(x), self.heads))
        return self.out(out.flatten(-2)), {"memory": memory, "conv": conv}
