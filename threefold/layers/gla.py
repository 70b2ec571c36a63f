"""Gated linear attention:  S = Diag(α_t) S₋ + k⊗v,  o = Sᵀq,  α = σ(low-rank(x))^{1/16}.

Every key dimension forgets at its own, data-dependent rate.
Yang et al. 2023, "Gated Linear Attention Transformers with Hardware-Efficient Training".
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from threefold.layers.convolution import ConvolvedHeads
from threefold.layers.heads import choose_heads, expand_width, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear, LowRankProjection
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class GatedLinearAttention(Mixer):
    """The GLA layer: half-width keys, low-rank forget gate, RMS norm per head, SiLU output gate.

    `taps` = 4 puts short convolutions with SiLU before query, key and value, an option of the
    authors' code that recall needs; the paper has none.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("forget",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 0.5,
        expand_value: float = 1.0,
        gate_rank: int = 16,
        gate_temperature: float = 16.0,
        taps: int = 0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        self.heads = choose_heads(keys, heads, 64)
        self.gate_temperature = gate_temperature
        key_size, value_size = keys // self.heads, values // choose_heads(values, self.heads, 64)
        self.convolved = ConvolvedHeads(
            width, (self.heads,) * 3, (keys, keys, values), taps=taps, silu=taps > 0
        )
        self.forget = LowRankProjection(width, gate_rank, keys)
        self.gate = Linear(width, values, bias=False)
        self.norm = RMSNorm(value_size, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, key_size, value_size))
        if taps:
            self.carries(conv=self.convolved.state_shape)
        initialise_linears(self.convolved, self.gate, self.out)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, conv = self.convolved(x, state.get("conv", {}), lengths)
        gate, forget = (split_heads(f(x), self.heads) for f in (self.gate, self.forget))
        log_decay = F.logsigmoid(upcast(forget)) / self.gate_temperature
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
        after = {"memory": memory} | ({"conv": conv} if conv else {})
        return self.out(out.flatten(-2)), after
