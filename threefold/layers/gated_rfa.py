"""Gated RFA:  S = g S₋ + (1−g) φ(k)⊗v,  z = g z₋ + (1−g) φ(k),  o = Sᵀφ(q) / (z·φ(q)),
g = σ(w·x + b) per head,  φ(x) = [sin(W x̂), cos(W x̂)] / √D,  x̂ = sigma ⊙ x/‖x‖,  W random.

Random Fourier features approximate the softmax kernel, and a scalar gate forgets.
Peng et al. 2021, "Random Feature Attention".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import l2_normalize
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class GatedRFA(Mixer):
    """The RFA-Gate layer: unit queries and keys, D random features per head, learned `sigma`.

    Where the kernel is small, products of sines and cosines may be near 0 or negative, so the
    denominator is max(z·φ(q), floor), as in the authors' code: the kernel is at most 1, so with 0.1
    nothing is read more than ten times too large.  W is drawn at construction and by `redraw` (the
    authors take another from a pool at each training step); a state belongs to the W that wrote it.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("sigma",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("forget",)

    def __init__(
        self, width: int, *, heads: int | None = None, features: int = 64, floor: float = 0.1
    ) -> None:
        super().__init__(width)
        self.heads = choose_heads(width, heads, 64)
        self.floor = floor
        size = width // self.heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.forget = Linear(width, self.heads)
        self.out = Linear(width, width)
        self.sigma = nn.Parameter(torch.ones(self.heads, size))
        self.random: Tensor
        self.register_buffer("random", torch.empty(self.heads, features, size))
        self.redraw()
        self.carries(memory=(self.heads, 2 * features, size + 1))
        initialise_linears(self, gain=2**-0.5)
        for module in (self.forget, self.out):
            nn.init.zeros_(module.bias)

    def redraw(self) -> None:
        """Draw new random features; states written with the old ones become invalid."""
        self.random.normal_()

    def features(self, x: Tensor) -> Tensor:
        """φ(x) [B, L, H, 2 D] of x [B, L, H, K]; φ(x)·φ(y) ≈ exp(−|x̂ − ŷ|²/2)."""
        angle = torch.einsum(
            "blhk,hdk->blhd", l2_normalize(x) * upcast(self.sigma), upcast(self.random)
        )
        return torch.cat([angle.sin(), angle.cos()], -1) / math.sqrt(angle.shape[-1])

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = (
            split_heads(f(x), self.heads) for f in (self.query, self.key, self.value)
        )
        forget = upcast(self.forget(x))
        out, memory = recur(
            self.features(query),
            self.features(key) * forget.neg().sigmoid().unsqueeze(-1),
            # the normaliser z is one more column of the memory, written with ones
            F.pad(upcast(value), (0, 1), value=1.0),
            log_decay=F.logsigmoid(forget),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        out = out[..., :-1] / out[..., -1:].clamp(min=self.floor)
        return self.out(out.flatten(-2).to(x.dtype)), {"memory": memory}
