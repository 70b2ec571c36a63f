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
from threefold.layers.linear import Linear
from threefold.layers.long_filters import LongFilters
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.convolution import StreamedConvolution
from threefold.memory.state import State

CONVOLUTIONS = 2


class ContinuousKernels(LongFilters):
    """Kernels from all channels to all: sines of the relative position, weights normalised.

    Lag m is position 1 − 2 m/(max_length − 1).  The layers of both networks have a direction and a
    magnitude per output (of the first layer's only input, a weight) and a bias.  They learn slowly:
    sines multiply gradients by ω.
    """

    slow: ClassVar[tuple[str, ...]] = (
        *("first_weight", "second_direction", "second_magnitude", "third_direction"),
        *("third_magnitude", "first_bias", "second_bias", "third_bias"),
    )

    def __init__(
        self, width: int, max_length: int, hidden: int, frequency: float, owner: str
    ) -> None:
        super().__init__(max_length, owner)
        self.width, self.frequency = width, frequency
        # Initial weights of Sitzmann et al. 2020 (SIREN).
        bound = (6 / hidden) ** 0.5 / frequency
        second = torch.empty(CONVOLUTIONS, hidden, hidden).uniform_(-bound, bound)
        third = torch.empty(CONVOLUTIONS, width * width, hidden).uniform_(-bound, bound)
        self.first_weight = nn.Parameter(torch.empty(CONVOLUTIONS, hidden, 1).uniform_(-1, 1))
        self.second_direction, self.third_direction = nn.Parameter(second), nn.Parameter(third)
        self.second_magnitude = nn.Parameter(second.norm(dim=-1))
        self.third_magnitude = nn.Parameter(third.norm(dim=-1))
        self.first_bias, self.second_bias, self.third_bias = (
            nn.Parameter(torch.empty(CONVOLUTIONS, size).uniform_(-1, 1))
            for size in (hidden, hidden, width * width)
        )

    def make(self, length: int) -> list[tuple[Tensor, None]]:
        """The first taps [length, width, width] of both kernels."""
        wide = upcast(self.third_bias)
        # Float64 keeps times exact, and what ω multiplies.
        lags = torch.arange(length, dtype=torch.float64, device=wide.device)
        x = (1 - 2 * lags / max(self.max_length - 1, 1)).view(1, -1, 1)
        x = _affine(x, self.first_weight, self.first_bias)
        weight = _normed(self.second_direction, self.second_magnitude, x.dtype)
        x = _affine(torch.sin(self.frequency * x), weight, self.second_bias)
        weight = _normed(self.third_direction, self.third_magnitude, wide.dtype)
        taps = _affine(torch.sin(self.frequency * x).to(wide.dtype), weight, wide)
        return [(kernel.view(length, self.width, self.width), None) for kernel in taps]


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer of both networks, x [1 or 2, length, inputs], in the dtype of x."""
    return x @ weight.to(x.dtype).mT + bias.to(x.dtype).unsqueeze(1)


def _normed(direction: Tensor, magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights of the given direction and length of each row."""
    scale: Tensor = magnitude.to(dtype) / direction.to(dtype).norm(dim=-1)
    return direction.to(dtype) * scale.unsqueeze(-1)


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
        kernels = self.filters.taps(stream.longest)
        for taps, bias, norm, drop in zip(
            kernels, self.bias, self.norms, self.dropouts, strict=True
        ):
            y = drop(torch.relu(norm(stream.convolve(y, taps) + bias)))
        return self.out(torch.relu(y + x)), stream.after()
