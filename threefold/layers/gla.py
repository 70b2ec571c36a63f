"""Gated linear attention:  S = Diag(α_t) S₋ + k⊗v,  o = Sᵀq,  α = σ(low-rank(x))^{1/16}.

Every key dimension forgets at its own, data-dependent rate.
Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.mixer import Mixer
from threefold.layers.parts import Linear, LowRank, RMSNorm, count_heads, split_heads, wide
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class GatedLinearAttention(Mixer):
    """The GLA layer: half-width keys, low-rank forget gate, RMS norm per head, SiLU output gate."""

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 0.5,
        expand_value: float = 1.0,
        gate_rank: int = 16,
        gate_temperature: float = 16.0,
    ) -> None:
        super().__init__(width)
        keys, values = int(width * expand_key), int(width * expand_value)
        self.heads = count_heads(keys, heads, 64)
        self.gate_temperature = gate_temperature
        self.query = Linear(width, keys, bias=False)
        self.key = Linear(width, keys, bias=False)
        self.value = Linear(width, values, bias=False)
        self.forget = LowRank(width, gate_rank, keys)
        self.gate = Linear(width, values, bias=False)
        self.norm = RMSNorm(values // self.heads, eps=1e-5)
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, keys // self.heads, values // self.heads))
        for module in (self.query, self.key, self.value, self.gate, self.out):
            nn.init.xavier_uniform_(module.weight, gain=2**-2.5)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, gate, forget = (
            split_heads(f(x), self.heads)
            for f in (self.query, self.key, self.value, self.gate, self.forget)
        )
        log_decay = F.logsigmoid(wide(forget)) / self.gate_temperature
        query = query * query.shape[-1] ** -0.5
        out, memory = recur(
            query,
            key,
            value,
            log_decay=log_decay,
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = self.norm(out, gate)
        return self.out(out.flatten(-2)), {"memory": memory}
