"""LSSL:  s = Ā s₋ + B̄ x,  y = C s + D⊙x,  out = W gelu(y),  Ā, B̄ bilinear from A, B and Δ.

A filter of each channel with a whole matrix A, HiPPO's at the beginning; all of it can be learnt.
Gu et al. 2021, "Combining Recurrent, Convolutional, and Continuous-time Models with Linear
State-Space Layers".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from threefold.layers.filter import FilterMixer
from threefold.layers.parts import wide
from threefold.memory.discrete import check_method, check_stable, discretise
from threefold.memory.filter import Filter
from threefold.memory.hippo import hippo
from threefold.memory.transition import Dense


class LSSL(FilterMixer):
    """The linear state-space layer: one A for all channels, one output a channel (M = 1).

    A is learnt entry by entry, without the paper's quasi-separable form, or with `learn=False`
    stays what `measure` (legs, legt or lagt) says.
    """

    slow: ClassVar[tuple[str, ...]] = ("delta_log", "A", "B")

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 32,
        measure: str = "legs",
        learn: bool = True,
        method: str = "bilinear",
        delta_range: tuple[float, float] = (0.001, 0.1),
        rate: float = 1.0,
        glu: bool = False,
        dropout: float = 0.0,
        norm: bool = False,
    ) -> None:
        super().__init__(
            width, delta_range=delta_range, rate=rate, glu=glu, dropout=dropout, norm=norm
        )
        check_method(method, self.name)
        self.method = method
        A, B = hippo(measure, state_size).matrices()
        self.A = nn.Parameter(A.float(), requires_grad=learn)
        self.B = nn.Parameter(B.float(), requires_grad=learn)
        self.C = nn.Parameter(torch.randn(width, state_size) * state_size**-0.5)
        self.carries(memory=(width, state_size))

    def filter(self) -> Filter:
        transition, write = discretise(self.A.double(), self.B.double(), self.delta, self.method)
        return Filter(Dense(transition), write, self.C.double(), wide(self.C).dtype)

    def check_loaded(self) -> None:
        super().check_loaded()
        check_stable(self.A, self.name)
