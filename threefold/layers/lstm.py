"""LSTM:  c = f⊙c₋ + i⊙g,  h = o⊙tanh(c),  i, f, o = σ(W x + U h₋ + b),  g = tanh(W x + U h₋ + b).

A cell that keeps what its gates let in, for as long as they do not let it go.
Hochreiter & Schmidhuber 1997, "Long Short-Term Memory"; Gers et al. 2000 (forget gate).
"""

from __future__ import annotations

from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import LSTMCell

FORGET = 1  # of the gates i, f, g, o, torch's order


class LSTM(CellMixer):
    """The LSTM; `forget_bias` is where the forget gates start, open from 1 on."""

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
            LSTMCell(),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        self.gate(FORGET).fill_(forget_bias)
