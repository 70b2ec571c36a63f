"""TCN:  z = φ(k ∗_d φ(k' ∗_d x)),  x ← φ(z + x),  d = 1, 2, 4, …,  φ = ReLU;  y = W_o x.

Residual blocks of causal convolutions whose taps are further apart in each: the window doubles.
Bai, Kolter & Koltun 2018, "An Empirical Evaluation of Generic Convolutional and Recurrent Networks
for Sequence Modeling".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.cell_mixer import locked_mask
from threefold.layers.checks import check_dropout
from threefold.layers.convolution import DilatedConvolution
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.memory.state import State


class TCN(Mixer):
    """The temporal convolutional network: `levels` residual blocks of two convolutions each.

    Convolutions have `taps` taps, `hidden` channels and weight normalisation; those of level l are
    2^l elements apart, so that an output depends on the last 1 + 2 (taps − 1)(2^levels − 1)
    elements.  `dropout` drops whole channels after each convolution.  Initial weights are torch's
    of a convolution: the N(0, 0.01) of the published code is overwritten by its weight
    normalisation.
    """

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        levels: int = 4,
        taps: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        hidden = width if hidden is None else hidden
        if hidden < 1 or levels < 1 or taps < 2:
            raise ThreefoldError(
                f"{self.name}: hidden={hidden}, levels={levels}, taps={taps}; expected at least 1 "
                "channel, 1 level and 2 taps"
            )
        check_dropout(self.name, dropout=dropout)
        self.hidden, self.dropout = hidden, dropout
        self.convolutions = nn.ModuleList(
            DilatedConvolution(hidden if n else width, hidden, taps, 2 ** (n // 2))
            for n in range(2 * levels)
        )
        # The residual connection of the first block, where the number of channels changes.
        self.shortcut = Linear(width, hidden) if hidden != width else None
        self.out = Linear(hidden, width)
        shapes = {str(n): conv.state_shape for n, conv in enumerate(self.convolutions)}
        self.carries(conv=shapes)

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        for conv in self.convolutions:
            conv.weight()  # type: ignore[operator]

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        after: State = {}
        residual = x
        for n, conv in enumerate(self.convolutions):
            y, after[str(n)] = conv(x, state["conv"][str(n)], lengths)
            mask = locked_mask(self, y, self.dropout, self.hidden)
            x = torch.relu(y) if mask is None else torch.relu(y) * mask.unsqueeze(1)
            if n % 2:
                if n == 1 and self.shortcut is not None:
                    residual = self.shortcut(residual)
                x = residual = torch.relu(x + residual)
        return self.out(x), {"conv": after}
