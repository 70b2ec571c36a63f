"""RWKV-7:  S = (Diag(w) − (a⊙κ) κᵀ) S₋ + k⊗v,  o = Sᵀq,  w = exp(−e^{−1/2} σ(·)),  |κ| = 1.

A delta rule that erases κ and writes k, with a decay and a learning rate (a) for every dimension.
Peng et al. 2025, "RWKV-7 'Goose' with Expressive Dynamic State Evolution".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.kernels import ops
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


class RWKV7(Mixer):
    """The time mixing of RWKV-7 ("Goose"), with its initial values by layer and depth.

    `ranks` of the maps to decay, rate and gate (None: as published for this width); `eps` of the
    norm per head (None: 1e-5 times its size, as published).
    Deviations: later layers of the published model mix the first layer's values into their own
    (value residual); a block hands a mixer its input and its own state only, so every layer is
    like the first.  κ is k/√(|k|² + 1e-12), smooth at zero.  `out` starts small instead of at zero,
    so that untrained outputs are not 0.
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
        ranks: tuple[int, int, int] | None = None,
        eps: float | None = None,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        self.heads = choose_heads(width, heads, 64)
        size = width // self.heads
        late, early = layer / max(depth - 1, 1), 1 - layer / depth
        channel = torch.arange(width) / max(width - 1, 1)
        zigzag = (torch.arange(width) % size) / (max(size - 1, 1) / 2) - 1
        zigzag = zigzag * zigzag.abs()
        self.shares = nn.Parameter(torch.stack([shift_ramp(width, p * early) for p in POWERS]))
        decay_rank, rate_rank, gate_rank = ranks or (default_rank(width, f) for f in (2.5, 2.5, 5))
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
        self.carries(memory=(self.heads, size, size), shift=(width,))
        for module, bound in (
            (self.query, 0.5),
            (self.key, 0.05),
            (self.value, 0.5),
            (self.out, 0.05),
        ):
            nn.init.uniform_(module.weight, -bound * width**-0.5, bound * width**-0.5)
        assert self.norm.weight is not None
        nn.init.constant_(self.norm.weight, ((1 + layer) / depth) ** 0.7)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mixtures, last = ops.token_shift(x, self.shares, state["shift"], lengths)
        for_query, for_decay, for_key, for_value, for_rate, for_gate = mixtures.unbind(0)
        decay = torch.tanh(for_decay @ self.decay_down) @ self.decay_up
        log_decay = -math.exp(-0.5) * torch.sigmoid(upcast(decay) + upcast(self.decay_bias))
        rate = for_rate @ self.rate_down @ self.rate_up
        rate = torch.sigmoid(upcast(rate) + upcast(self.rate_bias))
        gate = torch.sigmoid(for_gate @ self.gate_down) @ self.gate_up
        key = self.key(for_key)
        query, key, value, log_decay, rate, erase = (
            split_heads(y, self.heads)
            for y in (
                self.query(for_query),
                key * (1 + (rate - 1) * self.write_scale),
                self.value(for_value),
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
        return self.out(out * gate), {"memory": memory, "shift": last}


def default_rank(width: int, factor: float) -> int:
    """About factor·√width, in steps of 32."""
    return max(32, 32 * round(factor * math.sqrt(width) / 32))


def low_rank(width: int, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A map of low rank: down at zero, up a tenth of orthogonal."""
    up = nn.init.orthogonal_(torch.empty(rank, width), gain=0.1 * max(1.0, rank / width) ** 0.5)
    return nn.Parameter(torch.zeros(width, rank)), nn.Parameter(up)
