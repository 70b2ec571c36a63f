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
from threefold.layers.mixer import Mixer
from threefold.layers.parts import Linear, ShortConvolution, wide
from threefold.memory.linear.diagonal import diagonal, multiply
from threefold.memory.state import State


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
        decay, read = self._discrete()
        write = torch.stack([found, torch.zeros_like(found)], 2).unsqueeze(-1)
        write = write.expand(*write.shape[:-1], self.pairs).flatten(-2)
        before = state["memory"].movedim(-1, 1).flatten(-2)
        memories, memory = diagonal(decay, write, before, form=form, lengths=lengths)
        # 2 Re(C h) = 2 (Re C Re h − Im C Im h).
        memories = torch.unflatten(memories, -1, (self.width, self.pairs))
        out = torch.einsum("blcdn,cdn->bld", memories, read) + wide(self.skip) * found
        memory = torch.unflatten(memory, -1, (self.width, self.pairs)).movedim(1, -1)
        y = self.out(query * out.to(x.dtype))
        return y, {"conv": conv, "memory": memory.contiguous()}

    def _discrete(self) -> tuple[Tensor, Tensor]:
        """Ā [2, D·N], and 2 C B̄ [2, D, N] with the sign that its imaginary part is read with.

        B̄ = (Ā − 1)/A is part of the read-out, so that the write is the input itself.
        """
        step = wide(self.step_log).exp().unsqueeze(-1)
        real, imaginary = -wide(self.decay_log).exp(), wide(self.angle)
        modulus, turn = torch.exp(step * real), step * imaginary
        decay = torch.stack([modulus * turn.cos(), modulus * turn.sin()])
        inverse = torch.stack([real, -imaginary]) / (real**2 + imaginary**2)
        # e^{a+ib} − 1 without cancelling: Δ is small.
        less = torch.expm1(step * real) * turn.cos() - 2 * torch.sin(turn / 2) ** 2
        less = torch.stack([less, decay[1]])
        held = multiply(less.movedim(0, -2), inverse.movedim(0, -2))
        read = 2 * multiply(held, wide(self.read).mT).movedim(-2, 0)
        return decay.flatten(1), torch.stack([read[0], -read[1]])
