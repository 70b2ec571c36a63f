"""Coupled LSTM:  c = f⊙c₋ + (1−f)⊙g,  h = o⊙tanh(c).

Two gates: what is forgotten makes room for what is new.
Greff et al. 2017, "LSTM: A Search Space Odyssey" (coupled input and forget gate).
"""

from __future__ import annotations

from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import CoupledLSTMCell

FORGET = 0  # of the gates f, g, o


class CoupledLSTM(CellMixer):
    """The LSTM with i = 1 − f; `forget_bias` is where the forget gates start."""

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        forget_bias: float = 1.0,
        init: str = "orthogonal",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            CoupledLSTMCell(),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        self.gate(FORGET).fill_(forget_bias)
