"""GRU:  h = z⊙h₋ + (1−z)⊙h̃,  h̃ = tanh(W x + U(r⊙h₋) + b),  r, z = σ(W x + U h₋ + b).

One state and two gates: r chooses what of the past the candidate sees, z how much of it is kept.
Cho et al. 2014, "Learning Phrase Representations using RNN Encoder–Decoder".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import GRUCell


class GRU(CellMixer):
    """The GRU as published, or in two other conventions.

    `reset_after` multiplies by r after the product, h̃ = tanh(W x + b + r⊙(U h₋ + b′)), as
    torch.nn.GRU.  With `update_writes` z is the share of the candidate:
    h = (1−z)⊙h₋ + z⊙h̃ (Chung et al. 2014).
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        reset_after: bool = False,
        update_writes: bool = False,
        init: str = "orthogonal",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            width,
            GRUCell(reset_after, update_writes),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        self.inner_bias = nn.Parameter(torch.zeros(1, self.hidden)) if reset_after else None

    @property
    def extra(self) -> Tensor | None:
        return self.inner_bias
