"""Kimi Delta Attention:  S = (I − β k kᵀ) Diag(α) S₋ + β k⊗v,  o = Sᵀq,
α = exp(−e^A softplus(low-rank(x) + b)).

Gated DeltaNet with a rate of forgetting for every key dimension; the decay acts first.
Kimi Team 2025, "Kimi Linear: An Expressive, Efficient Attention Architecture".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.convolution import ConvolvedHeads
from threefold.layers.heads import choose_heads, expand_width, split_heads
from threefold.layers.initialisation import initial_delta_bias
from threefold.layers.linear import Linear, LowRankProjection
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm, l2_normalize
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class KimiDeltaAttention(Mixer):
    """The KDA layer: decay and output gate through one head's width, RMS norm per head, a σ gate.

    The short convolutions start uniform, as in Gated DeltaNet; other weights at deviation 0.02.
    With `taps` = 0 there is no convolution; SiLU stays.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("A_log", "delta_bias")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta", "strength", "A_log")

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 1.0,
        expand_value: float = 1.0,
        taps: int = 4,
        negative_eigenvalues: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        self.heads = choose_heads(keys, heads, 128)
        key_size, value_size = keys // self.heads, values // choose_heads(values, self.heads, 128)
        self.strongest = 2.0 if negative_eigenvalues else 1.0
        self.convolved = ConvolvedHeads(width, (self.heads,) * 3, (keys, keys, values), taps=taps)
        self.strength = Linear(width, self.heads, bias=False)
        self.delta = LowRankProjection(width, value_size, keys, bias=False)
        self.delta_bias = nn.Parameter(initial_delta_bias(keys, (1e-3, 1e-1)))
        self.A_log = nn.Parameter(torch.empty(self.heads, 1).uniform_(1, 16).log())
        self.gate = LowRankProjection(width, value_size, values)
        self.norm = RMSNorm(value_size, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, key_size, value_size), conv=self.convolved.state_shape)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.gate.up.bias)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, conv = self.convolved(x, state["conv"], lengths)
        delta = F.softplus(upcast(self.delta(x)) + upcast(self.delta_bias))
        out, memory = recur(
            l2_normalize(query) * query.shape[-1] ** -0.5,
            l2_normalize(key),
            value,
            log_decay=-upcast(self.A_log).exp() * split_heads(delta, self.heads),
            strength=self.strongest * torch.sigmoid(upcast(self.strength(x))),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = self.norm(out) * torch.sigmoid(split_heads(self.gate(x), self.heads))
        return self.out(out.flatten(-2)), {"memory": memory, "conv": conv}
