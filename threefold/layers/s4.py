"""S4:  h' = A h + B x,  y = C h + D x,  A = Diag(Λ) − P Pᴴ,  run as K̄ ∗ x or element by element.

One filter per channel, initially HiPPO-LegS, a memory of the whole past.
Gu, Goel & Ré 2022, "Efficiently Modeling Long Sequences with Structured State Spaces".
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn

from threefold.errors import ThreefoldError
from threefold.layers.precision import upcast
from threefold.layers.state_space_mixer import FilterMixer, as_complex, as_pairs, count_pairs
from threefold.memory.dplr import DPLR
from threefold.memory.filter import Filter
from threefold.memory.hippo import normal_plus_low_rank


class S4(FilterMixer):
    """The structured state space, bilinear; Λ, P and B are shared, C and Δ are per channel.

    C itself is the parameter, not C (I − Ā^L): no length is built in.  With P on both sides and
    Re Λ < 0, every A that can be learned is stable.
    """

    slow: ClassVar[tuple[str, ...]] = ("delta_log", "decay_log", "frequency", "P", "B")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta_log",)

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 64,
        delta_range: tuple[float, float] = (0.001, 0.1),
        rate: float = 1.0,
        glu: bool = True,
        dropout: float = 0.0,
        norm: bool = False,
        eps: float = 1e-5,
    ) -> None:
        around: dict[str, Any] = {"glu": glu, "dropout": dropout, "norm": norm, "eps": eps}
        super().__init__(width, delta_range=delta_range, rate=rate, **around)
        pairs = count_pairs(self.name, state_size)
        poles, P, B = normal_plus_low_rank(state_size)
        self.decay_log = nn.Parameter(torch.log(-poles.real).float())
        self.frequency = nn.Parameter(poles.imag.float())
        self.P, self.B = nn.Parameter(as_pairs(P)), nn.Parameter(as_pairs(B))
        self.C = nn.Parameter(torch.randn(width, pairs, 2) * math.sqrt(0.5))
        self.carries(memory=(width, pairs, 2))

    def filter(self) -> Filter:
        poles = torch.complex(-torch.exp(self.decay_log.double()), self.frequency.double())
        system = DPLR(poles, as_complex(self.P), as_complex(self.B), as_complex(self.C), self.delta)
        return system.filter(upcast(self.C).dtype)

    def check_loaded(self) -> None:
        super().check_loaded()
        parts = (self.decay_log, self.frequency, self.P)
        if not all(bool(part.isfinite().all()) for part in parts):
            raise ThreefoldError(f"{self.name}: A is not stable: it is not finite")
