"""FNet:  y = Re(F_L x F_D), the discrete Fourier transform along the sequence and along the width.

Every element of the output is a fixed mixture of the whole input; there are no parameters.
Lee-Thorp et al. 2022, "FNet: Mixing Tokens with Fourier Transforms".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.state import State


class FNet(Mixer):
    """The Fourier sublayer, unscaled as published; with `normalise` divided by √(L · width).

    Not causal; parallel only, no state, O(L log L).  Each row is transformed at
    its own length.
    """

    causal = False
    forms = ("parallel",)

    def __init__(self, width: int, *, normalise: bool = False) -> None:
        super().__init__(width)
        self.normalise = normalise

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        if lengths is None:
            return self.transform(x), {}
        y = torch.zeros_like(x)
        for count in sorted(set(lengths.tolist()) - {0}):
            rows = (lengths == count).nonzero().squeeze(1)
            short = torch.zeros_like(x[rows])
            short[:, :count] = self.transform(x[rows, :count])
            y = y.index_copy(0, rows, short)
        return y, {}

    def transform(self, x: Tensor) -> Tensor:
        """Both transforms, for rows without padding."""
        norm = "ortho" if self.normalise else "backward"
        mixed: Tensor = torch.fft.fft2(upcast(x), norm=norm).real
        return mixed.to(x.dtype)
