"""Hyena:  v ← h_n ∗ (x_n⊙v) + d_n⊙(x_n⊙v),  n < N,  y = W(x_N⊙v),  h(t) = window(t)⊙network(t).

Products of projections as in attention, with filters as long as the sequence from a small network.
Poli et al. 2023, "Hyena Hierarchy: Towards Larger Convolutional Language Models".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.convolution import ShortConvolution
from threefold.layers.linear import Linear, WideLinear
from threefold.layers.long_filters import LongFilters
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.convolution import StreamedConvolution
from threefold.memory.state import State

# The window falls to 0.01 in 1.5 max_length in the slowest channel, in 0.3 in the fastest.
_SLOWEST, _FASTEST = math.log(100) / 1.5, math.log(100) / 0.3


class ImplicitFilters(LongFilters):
    """Filters as a network of the time: features, sines with learned frequencies, a linear map.

    The network has its own learning rate and no weight decay, as published (there 0.001 in all
    cases): sines multiply gradients by their frequency, so the common rate would be too high.
    """

    slow: ClassVar[tuple[str, ...]] = ("weight", "bias", "frequency")

    def __init__(
        self, width: int, max_length: int, convolutions: int, hidden: int, features: int, owner: str
    ) -> None:
        super().__init__(max_length, owner)
        self.width, self.convolutions, self.bands = width, convolutions, (features - 1) // 2
        self.first, self.second = WideLinear(features, hidden), WideLinear(hidden, hidden)
        self.third = WideLinear(hidden, hidden)
        self.last = WideLinear(hidden, convolutions * width, bias=False)
        self.frequency = nn.Parameter(torch.full((hidden,), 10.0))
        self.skip = nn.Parameter(torch.randn(convolutions, width))

    def make(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first taps of the filters of every convolution."""
        frequency = upcast(self.frequency)
        # Float64 keeps times exact: a band turns up to bands · 2π in max_length elements.
        time = torch.arange(length, dtype=torch.float64, device=frequency.device).unsqueeze(1)
        bands = torch.linspace(1e-4, self.bands - 1, self.bands, dtype=torch.float64)
        angles = 2 * math.pi / self.max_length * time * bands.to(frequency.device)
        share = time / max(self.max_length - 1, 1)
        x = torch.cat([share, angles.cos(), -angles.sin()], 1).to(frequency.dtype)
        for layer in (self.first, self.second, self.third):
            x = torch.sin(frequency * layer(x))
        rates = torch.linspace(_SLOWEST, _FASTEST, self.width, dtype=torch.float64)
        window = torch.exp(-share.to(x.dtype) * rates.to(x))
        kernels = torch.unflatten(self.last(x), 1, (self.convolutions, self.width))
        kernels = (kernels * window.unsqueeze(1)).permute(1, 2, 0)
        return list(zip(kernels, upcast(self.skip), strict=True))


class Hyena(Mixer):
    """The operator of order N: N + 1 short-convolved projections and N − 1 long convolutions.

    max_length: taps of a filter, and so the longest sequence; the network gets times as fractions
    of it.  hidden and features: sizes of the network and of its input, 1 + 2 · bands.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("skip",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("project",)

    def __init__(
        self,
        width: int,
        *,
        order: int = 2,
        max_length: int = 1024,
        taps: int = 3,
        hidden: int = 64,
        features: int = 33,
    ) -> None:
        super().__init__(width)
        if order < 2 or hidden < 1 or features < 3 or features % 2 == 0:
            raise ThreefoldError(
                f"{self.name}: order={order}, hidden={hidden}, features={features}; expected an "
                "order of at least 2, a positive size and an odd number of features, at least 3"
            )
        self.order = order
        self.filters = ImplicitFilters(width, max_length, order - 1, hidden, features, self.name)
        self.project = Linear(width, (order + 1) * width)
        self.conv = ShortConvolution((order + 1) * width, taps, bias=True, silu=False)
        self.out = Linear(width, width)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        long = StreamedConvolution.shapes(length, self.order - 1, self.width)
        return {"conv": self.conv.state_shape, **long}

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        stream = StreamedConvolution(state, x.shape[1], form, lengths)
        stream.check(self.filters.max_length, self.name)
        projected, conv = self.conv(self.project(x), state["conv"], lengths)
        value, first, *gates = projected.chunk(self.order + 1, -1)
        value = first * value
        for gate, taps in zip(gates, self.filters(stream.longest), strict=True):
            value = stream.convolve(value, taps, gate)
        return self.out(value), {"conv": conv, **stream.after()}
