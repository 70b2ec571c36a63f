"""Decaying fast weights:  S = S₋ ⊙ (α βᵀ) + k⊗v,  o = Sᵀq,  α = σ(W x + b),  β = σ(W' x + b').

Attention without softmax, features or normaliser, whose memory forgets by row and by column.
Mao 2022, "Fine-Tuning Pre-trained Transformers into Decaying Fast Weights".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class DecayingFastWeights(Mixer):
    """GPT-2 attention with a decaying memory: heads of 64, scaled queries, linear gates.

    Gates start uniformly distributed (Gu et al. 2020), as in the author's code: every channel at
    its own rate.  Projections have Xavier initialisation, since there is no pre-trained model.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("forget_key", "forget_value")

    def __init__(self, width: int, *, heads: int | None = None) -> None:
        super().__init__(width)
        self.heads = choose_heads(width, heads, 64)
        size = width // self.heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.forget_key = Linear(width, width)
        self.forget_value = Linear(width, width)
        self.out = Linear(width, width)
        self.carries(memory=(self.heads, size, size))
        for module in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(module.weight, gain=2**-0.5)
            nn.init.zeros_(module.bias)
        for module in (self.forget_key, self.forget_value):
            uniform_gate_(module.bias)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, forget_key, forget_value = (
            split_heads(f(x), self.heads)
            for f in (self.query, self.key, self.value, self.forget_key, self.forget_value)
        )
        out, memory = recur(
            query * query.shape[-1] ** -0.5,
            key,
            value,
            log_decay=F.logsigmoid(upcast(forget_key)),
            log_decay_value=F.logsigmoid(upcast(forget_value)),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        return self.out(out.flatten(-2)), {"memory": memory}


@torch.no_grad()
def uniform_gate_(bias: Tensor) -> None:
    """Biases whose logistic is uniform in (1/n, 1 − 1/n), n the number of biases."""
    edge = 1 / len(bias)
    bias.uniform_(edge, 1 - edge).logit_()
