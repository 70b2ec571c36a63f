"""Gated slot attention:  Sᵏ = Diag(α) Sᵏ₋ + (1−α)⊗k,  Sᵛ = Diag(α) Sᵛ₋ + (1−α)⊗v,
o = Sᵛᵀ softmax(Sᵏ q),  α = σ(W x)^{1/8}, one for each of M slots.

Attention over a few slots, each a moving average of keys and values at a data-dependent rate.
Zhang et al. 2024, "Gated Slot Attention for Efficient Linear-Time Sequence Modeling".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from threefold.layers.heads import choose_heads, expand_width, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class GatedSlotAttention(Mixer):
    """The GSA layer: SiLU on query, key and value, unscaled scores, SiLU and RMS norm at the end.

    Heads have about 64 channels; `slots` (M) is 64 as published, but at most the channels of a key.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("forget",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 1.0,
        expand_value: float = 1.0,
        slots: int | None = None,
        gate_temperature: float = 8.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        self.heads = choose_heads(math.gcd(keys, values), heads, 64)
        key_size, value_size = keys // self.heads, values // self.heads
        slots = min(64, key_size) if slots is None else slots
        self.gate_temperature = gate_temperature
        self.query = Linear(width, keys, bias=False)
        self.key = Linear(width, keys, bias=False)
        self.value = Linear(width, values, bias=False)
        self.forget = Linear(width, self.heads * slots, bias=False)
        self.norm = RMSNorm(values, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(
            memory={"key": (self.heads, key_size, slots), "value": (self.heads, slots, value_size)}
        )
        initialise_linears(self)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = (
            F.silu(split_heads(f(x), self.heads)) for f in (self.query, self.key, self.value)
        )
        forget = upcast(split_heads(self.forget(x), self.heads))
        log_decay = F.logsigmoid(forget) / self.gate_temperature
        write = -log_decay.expm1()  # 1 − α
        logits, keys = recur(
            query,
            key,
            write,
            log_decay_value=log_decay,
            state=state["memory"]["key"],
            form=form,
            lengths=lengths,
        )
        out, values = recur(
            logits.softmax(-1),
            write,
            value,
            log_decay=log_decay,
            state=state["memory"]["value"],
            form=form,
            lengths=lengths,
        )
        out = self.norm(F.silu(out.flatten(-2)))
        return self.out(out), {"memory": {"key": keys, "value": values}}
