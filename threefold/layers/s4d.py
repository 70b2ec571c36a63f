"""S4D:  s = e^{Δa} s₋ + B̄ x,  y = 2 Re(C s) + D x,  taps K̄ = 2 Re Σ_n C_n B̄_n e^{Δ a_n t}.

One filter per channel with a diagonal state matrix: S4 without the low-rank part.
Gu et al. 2022, "On the Parameterization and Initialization of Diagonal State Space Models".
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.precision import upcast
from threefold.layers.state_space_mixer import FilterMixer, as_complex, count_pairs
from threefold.memory.discretisation import check_method
from threefold.memory.filter import Filter, diagonal_filter
from threefold.memory.hippo import normal_plus_low_rank

INITIALISATIONS = ("lin", "inv", "legs", "real")


class S4D(FilterMixer):
    """The diagonal state space; `state_size` N counts both numbers of each conjugate pair.

    `init` chooses the initial a: lin −½ + iπn, inv −½ + i N/π (N/(2n+1) − 1), legs the normal
    part of HiPPO-LegS, real −(n+1).  B is 1: only its product with C matters.
    """

    slow: ClassVar[tuple[str, ...]] = ("delta_log", "decay_log", "frequency")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta_log", "decay_log", "frequency")

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 64,
        init: str = "lin",
        method: str = "zero_order_hold",
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
        check_method(method, self.name)
        self.method = method
        begin = initial_poles(init, pairs).expand(width, pairs)
        self.decay_log = nn.Parameter(torch.log(-begin.real).float())
        self.frequency = nn.Parameter(begin.imag.float().clone())
        self.C = nn.Parameter(torch.randn(width, pairs, 2) * math.sqrt(0.5))
        self.carries(memory=(width, pairs, 2))

    def filter(self) -> Filter:
        poles = torch.complex(-torch.exp(self.decay_log.double()), self.frequency.double())
        return diagonal_filter(
            poles,
            torch.ones_like(poles),
            as_complex(self.C),
            self.delta,
            method=self.method,
            dtype=upcast(self.C).dtype,
        )

    def check_loaded(self) -> None:
        super().check_loaded()
        if not bool(self.decay_log.isfinite().all() and self.frequency.isfinite().all()):
            raise ThreefoldError(f"{self.name}: A is not stable: a pole is not finite")


def initial_poles(init: str, pairs: int) -> Tensor:
    """a [N/2], complex128, those with positive imaginary parts."""
    n = torch.arange(pairs, dtype=torch.float64)
    half = torch.full_like(n, -0.5)
    if init == "lin":
        return torch.complex(half, math.pi * n)
    if init == "inv":
        size = 2 * pairs
        return torch.complex(half, size / math.pi * (size / (2 * n + 1) - 1))
    if init == "legs":
        return normal_plus_low_rank(2 * pairs)[0]
    if init == "real":
        return torch.complex(-(n + 1), torch.zeros_like(n))
    raise ThreefoldError(f"S4D: unknown init {init!r}; {nearest(init, INITIALISATIONS)}")
