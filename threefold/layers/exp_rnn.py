"""Exponential RNN:  h = φ(exp(A) h₋ + W x),  Aᵀ = −A,  φ(a) = sign(a)·max(|a|+b, 0),  y = W_o h.

The exponential of a skew-symmetric matrix is orthogonal: h₋ is turned, never shrunk or stretched.
Lezcano-Casado & Martínez-Rubio 2019, "Cheap Orthogonal Constraints in Neural Networks: A Simple
Parametrization of the Orthogonal and Unitary Group".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.cell_mixer import StructuredCellMixer
from threefold.layers.linear import Linear
from threefold.memory.cell import ModReLUCell
from threefold.memory.state import memory_dtype

INITIALISATIONS = ("cayley", "henaff")


class ExpRNN(StructuredCellMixer):
    """The orthogonal recurrent network; A is made of the entries of `recurrent` above the diagonal.

    φ is modReLU with a bias b for each unit.
    `init`: exp(A) starts as rotations of pairs, by angles tan(u/2) with u uniform in [0, π/2]
    (cayley), or uniform in [−π, π] (henaff).  As published, the matrix learns at a lower rate than
    the rest, and W x has no bias.
    """

    slow: ClassVar[tuple[str, ...]] = ("recurrent",)
    no_decay: ClassVar[tuple[str, ...]] = ("bias",)
    remembers: ClassVar[str] = "turns its state, which does not fade"
    gate_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        init: str = "cayley",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            ModReLUCell(),
            hidden=hidden,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        if init not in INITIALISATIONS:
            raise ThreefoldError(
                f"{self.name}: unknown init {init!r}; {nearest(init, INITIALISATIONS)}"
            )
        self.input = Linear(width, self.hidden, bias=False)
        nn.init.kaiming_normal_(self.input.weight, nonlinearity="relu")
        self.recurrent = nn.Parameter(initial_rotations(self.hidden, init).unsqueeze(0))
        self.bias = nn.Parameter(torch.empty(1, self.hidden).uniform_(-0.01, 0.01))

    @property
    def extra(self) -> Tensor:
        return self.bias

    def matrices(self) -> Tensor:
        # In float64: an error of the matrix is one of the angles, and they add up over time.
        above = self.recurrent.double().triu(1)
        turned: Tensor = torch.linalg.matrix_exp(above - above.mT)
        return turned.to(memory_dtype(self.recurrent.dtype))


def initial_rotations(size: int, init: str) -> Tensor:
    """A [H, H] of rotations of pairs of units; the last of an odd number stays as it is."""
    angles = torch.empty(size // 2)
    if init == "cayley":
        angles = -torch.tan(angles.uniform_(0, math.pi / 2) / 2)
    else:
        angles.uniform_(-math.pi, math.pi)
    above = torch.zeros(size, size)
    first = torch.arange(0, size - 1, 2)
    above[first, first + 1] = angles
    return above - above.mT
