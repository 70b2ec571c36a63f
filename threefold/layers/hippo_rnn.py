"""HiPPO-RNN:  h = (1−g)⊙h₋ + g⊙tanh(W [x; h₋; c₋]),  f = w·h,  c_t = A_t c_{t−1} + B_t f_t.

A gated recurrent network that remembers what it said, as a projection by a fixed HiPPO.
Gu et al. 2020, "HiPPO: Recurrent Memory with Optimal Polynomial Projections".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.cell import CellMixer, start_recurrent
from threefold.layers.mixer import Mixer
from threefold.layers.parts import Linear, wide
from threefold.memory.cell import Weights, run
from threefold.memory.discrete import discretise
from threefold.memory.hippo import hippo
from threefold.memory.hippo_cell import HippoCell
from threefold.memory.state import State

MEASURES = ("legs", "legt", "lagt")


class HippoRNN(Mixer):
    """The HiPPO-RNN; `measure` legs sees all the past, legt and lagt a window of `window` elements.

    `random=True` puts a random A and B, drawn like the initial weights of an RNN and made stable,
    in place of HiPPO's: what the paper compares with.
    """

    forms = CellMixer.forms
    refusals: ClassVar[Mapping[str, str]] = CellMixer.refusals

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        order: int = 32,
        measure: str = "legs",
        window: float = 64.0,
        random: bool = False,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        if measure not in MEASURES:
            raise ThreefoldError(
                f"HippoRNN: unknown measure {measure!r}; {nearest(measure, MEASURES)}"
            )
        if hidden < 1 or order < 1:
            raise ThreefoldError(
                f"HippoRNN: hidden={hidden}, order={order}; expected at least 1 each"
            )
        self.counts = measure == "legs" and not random
        A, B = hippo(measure, order, window).matrices()
        if random:
            A, B = torch.randn(order, order, dtype=torch.float64) / order**0.5, torch.randn(order)
            # A random matrix of this size has its eigenvalues within 1 or a little more.
            A = (A - 1.5 * torch.eye(order, dtype=torch.float64)) / window
            B = B.double() / window
        if not self.counts:
            A, B = discretise(A, B, torch.ones((), dtype=torch.float64), "bilinear")
        self.register_buffer("transition", A)
        self.register_buffer("write", B)
        self.input = Linear(width, 2 * hidden)
        self.recurrent = nn.Parameter(torch.empty(1, 2 * hidden, hidden))
        start_recurrent(self.recurrent, "orthogonal")
        self.read = nn.Parameter(torch.randn(2 * hidden, order) * order**-0.5)
        self.say = nn.Parameter(torch.randn(1, hidden) * hidden**-0.5)
        self.out = Linear(hidden, width)
        self.carries(memory={"hidden": (hidden,), "projection": (order,)})
        if self.counts:
            self.carries(position=())

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        dtype = wide(self.read).dtype
        fixed = (self.get_buffer(name).to(dtype) for name in ("transition", "write"))
        cell = HippoCell(*fixed, wide(self.read), wide(self.say), self.counts)
        y, state = run(cell, self.input(x), state, Weights(self.recurrent), form, lengths)
        return self.out(y.to(x.dtype)), state
