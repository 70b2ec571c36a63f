"""HiPPO-RNN:  h = (1−g)⊙h₋ + g⊙tanh(W [x; h₋; c₋]),  f = w h,  c_t = Ā_t c_{t−1} + B̄_t f_t.

A gated recurrent network that remembers its past outputs as a projection by a fixed HiPPO.
Gu et al. 2020, "HiPPO: Recurrent Memory with Optimal Polynomial Projections".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.cell_mixer import CellMixer, initialise_recurrent
from threefold.layers.checks import check_hippo_sizes
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.positions import advance_position
from threefold.layers.precision import upcast
from threefold.memory.coupled import CoupledGated
from threefold.memory.hippo import discretised_hippo
from threefold.memory.state import State

MEASURES = ("legs", "legt", "lagt")


class HippoRNN(Mixer):
    """The HiPPO-RNN: `memories` projections of `order` coefficients each, bilinear.

    `measure` legs weights the whole past equally and has no time scale: Ā_t and B̄_t depend on the
    number of elements t of each row.  legt and lagt cover the last `window` elements, lagt with
    exponential weights; their Ā and B̄ are fixed.
    """

    forms = CellMixer.forms
    refusals: ClassVar[Mapping[str, str]] = CellMixer.refusals
    remembers: ClassVar[str] = "weighs all elements so far alike"
    gate_parameters: ClassVar[tuple[str, ...]] = ("input",)

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        order: int = 32,
        measure: str = "legs",
        window: float = 64.0,
        memories: int = 1,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        if measure not in MEASURES:
            raise ThreefoldError(
                f"{self.name}: unknown measure {measure!r}; {nearest(measure, MEASURES)}"
            )
        check_hippo_sizes(self.name, hidden, order, window, memories)
        self.measure, self.order, self.window = measure, order, window
        self.input = Linear(width, 2 * hidden)
        self.recurrent = nn.Parameter(torch.empty(1, 2 * hidden, hidden))
        initialise_recurrent(self.recurrent, "orthogonal")
        self.read = nn.Parameter(torch.empty(2 * hidden, memories * order))
        self.say = nn.Parameter(torch.empty(memories, hidden))
        for weight in (self.read, self.say):
            nn.init.xavier_normal_(weight)
        self.out = Linear(hidden, width) if hidden != width else None
        self.carries(memory={"hidden": (hidden,), "projection": (memories, order)})
        if measure == "legs":
            self.carries(position=())

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        inputs = torch.unflatten(upcast(self.input(x)), -1, (2, -1))
        units = CoupledGated(upcast(self.recurrent[0]), upcast(self.read), upcast(self.say))
        given = inputs, state["memory"]["hidden"], state["memory"]["projection"]
        after: State = {}
        if self.measure == "legs":
            after["position"] = advance_position(state["position"], x.shape[1], lengths)
            ran = units.run_legs(*given, state["position"], form, lengths)
        else:
            made = discretised_hippo(self.measure, self.order, self.window, "bilinear")
            transition, write = (part.to(inputs) for part in made)
            ran = units.run(*given, (transition, write), form, lengths)
        y, hidden, projection = ran
        after["memory"] = {"hidden": hidden, "projection": projection}
        y = y.to(x.dtype)
        return y if self.out is None else self.out(y), after
