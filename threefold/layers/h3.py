"""H3:  y = W(q⊙o),  o = 2 Re(C h) + D⊙u,  h = Ā⊙h₋ + B̄ u,  u = shift(k)⊙v,  shift(k) = taps ∗ k.

A shift keeps the last keys, a gate compares, a diagonal state space remembers the matches.
Fu et al. 2022, "Hungry Hungry Hippos: Towards Language Modeling with State Space Models".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.convolution import ShortConvolution
from threefold.layers.linear import Linear
from threefold.layers.precision import upcast
from threefold.layers.state_space_mixer import (
    Discretised,
    as_complex,
    check_delta_range,
    check_poles,
    count_pairs,
)
from threefold.memory.convolution import short_convolution
from threefold.memory.discretisation import check_delta
from threefold.memory.filter import Filter, diagonal_filter
from threefold.memory.state import State


class Shift(ShortConvolution):
    """shift(k)⊙v: a short convolution of so many taps that the parallel form is by Fourier."""

    def forward(
        self,
        x: Tensor,
        state: Tensor,
        lengths: Tensor | None,
        gate: Tensor | None = None,
        form: str = "chunk",
    ) -> tuple[Tensor, Tensor]:
        """x and gate [B, L, channels], state [B, taps−1, channels]: the last inputs."""
        return short_convolution(x, self.weight, state, gate, form=form, lengths=lengths)


class H3(Discretised[Filter]):
    """Two state spaces and two gates, channel by channel (heads of size 1).

    The shift's output matrix and skip are the taps of one short convolution, the same map.  The
    diagonal one has state_size/2 conjugate pairs per channel, A = −½ + iπn at first (S4D-Lin), by
    zero-order hold with a learned Δ; B is 1, since only B·C matters.  In the parallel form both are
    convolutions by Fourier transforms.
    """

    slow: ClassVar[tuple[str, ...]] = ("step_log", "decay_log", "angle")
    no_decay: ClassVar[tuple[str, ...]] = ("skip",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("step_log", "decay_log", "angle")

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 64,
        taps: int = 64,
        step_range: tuple[float, float] = (0.001, 0.1),
    ) -> None:
        super().__init__(width)
        low, high = check_delta_range(self.name, step_range, "step_range")
        pairs = count_pairs(self.name, state_size)
        if taps < 1:
            raise ThreefoldError(f"{self.name}: taps={taps}, expected at least 1")
        self.project = Linear(width, 3 * width)
        self.conv = Shift(width, taps, silu=False)
        steps = torch.rand(width) * math.log(high / low) + math.log(low)
        self.step_log = nn.Parameter(steps)
        self.decay_log = nn.Parameter(torch.full((width, pairs), math.log(0.5)))
        angles = math.pi * torch.arange(pairs, dtype=torch.float32)
        self.angle = nn.Parameter(angles.repeat(width, 1))
        self.read = nn.Parameter(torch.randn(width, pairs, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = Linear(width, width)
        self.carries(conv=self.conv.state_shape, memory=(width, pairs, 2))

    def filter(self) -> Filter:
        """The diagonal state space, discretised."""
        poles = torch.complex(-torch.exp(self.decay_log.double()), self.angle.double())
        return diagonal_filter(
            poles,
            torch.ones_like(poles),
            as_complex(self.read),
            torch.exp(self.step_log.double()),
            dtype=upcast(self.read).dtype,
        )

    def discretise(self) -> Filter:
        return replace(self.filter(), skip=self.skip)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = self.project(x).chunk(3, -1)
        found, conv = self.conv(key, state["conv"], lengths, gate=value, form=form)
        fixed = self.derive()
        o, memory = fixed.run(
            upcast(found), state["memory"], form=form, lengths=lengths, gate=query
        )
        return self.out(o.to(x.dtype)), {"conv": conv, "memory": memory}

    def check_loaded(self) -> None:
        """Raise an error if parameters loaded from a file are not finite."""
        check_delta(torch.exp(self.step_log.detach().double()), self.name)
        check_poles(self.name, self.decay_log, self.angle)
