"""Long convolution:  y = W φ(k ∗ x + d⊙x),  k = sign(c)·max(|c| − λ, 0),  c = smooth(taps).

A filter as long as the sequence, every tap a parameter; smoothing and shrinking keep it simple.
Fu et al. 2023, "Simple Hardware-Efficient Long Convolutions for Sequence Modeling".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.layers.long_filters import LongFilters
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.convolution import StreamedConvolution
from threefold.memory.state import State


class ExplicitFilters(LongFilters):
    """Taps as parameters; initially decaying noise, at a different rate per channel."""

    def __init__(
        self, width: int, max_length: int, *, squash: float, smooth: int, owner: str
    ) -> None:
        super().__init__(max_length, owner)
        self.squash, self.smooth = squash, smooth
        rates = (width / 2) ** (torch.arange(width) / width)
        fade = torch.exp(-torch.arange(max_length) / max_length * rates.unsqueeze(1))
        self.coefficients = nn.Parameter(0.02 * torch.randn(width, max_length) * fade)
        self.skip = nn.Parameter(torch.randn(width))

    def make(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """The first taps, smoothed and squashed."""
        kernel = upcast(self.coefficients)[:, : length + self.smooth]
        if self.smooth:
            size = 2 * self.smooth + 1
            kernel = F.avg_pool1d(kernel, size, stride=1, padding=self.smooth)
        kernel = F.softshrink(kernel[:, :length], self.squash)
        return [(kernel, upcast(self.skip))]


class LongConv(Mixer):
    """A long convolution of explicit taps, GELU, and a gated linear unit on the way out.

    max_length: taps of a filter, and so the longest sequence.  squash: λ, by which taps shrink;
    smooth: each tap is averaged with that many neighbours on either side (0: none), zero-padded.
    """

    slow: ClassVar[tuple[str, ...]] = ("coefficients",)
    no_decay: ClassVar[tuple[str, ...]] = ("skip",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("out",)

    def __init__(
        self, width: int, *, max_length: int = 1024, squash: float = 0.003, smooth: int = 0
    ) -> None:
        super().__init__(width)
        if squash < 0 or smooth < 0:
            raise ThreefoldError(
                f"{self.name}: squash={squash} and smooth={smooth}, expected both at least 0"
            )
        self.filters = ExplicitFilters(
            width, max_length, squash=squash, smooth=smooth, owner=self.name
        )
        self.out = Linear(width, 2 * width)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return StreamedConvolution.shapes(length, 1, self.width)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        stream = StreamedConvolution(state, x.shape[1], form, lengths)
        stream.check(self.filters.max_length, self.name)
        (taps,) = self.filters(stream.longest)
        y = stream.convolve(x, taps)
        return F.glu(self.out(F.gelu(y)), -1), stream.after()
