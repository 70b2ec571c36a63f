"""H3:  y = W(q⊙o),  o = 2 Re(C h) + D⊙u,  h = Ā⊙h₋ + B̄ u,  u = shift(k)⊙v,  shift(k) = taps ∗ k.

A shift remembers the last keys, a gate compares, a diagonal state space remembers what was found.
Fu et al. 2022, "Hungry Hungry Hippos: Towards Language Modeling with State Space Models".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.filter import as_complex, flat, shaped
from threefold.layers.mixer import Mixer
from threefold.layers.parts import Linear, ShortConvolution, wide
from threefold.memory.discrete import discretise_diagonal
from threefold.memory.filter import Filter
from threefold.memory.state import State
from threefold.memory.transition import Diagonal


class H3(Mixer):
    """Two state spaces and two gates, channel by channel (heads of size 1).

    The shift's output matrix and skip are the taps of one short convolution, the same map.  The
    diagonal one has state_size/2 conjugate pairs a channel, A = −½ + iπn at first (S4D-Lin), by
    zero-order hold with a learned Δ; B is 1, since only B·C matters.
    """

    slow: ClassVar[tuple[str, ...]] = ("step_log", "decay_log", "angle")
    no_decay: ClassVar[tuple[str, ...]] = ("skip",)

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 64,
        taps: int = 64,
        step_range: tuple[float, float] = (0.001, 0.1),
    ) -> None:
        super().__init__(width)
        low, high = step_range
        if state_size < 2 or state_size % 2 or taps < 1 or not 0 < low <= high:
            raise ThreefoldError(
                f"{self.name}: state_size={state_size}, taps={taps}, step_range={step_range}; "
                "expected an even size (conjugate pairs), at least 1 tap and 0 < low ≤ high"
            )
        self.pairs = state_size // 2
        self.project = Linear(width, 3 * width)
        self.conv = ShortConvolution(width, taps, silu=False)
        steps = torch.rand(width) * math.log(high / low) + math.log(low)
        self.step_log = nn.Parameter(steps)
        self.decay_log = nn.Parameter(torch.full((width, self.pairs), math.log(0.5)))
        angles = math.pi * torch.arange(self.pairs, dtype=torch.float32)
        self.angle = nn.Parameter(angles.repeat(width, 1))
        self.read = nn.Parameter(torch.randn(width, self.pairs, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = Linear(width, width)
        self.carries(conv=self.conv.state_shape, memory=(width, self.pairs, 2))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = self.project(x).chunk(3, -1)
        key, conv = self.conv(key, state["conv"], lengths)
        found = wide(key * value)
        out, memory = self.filter().run(found, flat(state["memory"]), form=form, lengths=lengths)
        y = self.out(query * out.to(x.dtype))
        return y, {"conv": conv, "memory": shaped(memory, state["memory"])}

    def filter(self) -> Filter:
        """The diagonal state space; B̄ is part of the read-out, so that the input itself is kept."""
        poles = torch.complex(-torch.exp(self.decay_log.double()), self.angle.double())
        step = torch.exp(self.step_log.double())
        factor, gain = discretise_diagonal(poles, step, "zero_order_hold")
        read = 2 * (as_complex(self.read) * gain).conj()
        one = torch.ones_like(factor.real)
        return Filter(
            Diagonal(torch.stack([factor.real, factor.imag], -2)),
            torch.cat([one, torch.zeros_like(one)], -1),
            torch.cat([read.real, read.imag], -1),
            wide(self.read).dtype,
            self.skip,
        )
