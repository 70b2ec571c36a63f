"""The contract of a mixer: y, state = mixer(x, state), the same in every form and from any state.

Common to all of them: checks, the choice of form, the step in a loop, and padding (a mixer sees
rows that start at 0, zero after their end, and their `lengths`).  This is done once, where a user
calls: a parent calls its parts as modules too, and hands them the `Plan` that came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels.autocast import under_autocast
from threefold.kernels.replay.stepping import Programs, Recordable, replay_step
from threefold.layers.handover import HANDOVER, alone, at_element, join_elements, without
from threefold.layers.padding import PaddedRows
from threefold.layers.placement import Placed
from threefold.memory import state as states
from threefold.memory.forms import FORMS, plan_form
from threefold.memory.state import State


class Plan(NamedTuple):
    """How a call inside a model runs: x was checked, and its rows start at 0."""

    form: str  # step, chunk or parallel
    lengths: Tensor | None = None  # elements per row, x is zero after them; None: all of L
    state_checked: bool = False


class Mixer(Placed, Recordable, ABC):
    """A layer from [B, L, width] to [B, L, width] that carries a state."""

    forms: tuple[str, ...] = FORMS
    causal: bool = True
    # Names of parameters (last component) without weight decay, and with a lower learning rate.
    no_decay: ClassVar[tuple[str, ...]] = ()
    slow: ClassVar[tuple[str, ...]] = ()
    # Modules and parameters that set gates, decays and time steps: the contract tests drive them to
    # ±10000; names that end in "_log" are of logarithms, which stay within ±50.
    gate_parameters: ClassVar[tuple[str, ...]] = ()
    # What its state does instead of fading, on streams longer than training; "": it fades.
    remembers: ClassVar[str] = ""
    # Why a form is not available, by its name.
    refusals: ClassVar[Mapping[str, str]] = {}

    def __init__(self, width: int) -> None:
        super().__init__()
        if isinstance(width, bool) or not hasattr(width, "__index__") or width < 1:
            raise ThreefoldError(f"{self.name}: width is {width!r}, expected an integer, 1 or more")
        self.width = width
        self._shapes: dict[str, Any] = {}
        self.handover: dict[str, tuple[int, ...]] = {}
        # Recorded steps by batch size, dtype and number of threads.
        self.programs: Programs = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy records its own steps: these contain the addresses of the original weights.
        return {**self.__dict__, "programs": {}}

    @abstractmethod
    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """The layer itself: rows start at 0 and have `lengths` elements (None: all of L).

        `form` is step (then L = 1), chunk or parallel.  Outputs after the end of a row may be
        anything.
        """

    @property
    def name(self) -> str:
        return type(self).__name__

    def carries(self, **shapes: tuple[int, ...] | Mapping[str, Any]) -> None:
        """Declare the shapes of the state leaves by name, without the batch axis."""
        self._shapes.update(shapes)

    def hands_over(self, **shapes: tuple[int, ...]) -> None:
        """Declare what layers of a stack hand to later ones: tensors [B, L, *shape] by name.

        In a stack, `mix` then finds in `state["handover"]` what earlier layers handed over, and
        returns what it hands over itself, if anything, in the same place (`layers/handover.py`).
        """
        self.handover.update(shapes)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return self._shapes

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        plan: Plan | None = None,
    ) -> tuple[Tensor, State]:
        """Run any number of elements from any state; returns (y [B, L, width], state).

        plan: from a parent module only, in place of form and mask.
        """
        rows = None
        if plan is None:
            self._check_input(x)
            rows = None if mask is None else PaddedRows(mask, x.shape[:2], self.name)
            plan = self.plan(x.shape[1], form, None if rows is None else rows.lengths)
            x = x if rows is None else rows.align(x)
        y, state = self._execute(x, state, plan)
        return y if rows is None else rows.restore(y), state

    def plan(
        self,
        length: int,
        form: str = "auto",
        lengths: Tensor | None = None,
        owner: str | None = None,
    ) -> Plan:
        """The plan of a call on `length` elements; `owner` is named if it has no such form."""
        form = plan_form(form, length, self.forms, owner or self.name, self.refusals)
        return Plan(form, lengths)

    def step(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one element [B, width]; returns (y [B, width], state)."""
        check_dense(x, f"{self.name}.step")
        if x.dim() != 2:
            raise ThreefoldError(
                f"{self.name}.step: x is {tuple(x.shape)}, expected [batch, {self.width}], "
                "one element per row"
            )
        y, state = self(x.unsqueeze(1), state, form="step")
        return y.squeeze(1), state

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        self._refuse_state_if_not_causal()
        return states.empty(self.state_shapes(0), batch_size, self.dtype, self.device)

    def state_size(self, length: int) -> int:
        """Bytes of the state of one row after `length` elements."""
        self._refuse_state_if_not_causal()
        return states.count_bytes(self.state_shapes(length), self.dtype)

    def check_state(self, state: Any, rows: int) -> None:
        """Raise an error unless `state` is a state of this mixer for a batch of `rows`."""
        self._refuse_state_if_not_causal()
        state = without(state)
        # The length of a history is read from the state itself.
        length = states.history_length(state) if isinstance(state, dict) else 0
        shapes = self.state_shapes(length)
        states.check(state, shapes, rows, self.dtype, self.name, self.device)

    def _execute(self, x: Tensor, state: State | None, plan: Plan) -> tuple[Tensor, State]:
        form, lengths, checked = plan
        if state is None:
            state, checked = self._start_state(len(x)), True
        if not len(x):  # an empty batch: nothing to compute, in any mixer
            return x, state
        if form == "step" and lengths is None and x.shape[1] == 1:
            stepped = replay_step(self, x, state)
            if stepped is not None:
                return stepped
        if not checked:
            self.check_state(state, len(x))
            state = states.for_autograd(state)
        y, after = self._mix_elements(x, state, form, lengths)
        none: Any = alone(after)
        return y, after if self.causal else none

    def _start_state(self, rows: int) -> State:
        return self.empty_state(rows) if self.causal else {}

    def _mix_elements(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """`mix`, in a loop for several steps."""
        if form != "step" or x.shape[1] == 1:
            return self.mix(x, state, form, lengths)
        given = state.get(HANDOVER)
        outputs, handed = [], []
        for t in range(x.shape[1]):
            real = None if lengths is None else (lengths > t).long()
            y, state = self.mix(x[:, t : t + 1], at_element(state, given, t), "step", real)
            outputs.append(y)
            handed.append(state.get(HANDOVER))
        return torch.cat(outputs, 1), join_elements(state, handed)

    def _check_input(self, x: Tensor) -> None:
        check_dense(x, self.name)
        if x.dim() != 3 or x.shape[2] != self.width:
            raise ThreefoldError(
                f"{self.name}: x is {tuple(x.shape)}, expected [batch, length, {self.width}]"
            )
        if x.shape[1] == 0:
            raise ThreefoldError(f"{self.name}: the sequence is empty; give at least one element")
        if x.device != self.device:
            raise ThreefoldError(
                f"{self.name}: x is on {x.device}, the weights are on {self.device}; move one of "
                "them"
            )
        if x.dtype != self.dtype and not under_autocast(x):
            raise ThreefoldError(
                f"{self.name}: x is {x.dtype}, the weights are {self.dtype}; convert one of them"
            )

    def _refuse_state_if_not_causal(self) -> None:
        if not self.causal:
            raise ThreefoldError(
                f"{self.name}: has no state: every output depends on the whole sequence, later "
                "elements included, so it cannot continue from a state"
            )


def check_dense(x: Any, owner: str) -> None:
    """Raise an error unless x is an ordinary dense tensor."""
    if not isinstance(x, Tensor) or x.layout is not torch.strided:
        raise ThreefoldError(
            f"{owner}: x is {states.describe(x)}, expected a dense tensor; convert it, e.g. with "
            "torch.as_tensor or x.to_dense()"
        )
