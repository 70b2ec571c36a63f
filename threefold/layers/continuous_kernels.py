"""ψ(t) = W₃ sin(ω (W₂ sin(ω (W₁ t + b₁)) + b₂)) + b₃: long kernels from networks.

Sitzmann et al. 2020, "Implicit Neural Representations with Periodic Activation Functions" (SIREN).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.layers.long_filters import Filter, LongFilters
from threefold.layers.precision import upcast
from threefold.memory.convolution import MixingFilter

CONVOLUTIONS = 2  # of a block


class ContinuousKernels(LongFilters):
    """Kernels from all channels to all: sines of the relative position, weights normalised.

    Lag m is position 1 − 2 m/(max_length − 1).  The layers of both networks have a direction and a
    magnitude per output (of the first layer's only input, a weight) and a bias.  They learn slowly:
    sines multiply gradients by ω.
    """

    prepared: ClassVar[type[Filter]] = MixingFilter
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

    def make(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """Basis [length, hidden + 1] and mixing [hidden + 1, width, width] of both kernels."""
        wide = upcast(self.third_bias)
        # Float64 keeps times exact, and what ω multiplies.
        lags = torch.arange(length, dtype=torch.float64, device=wide.device)
        x = (1 - 2 * lags / max(self.max_length - 1, 1)).view(1, -1, 1)
        x = _affine(x, self.first_weight, self.first_bias)
        weight = _normed(self.second_direction, self.second_magnitude, x.dtype)
        x = _affine(torch.sin(self.frequency * x), weight, self.second_bias)
        shapes = torch.sin(self.frequency * x).to(wide.dtype)
        basis = torch.cat([shapes, torch.ones_like(shapes[..., :1])], -1)  # 1 is for the bias
        weight = _normed(self.third_direction, self.third_magnitude, wide.dtype)
        mixing = torch.cat([weight.mT, wide.unsqueeze(1)], 1)
        return list(zip(basis, torch.unflatten(mixing, -1, (self.width, -1)), strict=True))


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer of both networks, x [1 or 2, length, inputs], in the dtype of x."""
    return x @ weight.to(x.dtype).mT + bias.to(x.dtype).unsqueeze(1)


def _normed(direction: Tensor, magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights of the given direction and length of each row."""
    scale: Tensor = magnitude.to(dtype) / direction.to(dtype).norm(dim=-1)
    return direction.to(dtype) * scale.unsqueeze(-1)
