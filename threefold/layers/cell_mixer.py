"""h = cell(W x + b + U h₋): the base of mixers with a nonlinear cell.

The projection of all inputs at once, the recurrent matrices and their initialisation, locked
dropout (Gal & Ghahramani 2016: one mask for all elements of a call), and the read-out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.kernels.parameter_cache import ParameterCache
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.memory.cell import Cell, CellWeights, run
from threefold.memory.state import State

INITIALISATIONS = ("orthogonal", "identity", "uniform")


class CellMixer(Mixer):
    """A nonlinear recurrence; `hidden` units, and a read-out if `hidden` is not the width.

    `dropout` acts on the inputs, `recurrent_dropout` on h₋ before the matrices.  In the step form
    every element is a call, with its own masks.
    """

    forms = ("step", "chunk")
    refusals: ClassVar[Mapping[str, str]] = {
        "parallel": "the recurrence is nonlinear; "
        "use the chunk form for the whole sequence in one call"
    }
    gate_parameters: ClassVar[tuple[str, ...]] = ("input",)

    def __init__(
        self,
        width: int,
        cell: Cell,
        *,
        hidden: int | None,
        init: str,
        dropout: float,
        recurrent_dropout: float,
        readout: bool = False,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        check_dropout(self.name, dropout=dropout, recurrent_dropout=recurrent_dropout)
        if hidden < 1:
            raise ThreefoldError(f"{self.name}: hidden={hidden}, expected at least 1 unit")
        if init not in INITIALISATIONS:
            raise ThreefoldError(
                f"{self.name}: unknown init {init!r}; {nearest(init, INITIALISATIONS)}"
            )
        self.cell, self.hidden = cell, hidden
        self.dropout, self.recurrent_dropout = dropout, recurrent_dropout
        self.input = Linear(width, cell.gates * hidden)
        self.recurrent = nn.Parameter(torch.empty(1, cell.gates * hidden, hidden))
        initialise_recurrent(self.recurrent, init)
        nn.init.zeros_(self.input.bias)
        self.out = Linear(hidden, width) if readout or hidden != width else None
        self.carries(memory=dict.fromkeys(cell.leaves, (hidden,)))

    @property
    def extra(self) -> Tensor | None:
        """Parameters of the cell other than the recurrent matrices."""
        return None

    def project(self, x: Tensor) -> Tensor:
        """The inputs of all gates [B, L, G·H]."""
        projected: Tensor = self.input(x)
        return projected

    def weights(self, mask: Tensor | None) -> CellWeights:
        """What the cell's step reads: the recurrent matrices and other parameters."""
        return CellWeights(self.recurrent, self.extra, mask)

    def gate(self, index: int) -> Tensor:
        """The bias of one gate [H], for changes in place."""
        return self.input.bias.detach()[index * self.hidden : (index + 1) * self.hidden]

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mask = locked_mask(self, x, self.recurrent_dropout, self.hidden)
        seen = locked_mask(self, x, self.dropout, self.width)
        inputs = self.project(x if seen is None else x * seen.unsqueeze(1))
        y, state = run(self.cell, inputs, state, self.weights(mask), form, lengths)
        y = y.to(x.dtype)
        return (y if self.out is None else self.out(y)), state


class StructuredCellMixer(CellMixer):
    """A cell whose recurrent matrices have a structure: they are made from free parameters.

    They are made for each call with gradients, otherwise once until a parameter changes.
    """

    def __init__(
        self,
        width: int,
        cell: Cell,
        *,
        hidden: int | None,
        dropout: float,
        recurrent_dropout: float,
    ) -> None:
        super().__init__(
            width,
            cell,
            hidden=hidden,
            init="orthogonal",  # of the free parameters; each mixer draws its own
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            readout=True,
        )
        self.derived: ParameterCache[Tensor] = ParameterCache()

    @abstractmethod
    def matrices(self) -> Tensor:
        """The recurrent matrices [1, G·H, H] of the current parameters, at least float32."""

    def weights(self, mask: Tensor | None) -> CellWeights:
        made = self.derived.of([self.recurrent], self.matrices)
        return CellWeights(made, self.extra, mask)

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        self.weights(None)

    def train(self, mode: bool = True) -> Self:
        """As in torch; the matrices are computed again."""
        self.derived.forget()
        return super().train(mode)


def locked_mask(mixer: Mixer, x: Tensor, dropout: float, size: int) -> Tensor | None:
    """One dropout mask per row [B, size] for all elements of a call; None in eval mode."""
    if not mixer.training or dropout == 0:
        return None
    return F.dropout(x.new_ones(x.shape[0], size), dropout)


def initialise_recurrent(weight: Tensor, init: str) -> None:
    """Fill [1, G·H, H]: each gate's matrix orthogonal, the identity, or uniform within H^−½."""
    size = weight.shape[-1]
    for matrix in torch.unflatten(weight.detach(), 1, (-1, size)).flatten(0, 1):
        if init == "orthogonal":
            nn.init.orthogonal_(matrix)
        elif init == "identity":
            nn.init.eye_(matrix)
        else:
            nn.init.uniform_(matrix, -(size**-0.5), size**-0.5)
