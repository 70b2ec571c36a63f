"""RWKV-7:  S = (Diag(w) − (a⊙κ) κᵀ) S₋ + k⊗v,  o = Sᵀq,  w = exp(−e^{−1/2} σ(·)),  |κ| = 1.

A delta rule that erases κ and writes k, with a decay and a learning rate (a) for every dimension.
Above the first layer v ← v + (v¹ − v)⊙σ(·), with v¹ the first layer's value of the same element.
Peng et al. 2025, "RWKV-7 'Goose' with Expressive Dynamic State Evolution".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.handover import HANDOVER, Handed, put
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import HeadNorm, l2_normalize
from threefold.layers.precision import upcast
from threefold.layers.token_shift import shift_ramp
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State

# Of the initial shares in the six mixtures: query ("receptance"), decay, key, value, rate, gate.
POWERS = (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)


# What the first layer of a stack hands to the later ones.
FIRST_VALUE = "rwkv7_first_value"


class Residual(nn.Module):
    """v + (v¹ − v)⊙σ(x down up + bias): part of v is replaced by the first layer's value v¹."""

    no_decay: ClassVar[tuple[str, ...]] = ("down", "up")

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(0.93, 0.53, width))
        self.down, self.up = low_rank(width, rank)

    def forward(self, x: Tensor, value: Tensor, first: Tensor) -> Tensor:
        share = torch.sigmoid(upcast(through(x, self.down, self.up)) + upcast(self.bias))
        return value + ((first - value) * share).to(value.dtype)


