"""Attention with bounded-memory control, M slots:  Sᵏ = Σ φ⊗k,  Sᵛ = Σ φ⊗v,  o = Sᵛᵀ softmax(Sᵏ q),
φ a softmax of s over the past, slot by slot.  Kept as sums relative to the running maximum m of s:
φ̃ = e^{s−m},  n = Σ φ̃,  Sᵏ = S̃ᵏ/n,  Sᵛ = S̃ᵛ/n,  all of them decayed by e^{m₋−m}.

Every slot stores an average of the past with its own weights, and attention reads the slots.
Peng et al. 2022, "ABC: Attention with Bounded-memory Control".
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.layers.heads import choose_heads, expand_width, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm
from threefold.layers.positions import advance_position, rotary_frequencies
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.linear.stabiliser import stabilise
from threefold.memory.state import State


class BoundedMemoryControl(Mixer):
    """The ABC layer of flash-linear-attention: rotary, half-width keys, RMS norm and a SiLU gate.

    `slots` is M (default: the key size); s is clamped to ±`clamp` (math.inf: no clamping).
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("slot",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 0.5,
        expand_value: float = 1.0,
        slots: int | None = None,
        clamp: float = 32.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        self.heads = choose_heads(math.gcd(keys, values), heads, 64)
        key_size, value_size = keys // self.heads, values // self.heads
        slots = key_size if slots is None else slots
        self.clamp = clamp
        self.query = Linear(width, keys, bias=False)
        self.key = Linear(width, keys, bias=False)
        self.value = Linear(width, values, bias=False)
        self.slot = Linear(width, self.heads * slots, bias=False)
        self.gate = Linear(width, values, bias=False)
        self.norm = RMSNorm(value_size, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(
            memory={
                "key": (self.heads, key_size, slots),
                "value": (self.heads, slots, value_size),
                "sum": (self.heads, 1, slots),
            },
            maximum=(self.heads, slots),
            position=(),
        )
        initialise_linears(self)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, slot, gate = (
            split_heads(f(x), self.heads)
            for f in (self.query, self.key, self.value, self.slot, self.gate)
        )
        position, memory = state["position"], state["memory"]
        frequencies = rotary_frequencies(key.shape[-1], x.device)
        query = upcast(query) * query.shape[-1] ** -0.5
        query, key = ops.rotary(query, upcast(key), position, frequencies)
        slot = upcast(slot).clamp(-self.clamp, self.clamp)
        empty = memory["sum"].squeeze(-2) == 0  # a used slot has n ≥ 1
        gates = stabilise(torch.zeros_like(slot), slot, state["maximum"], lengths, empty=empty)
        weight, log_decay = gates.log_input.exp(), gates.log_decay
        run = partial(recur, form=form, lengths=lengths)
        one = torch.ones_like(slot[..., :1])
        total, sums = run(one, one, weight, log_decay_value=log_decay, state=memory["sum"])
        total = total + (total == 0)  # only where a row has no element yet
        logits, keys = run(query, key, weight, log_decay_value=log_decay, state=memory["key"])
        read = (logits / total).softmax(-1) / total
        out, values = run(read, weight, upcast(value), log_decay=log_decay, state=memory["value"])
        out = self.norm(out.to(x.dtype), gate)
        return self.out(out.flatten(-2)), {
            "memory": {"key": keys, "value": values, "sum": sums},
            "maximum": gates.maximum.masked_fill(sums.squeeze(-2) == 0, 0),
            "position": advance_position(position, x.shape[1], lengths),
        }
