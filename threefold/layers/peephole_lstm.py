"""Peephole LSTM:  i, f = σ(W x + U h₋ + p⊙c₋ + b),  c = f⊙c₋ + i⊙g,  o = σ(W x + U h₋ + p⊙c + b).

The gates also see the cell that they guard, which lets them count and time.
Gers & Schmidhuber 2000, "Recurrent Nets that Time and Count".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import PeepholeLSTMCell

FORGET = 1  # of the gates i, f, g, o


class PeepholeLSTM(CellMixer):
    """The LSTM with peepholes for i, f and o: diagonal as published, or `full` matrices.

    Full matrices run in plain torch, since the output gate needs a product with the new cell.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("peephole",)

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        full: bool = False,
        forget_bias: float = 1.0,
        init: str = "orthogonal",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            PeepholeLSTMCell(full),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        sizes = (self.hidden,) * (2 if full else 1)
        bound = self.hidden**-0.5
        self.peephole = nn.Parameter(torch.empty(3, *sizes).uniform_(-bound, bound))
        self.gate(FORGET).fill_(forget_bias)

    @property
    def extra(self) -> Tensor:
        return self.peephole
