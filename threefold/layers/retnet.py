"""Retention:  S = γ S₋ + k⊗v,  o = Sᵀq,  γ = 1 − 2^{−5−h} in head h,  q, k rotated by position.

Linear attention that forgets at a fixed rate, different for each head.
Sun et al. 2023, "Retentive Network: A Successor to Transformer for Large Language Models".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.positions import advance_position
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class RetNet(Mixer):
    """Multi-scale retention: rotary, values twice as wide, RMS norm without weights, a SiLU gate.

    Keys have 256 channels as published; below a width of 1024 there are four heads, so four scales.
    Each head is normalised by its RMS, as in the authors' code (the paper says GroupNorm).
    Positions rotate only (xPos's scale overflows on a stream).  The authors' divisions before the
    norm are left out: it removes any scale.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("gate",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_value: int = 2,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(width)
        values = width * expand_value
        self.heads = choose_heads(width, heads, min(256, max(width // 4, 8)))
        self.query = Linear(width, width, bias=False)
        self.key = Linear(width, width, bias=False)
        self.value = Linear(width, values, bias=False)
        self.gate = Linear(width, values, bias=False)
        self.eps = eps
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, width // self.heads, values // self.heads), position=())
        initialise_linears(self.query, self.key, self.value, self.gate)
        nn.init.xavier_uniform_(self.out.weight)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, gate = (
            split_heads(f(x), self.heads) for f in (self.query, self.key, self.value, self.gate)
        )
        size = key.shape[-1]
        # The authors' frequencies: from 1 down to 1/10000, both ends included.
        pairs = torch.linspace(0, 1, size // 2, dtype=torch.float64, device=x.device)
        frequencies = 10_000.0**-pairs
        scale = torch.arange(5, 5 + self.heads, dtype=torch.float64, device=x.device)
        query, key = ops.rotary(query, key * size**-0.5, state["position"], frequencies)
        out, memory = recur(
            query,
            key,
            value,
            log_decay=torch.log1p(-torch.exp2(-scale)),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = ops.rms_norm(out, None, gate, eps=self.eps)
        position = advance_position(state["position"], x.shape[1], lengths)
        return self.out(out.flatten(-2)), {"memory": memory, "position": position}