class RWKV7(Mixer):
    """The time mixing of RWKV-7 ("Goose"), with its initial values by layer and depth.

    `ranks` of the maps to decay, rate, value and gate (None: as published for this width); `eps` of
    the norm per head (None: 1e-5 times its size, as published).  `value_residual`: whether the
    values of the first RWKV-7 layer of the stack are mixed into those of this one; other mixers
    between the two change nothing.  The first layer, and a layer without a stack, has no residual.
    Deviations: κ is k/√(|k|² + 1e-12), smooth at zero.  `out` starts small instead of at zero, so
    that untrained outputs are not 0.
    """

    no_decay: ClassVar[tuple[str, ...]] = (
        *(
            "shares",
            "decay_down",
            "decay_up",
            "rate_down",
            "rate_up",
            "gate_down",
            "gate_up",
            "bonus",
        ),
    )
    gate_parameters: ClassVar[tuple[str, ...]] = ("decay_bias", "rate_bias")

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        ranks: tuple[int, int, int, int] | None = None,
        eps: float | None = None,
        value_residual: bool = True,
        layer: int = 0,
        depth: int = 1,
        first: bool = True,
    ) -> None:
        super().__init__(width)
        self.heads = choose_heads(width, heads, 64)
        size = width // self.heads
        late, early = layer / max(depth - 1, 1), 1 - layer / depth
        channel = torch.arange(width) / max(width - 1, 1)
        zigzag = (torch.arange(width) % size) / (max(size - 1, 1) / 2) - 1
        zigzag = zigzag * zigzag.abs()
        self.shares = nn.Parameter(torch.stack([shift_ramp(width, p * early) for p in POWERS]))
        decay_rank, rate_rank, value_rank, gate_rank = choose_ranks(width, ranks)
        self.decay_down, self.decay_up = low_rank(width, decay_rank)
        self.decay_bias = nn.Parameter(-5.5 + 6 * channel ** (1 + late**0.3) + 2.5 * zigzag)
        self.rate_down, self.rate_up = low_rank(width, rate_rank)
        self.rate_bias = nn.Parameter(-0.19 + 0.3 * zigzag + 0.4 * (channel - 0.5))
        self.gate_down, self.gate_up = low_rank(width, gate_rank)
        self.erase_scale = nn.Parameter(0.71 - 0.1 * (channel - 0.5))
        self.write_scale = nn.Parameter(torch.full((width,), 1.02))
        self.bonus = nn.Parameter(torch.full((self.heads, size), -0.04))
        self.query, self.key, self.value, self.out = (
            Linear(width, width, bias=False) for _ in range(4)
        )
        self.norm = HeadNorm(self.heads, size, eps=1e-5 * size if eps is None else eps)
        self.residual = None if first or not value_residual else Residual(width, value_rank)
        self.carries(memory=(self.heads, size, size), shift=(width,))
        if first or value_residual:
            self.hands_over(**{FIRST_VALUE: (width,)})
        bounds = {self.query: 0.5, self.key: 0.05, self.value: 0.5, self.out: 0.05}
        for module, bound in bounds.items():
            nn.init.uniform_(module.weight, -bound * width**-0.5, bound * width**-0.5)
        assert self.norm.weight is not None
        nn.init.constant_(self.norm.weight, ((1 + layer) / depth) ** 0.7)

    def mix_first(
        self, value: Tensor, x: Tensor, handed: Handed | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The value with its share of the first layer's, and what is handed to later layers."""
        if self.residual is None:
            return value, {} if handed is None else {FIRST_VALUE: value}
        if handed is None or FIRST_VALUE not in handed:
            raise ThreefoldError(
                f"{self.name}: this layer mixes in the values of the first RWKV-7 layer of its "
                "stack, which did not run before it; run the whole stack, or build the layer with "
                "value_residual=False"
            )
        return self.residual(x, value, handed[FIRST_VALUE]), {}

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mixtures, last = ops.token_shift(x, self.shares, state["shift"], lengths)
        for_query, for_decay, for_key, for_value, for_rate, for_gate = mixtures.unbind(0)
        decay = ops.product(torch.tanh(ops.product(for_decay, self.decay_down)), self.decay_up)
        log_decay = -math.exp(-0.5) * torch.sigmoid(upcast(decay) + upcast(self.decay_bias))
        rate = through(for_rate, self.rate_down, self.rate_up)
        rate = torch.sigmoid(upcast(rate) + upcast(self.rate_bias))
        gate = ops.product(torch.sigmoid(ops.product(for_gate, self.gate_down)), self.gate_up)
        key, value = self.key(for_key), self.value(for_value)
        value, handed = self.mix_first(value, for_value, state.get(HANDOVER))
        query, key, value, log_decay, rate, erase = (
            split_heads(y, self.heads)
            for y in (
                self.query(for_query),
                key * (1 + (rate - 1) * self.write_scale),
                value,
                log_decay,
                rate,
                key * self.erase_scale,
            )
        )
        erase = l2_normalize(erase, eps=1e-12)
        out, memory = recur(
            query,
            key,
            value,
            log_decay=log_decay,
            rank_one=(-rate * erase, erase),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        now = (query * key * self.bonus).sum(-1, keepdim=True) * value
        out = (self.norm(out) + now).flatten(-2).to(x.dtype)
        after = {"memory": memory, "shift": last}
        return self.out(out * gate), put(after, handed)


def choose_ranks(width: int, ranks: Sequence[int] | None) -> Sequence[int]:
    """The given ranks, or the published ones: about factor·√width, in steps of 32."""
    if ranks is None:
        return [max(32, 32 * round(f * math.sqrt(width) / 32)) for f in (2.5, 2.5, 1.7, 5)]
    if len(ranks) != 4 or min(ranks) < 1:
        raise ThreefoldError(
            f"RWKV7: ranks={ranks!r}, expected four, 1 or more: of decay, rate, value and gate"
        )
    return ranks


def through(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """x down up."""
    return ops.product(ops.product(x, down), up)


def low_rank(width: int, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A map of low rank: down at zero, up a tenth of orthogonal."""
    up = nn.init.orthogonal_(torch.empty(rank, width), gain=0.1 * max(1.0, rank / width) ** 0.5)
    return nn.Parameter(torch.zeros(width, rank)), nn.Parameter(up)
