"""UR-LSTM:  c = g⊙c₋ + (1−g)⊙n,  h = o⊙tanh(c),  g = r⊙(1−(1−f)²) + (1−r)⊙f²,  f, r, o = σ(·).

An LSTM whose forget gates start at all time scales, and learn also where they are nearly shut.
Gu et al. 2020, "Improving the Gating Mechanism of Recurrent Neural Networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import URLSTMCell

FORGET, REFINE = 0, 1  # of the gates f, r, n, o


class URLSTM(CellMixer):
    """The LSTM with a refine gate r and uniform gate initialisation; the input gate is 1 − g.

    σ(b) of the forget gates' biases b is uniform in [1/H, 1 − 1/H], those of r start at −b.  The
    paper adds one vector b to f and subtracts it from r, beside a bias of each: here the biases
    themselves start there.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        init: str = "orthogonal",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            URLSTMCell(),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        start_uniform(self.gate(FORGET), self.gate(REFINE))


def start_uniform(forget: Tensor, refine: Tensor) -> None:
    """Uniform gate initialisation of the biases [H] of a forget gate and of its refine gate."""
    lowest = min(1 / len(forget), 0.5)
    forget.uniform_(lowest, 1 - lowest)
    forget.copy_(torch.logit(forget))
    refine.copy_(-forget)
