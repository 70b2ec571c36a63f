"""CKConv:  z = φ(N(ψ₂ ∗ φ(N(ψ₁ ∗ x)))),  y = W_o φ(z + x),  ψ(t) = W₃ sin(ω W₂ sin(ω W₁ t)).

Convolutions as long as the sequence, whose kernels are small networks of the time, in a residual
block.
Romero et al. 2022, "CKConv: Continuous Kernel Convolution for Sequential Data".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.continuous_kernels import CONVOLUTIONS, ContinuousKernels
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.memory.convolution import StreamedConvolution
from threefold.memory.state import State


class CKConv(Mixer):
    """The published residual block: two convolutions, each with layer norm, ReLU and dropout.

    max_length: taps of a kernel, and so the longest sequence; positions −1 … 1 span it.  hidden and
    `frequency` (ω) are those of the kernels' networks.  A kernel has max_length · width² taps.  The
    published code norms over all elements too, which a causal layer cannot: here each element is
    normed alone.  Other sampling rates than that of training are not supported.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("bias",)

    def __init__(
        self,
        width: int,
        *,
        max_length: int = 1024,
        hidden: int = 32,
        frequency: float = 30.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        if hidden < 1 or not frequency > 0:
            raise ThreefoldError(
                f"{self.name}: hidden={hidden}, frequency={frequency}; expected at least 1 unit "
                "and a frequency above 0"
            )
        check_dropout(self.name, dropout=dropout)
        self.filters = ContinuousKernels(width, max_length, hidden, frequency, self.name)
        self.bias = nn.Parameter(torch.zeros(CONVOLUTIONS, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(CONVOLUTIONS))
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(CONVOLUTIONS))
        self.out = Linear(width, width)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return StreamedConvolution.shapes(length, CONVOLUTIONS, self.width)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        stream = StreamedConvolution(state, x.shape[1], form, lengths)
        stream.check(self.filters.max_length, self.name)
        y = x
        kernels = self.filters(stream.longest)
        for taps, bias, norm, drop in zip(
            kernels, self.bias, self.norms, self.dropouts, strict=True
        ):
            y = drop(torch.relu(norm(stream.convolve(y, taps) + bias)))
        return self.out(torch.relu(y + x)), stream.after()
