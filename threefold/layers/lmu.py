"""LMU:  u = e_x x + e_h h₋ + e_m m₋,  m = Ā m₋ + B̄ u,  h = tanh(W x + U h₋ + V m).

A recurrent network with a sliding window over its own signal, stored as Legendre coefficients.
Voelker, Kajić & Eliasmith 2019, "Legendre Memory Units: Continuous-Time Representation in Recurrent
Neural Networks"; Chilkuri & Eliasmith 2021, "Parallelizing Legendre Memory Unit Training".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.kernels.parameter_cache import ParameterCache
from threefold.layers.cell_mixer import CellMixer
from threefold.layers.checks import check_hippo_sizes
from threefold.layers.initialisation import lecun_uniform
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.coupled import CoupledTanh
from threefold.memory.filter_states import filter_states
from threefold.memory.forms import FORMS
from threefold.memory.hippo import sliding_window_system
from threefold.memory.state import State


class RecurrentUnits(nn.Module):
    """U, e_h and e_m, and the units that read and write the memory through them."""

    def __init__(self, hidden: int, memories: int, order: int) -> None:
        super().__init__()
        self.recurrent = nn.Parameter(nn.init.xavier_normal_(torch.empty(hidden, hidden)))
        self.from_hidden = nn.Parameter(lecun_uniform(torch.empty(memories, hidden)))
        self.from_memory = nn.Parameter(torch.zeros(memories, memories * order))

    def forward(
        self,
        inputs: tuple[Tensor, Tensor],
        system: tuple[Tensor, Tensor, Tensor],
        memory: State,
        form: str,
        lengths: Tensor | None,
    ) -> tuple[Tensor, State]:
        """All h from `inputs` (W x, e_x x) by `system` (V, Ā, B̄), and the memory after them."""
        own = upcast(self.recurrent), upcast(self.from_hidden), upcast(self.from_memory)
        units = CoupledTanh(*own, *system)
        before = memory["hidden"], memory["projection"]
        y, hidden, last = units.run(*inputs, *before, form, lengths)
        return y, {"hidden": hidden, "projection": last}


class LMU(Mixer):
    """The Legendre memory unit: `memories` windows of `window` elements, `order` coefficients each.

    `recurrent=False` leaves out U, e_h and e_m (2021): the memory is then a fixed filter, and has a
    parallel form.  The coefficients are of orthonormal polynomials, those of the
    paper times a constant each; zero-order hold.
    """

    refusals: ClassVar[Mapping[str, str]] = {
        "parallel": f"{CellMixer.refusals['parallel']}; recurrent=False has a parallel form"
    }
    gate_parameters: ClassVar[tuple[str, ...]] = ("input",)

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        order: int = 32,
        window: float = 64.0,
        memories: int = 1,
        recurrent: bool = True,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        check_hippo_sizes(self.name, hidden, order, window, memories)
        self.order, self.window = order, window
        self.forms = CellMixer.forms if recurrent else FORMS
        self.input = Linear(width, hidden, bias=False)
        self.encode = Linear(width, memories, bias=False)
        self.read = nn.Parameter(torch.empty(hidden, memories * order))
        for weight in (self.input.weight, self.read):
            nn.init.xavier_normal_(weight)
        lecun_uniform(self.encode.weight)
        self.derived: ParameterCache[tuple[Tensor, ...]] = ParameterCache()
        self.units = RecurrentUnits(hidden, memories, order) if recurrent else None
        self.out = Linear(hidden, width) if hidden != width else None
        own = {"hidden": (hidden,)} if recurrent else {}
        self.carries(memory={**own, "projection": (memories, order)})

    def system(self, like: Tensor) -> tuple[Tensor, ...]:
        """Transition and write vector of the memory, in the dtype and on the device of `like`."""
        return sliding_window_system(self.derived, self.order, self.window, like)

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        self.system(upcast(self.read))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        given, said, read = upcast(self.input(x)), upcast(self.encode(x)), upcast(self.read)
        system, memory = self.system(said), state["memory"]
        if self.units is None:
            before = memory["projection"]
            found, last = filter_states(said, before, *system, form=form, lengths=lengths)
            y, after = torch.tanh(given + found.flatten(2) @ read.mT), {"projection": last}
        else:
            y, after = self.units((given, said), (read, *system), memory, form, lengths)
        y = y.to(x.dtype)
        return y if self.out is None else self.out(y), {"memory": after}
