"""LMU:  u = e_x x + e_h h₋ + e_m m₋,  m = Ā m₋ + B̄ u,  h = tanh(W x + U h₋ + V m).

A recurrent network beside a sliding window of what it says, kept as Legendre coefficients.
Voelker, Kajić & Eliasmith 2019, "Legendre Memory Units: Continuous-Time Representation in Recurrent
Neural Networks".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.cell import CellMixer
from threefold.layers.mixer import Mixer
from threefold.layers.parts import Linear, wide
from threefold.memory.cell import Weights, run
from threefold.memory.discrete import check_rate, discretise
from threefold.memory.hippo import LegT
from threefold.memory.hippo_cell import LMUCell
from threefold.memory.state import State


class LMU(Mixer):
    """The Legendre memory unit: `window` elements in `order` coefficients, zero-order hold.

    The coefficients are of orthonormal polynomials: the paper's, up to a factor of each.
    """

    forms = CellMixer.forms
    refusals: ClassVar[Mapping[str, str]] = CellMixer.refusals

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        order: int = 32,
        window: float = 64.0,
        rate: float = 1.0,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        if hidden < 1 or order < 1 or not window >= 1:
            raise ThreefoldError(
                f"LMU: hidden={hidden}, order={order}, window={window}; expected at least 1 each"
            )
        self.order, self.window, self.rate = order, window, check_rate(rate, self.name)
        self.input = Linear(width, hidden)
        self.encode = Linear(width, 1, bias=False)
        self.from_hidden = nn.Parameter(torch.empty(1, hidden).uniform_(-1, 1) / hidden**0.5)
        self.from_projection = nn.Parameter(torch.zeros(1, order))
        self.recurrent = nn.Parameter(torch.empty(1, hidden, hidden))
        self.read = nn.Parameter(torch.empty(hidden, order))
        nn.init.orthogonal_(self.recurrent[0])
        nn.init.xavier_normal_(self.read)
        self.out = Linear(hidden, width)
        self.carries(memory={"hidden": (hidden,), "projection": (order,)})

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        period = torch.tensor(1 / self.rate, dtype=torch.float64, device=x.device)
        A, B = (part.to(x.device) for part in LegT(self.order, self.window).matrices())
        transition, write = discretise(A, B, period, "zero_order_hold")
        dtype = wide(self.read).dtype
        cell = LMUCell(
            transition.to(dtype),
            write.to(dtype),
            *(wide(part) for part in (self.read, self.from_hidden, self.from_projection)),
        )
        inputs = torch.cat([self.input(x), self.encode(x)], -1)
        y, state = run(cell, inputs, state, Weights(self.recurrent), form, lengths)
        return self.out(y.to(x.dtype)), state
