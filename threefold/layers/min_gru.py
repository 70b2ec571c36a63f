"""minGRU:  h = (1−z)⊙h₋ + z⊙h̃,  z = σ(W x + b),  h̃ = g(W x + b),  g(x) = x + ½ if x ≥ 0 else σ(x).

A GRU whose gates do not see the past: what is left is linear in h and runs in parallel.
Feng et al. 2024, "Were RNNs All We Needed?".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.diagonal import blend
from threefold.memory.state import State


class MinGRU(Mixer):
    """The minimal GRU in its positive (log-space) version; `positive=False` takes h̃ = W x + b.

    1−z = e^{−Δ} with Δ = softplus of z's logit, so the update is a selective scan by zero-order
    hold.  A read-out follows, since `expand` may make the memory wider than the layer.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("update",)

    def __init__(self, width: int, *, expand: int = 1, positive: bool = True) -> None:
        super().__init__(width)
        channels = expand * width
        self.positive = positive
        self.update = Linear(width, channels)
        self.candidate = Linear(width, channels)
        self.out = Linear(channels, width, bias=False)
        self.carries(memory=(channels,))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        candidate = upcast(self.candidate(x))
        if self.positive:
            candidate = positive(candidate)
        y, memory = blend(
            candidate, upcast(self.update(x)), state["memory"], form=form, lengths=lengths
        )
        return self.out(y.to(x.dtype)), {"memory": memory}


def positive(x: Tensor) -> Tensor:
    """x + ½ above 0, σ(x) below: positive, continuous, and near the identity."""
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))
