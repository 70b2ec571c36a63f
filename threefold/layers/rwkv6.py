"""RWKV-6:  S = Diag(α) S₋ + k⊗v,  o = (S₋ + (d⊙k)⊗v)ᵀ q,  α = exp(−exp(w₀ + tanh(x W₁) W₂)).

Every input is mixed with the element before it by shares that depend on the data (token shift).
Peng et al. 2024, "Eagle and Finch: RWKV with Matrix-Valued States and Dynamic Recurrence".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import HeadNorm
from threefold.layers.precision import upcast
from threefold.layers.token_shift import previous_elements, shift_ramp
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State

# exp(−e⁷) is 0 even in float64: a stronger decay differs in nothing but its overflow.
STRONGEST = 7.0


class RWKV6(Mixer):
    """The time mixing of RWKV-6 ("Finch"), with its initial values by layer and depth.

    `eps` is of the norm per head (None: 1e-5 times its size, as published).
    One deviation: `out` starts small instead of at zero, so that untrained outputs are not 0.
    """

    no_decay: ClassVar[tuple[str, ...]] = (
        *("shares", "shares_down", "shares_up", "decay_down", "decay_up", "bonus"),
    )
    gate_parameters: ClassVar[tuple[str, ...]] = ("decay_bias",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        shift_rank: int = 32,
        decay_rank: int = 64,
        eps: float | None = None,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        self.heads = choose_heads(width, heads, 64)
        size = width // self.heads
        late, early = layer / max(depth - 1, 1), 1 - layer / depth
        channel = torch.arange(width) / max(width - 1, 1)
        # The five mixtures in their order: decay, key, value, query ("receptance"), gate.
        shares = [shift_ramp(width, power * early) for power in (1.0, 1.0, 1.0, 0.5, 0.5)]
        shares[2] = shares[2] - 0.3 * late
        self.shares_first = nn.Parameter(shift_ramp(width, early))
        self.shares = nn.Parameter(torch.stack(shares))
        self.shares_down = nn.Parameter(torch.zeros(width, 5 * shift_rank))
        self.shares_up = nn.Parameter(torch.empty(5, shift_rank, width).uniform_(-0.01, 0.01))
        self.decay_bias = nn.Parameter(-6 + 5 * channel ** (0.7 + 1.3 * late))
        self.decay_down = nn.Parameter(torch.zeros(width, decay_rank))
        self.decay_up = nn.Parameter(torch.empty(decay_rank, width).uniform_(-0.01, 0.01))
        zigzag = ((torch.arange(width) + 1) % 3 - 1) * 0.1
        self.bonus = nn.Parameter((late * (1 - channel) + zigzag).view(self.heads, size))
        self.query, self.key, self.value, self.gate, self.out = (
            Linear(width, width, bias=False) for _ in range(5)
        )
        self.norm = HeadNorm(self.heads, size, eps=1e-5 * size if eps is None else eps)
        self.carries(memory=(self.heads, size, size), shift=(width,))
        for module in (self.query, self.value):
            nn.init.orthogonal_(module.weight)
        for module in (self.key, self.gate, self.out):
            nn.init.orthogonal_(module.weight, gain=0.1)
        assert self.norm.weight is not None
        nn.init.constant_(self.norm.weight, ((1 + layer) / depth) ** 0.7)

    def mixtures(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """Five mixtures of each element and the one before it."""
        change = before - x
        low = torch.tanh((x + change * self.shares_first) @ self.shares_down)
        shares = torch.einsum("blnr,nrd->nbld", split_heads(low, 5), self.shares_up)
        return (x + change * (shares + self.shares[:, None, None])).unbind(0)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        before, last = previous_elements(x, state["shift"], lengths)
        for_decay, for_key, for_value, for_query, for_gate = self.mixtures(x, before)
        decay = upcast(torch.tanh(for_decay @ self.decay_down) @ self.decay_up) + upcast(
            self.decay_bias
        )
        query, key, value, log_decay = (
            split_heads(y, self.heads)
            for y in (
                self.query(for_query),
                self.key(for_key),
                self.value(for_value),
                -decay.clamp(max=STRONGEST).exp(),
            )
        )
        out, memory = recur(
            query,
            key,
            value,
            log_decay=log_decay,
            bonus=self.bonus,
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = self.norm(out).flatten(-2) * F.silu(self.gate(for_gate))
        return self.out(out), {"memory": memory, "shift": last}
