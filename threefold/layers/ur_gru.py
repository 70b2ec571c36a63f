"""UR-GRU:  h = g⊙h₋ + (1−g)⊙tanh(W x + U(s⊙h₋)),  g = r⊙(1−(1−f)²) + (1−r)⊙f²,  f, r, s = σ(·).

A GRU whose update gates start at all time scales, and learn also where they are nearly shut.
Gu et al. 2020, "Improving the Gating Mechanism of Recurrent Neural Networks".
"""

from __future__ import annotations

from threefold.layers.cell_mixer import CellMixer
from threefold.layers.ur_lstm import start_uniform
from threefold.memory.cell import URGRUCell

FORGET, REFINE = 1, 2  # of the gates s, f, r, n


class URGRU(CellMixer):
    """The GRU whose update gate f, the share of the past, has a refine gate r; s is its reset gate.

    σ(b) of the update gates' biases b is uniform in [1/H, 1 − 1/H], those of r start at −b (in the
    paper one vector b beside the biases, as in `ur_lstm`).
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
            URGRUCell(),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
        )
        start_uniform(self.gate(FORGET), self.gate(REFINE))
