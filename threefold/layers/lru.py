"""LRU:  h = λ⊙h₋ + γ⊙(B x),  y = Re(C h) + D⊙x,  λ = exp(−e^ν + i e^θ),  γ = e^log γ.

A linear recurrence whose complex eigenvalues lie in a ring inside the unit circle, and stay there.
Orvieto et al. 2023, "Resurrecting Recurrent Neural Networks for Long Sequences".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.diagonal import diagonal_recurrence
from threefold.memory.state import State


class LRU(Mixer):
    """The linear recurrent unit; complex numbers are stored as real pairs.

    |λ|² starts uniform between the squares of `radius`, its angle below `phase`, γ = √(1−|λ|²).
    """

    slow: ClassVar[tuple[str, ...]] = ("decay_log", "angle_log", "scale_log")
    gate_parameters: ClassVar[tuple[str, ...]] = ("decay_log",)

    def __init__(
        self,
        width: int,
        *,
        state_size: int | None = None,
        radius: tuple[float, float] = (0.0, 1.0),
        phase: float = 2 * math.pi,
    ) -> None:
        super().__init__(width)
        size = width if state_size is None else state_size
        low, high = radius
        if not (0 <= low < high <= 1 and phase > 0 and size > 0):
            raise ThreefoldError(
                f"LRU: state_size={state_size}, radius={radius}, phase={phase}; expected a "
                "positive size, 0 ≤ low < high ≤ 1 and a positive phase"
            )
        # Not quite 0: log log of it must be finite, and |λ| = 1 would never forget.
        square = torch.rand(size) * (high**2 - low**2) + low**2
        square = square.clamp(1e-6, 1 - 1e-6)
        self.decay_log = nn.Parameter(torch.log(-0.5 * torch.log(square)))
        self.angle_log = nn.Parameter(torch.log(phase * torch.rand(size).clamp(min=1e-6)))
        self.scale_log = nn.Parameter(0.5 * torch.log1p(-square))
        self.input = Linear(width, 2 * size, bias=False)
        self.out = Linear(2 * size, width, bias=False)
        self.skip = nn.Parameter(torch.randn(width))
        nn.init.normal_(self.input.weight, std=(2 * width) ** -0.5)
        nn.init.normal_(self.out.weight, std=size**-0.5)
        self.carries(memory=(size, 2))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        modulus = torch.exp(-torch.exp(upcast(self.decay_log)))
        angle = torch.exp(upcast(self.angle_log))
        decay = torch.stack([modulus * angle.cos(), modulus * angle.sin()])
        write = torch.unflatten(upcast(self.input(x)), -1, (2, -1)) * torch.exp(
            upcast(self.scale_log)
        )
        memories, memory = diagonal_recurrence(
            decay, write, state["memory"].mT, form=form, lengths=lengths
        )
        # Re(C h) = Re C Re h − Im C Im h: the sign is the weight's.
        y = self.out(memories.flatten(-2).to(x.dtype)) + self.skip * x
        return y, {"memory": memory.mT.contiguous()}
