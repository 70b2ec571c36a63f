"""Elman's RNN:  h = φ(W x + U h₋ + b),  y = W_o h.

The simplest memory: the state is multiplied by a matrix, added to the input, and squashed.
Elman 1990, "Finding Structure in Time"; Le, Jaitly & Hinton 2015 (relu from the identity).
"""

from __future__ import annotations

from threefold.errors import ThreefoldError, nearest
from threefold.layers.cell_mixer import CellMixer
from threefold.memory.cell import ACTIVATIONS, RNNCell


class RNN(CellMixer):
    """The vanilla recurrent network; `relu` is meant for init="identity", `identity` is linear.

    Without `readout` the hidden state is the output, as in torch.nn.RNN.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        activation: str = "tanh",
        init: str = "orthogonal",
        readout: bool = True,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        if activation not in ACTIVATIONS:
            raise ThreefoldError(
                f"RNN: unknown activation {activation!r}; {nearest(activation, ACTIVATIONS)}"
            )
        super().__init__(
            width,
            RNNCell(activation),
            hidden=hidden,
            init=init,
            dropout=dropout,
            recurrent_dropout=recurrent_dropout,
            readout=readout,
        )
