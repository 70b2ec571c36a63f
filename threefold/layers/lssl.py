"""LSSL:  s = Ā s₋ + B̄ x,  y = C s + D⊙x,  out = W gelu(y),  Ā, B̄ bilinear from A, B and Δ.

A filter of each channel with a whole matrix A, HiPPO's at the beginning; all of it can be learnt.
Gu et al. 2021, "Combining Recurrent, Convolutional, and Continuous-time Models with Linear
State-Space Layers".
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.precision import upcast
from threefold.layers.state_space_mixer import FilterMixer
from threefold.memory.discretisation import check_method, check_stable, discretise
from threefold.memory.filter import Filter
from threefold.memory.hippo import hippo
from threefold.memory.transition import DenseTransition


class LSSL(FilterMixer):
    """The linear state-space layer: one A for all channels, one output a channel (M = 1).

    A is learnt entry by entry, without the paper's quasi-separable form, or with `learn=False`
    stays what `measure` says: legs, legt, lagt, or random, Gaussian and no memory of anything in
    particular, which the paper compares with.
    """

    slow: ClassVar[tuple[str, ...]] = ("delta_log", "A", "B")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta_log",)

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
        eps: float = 1e-5,
    ) -> None:
        around: dict[str, Any] = {"glu": glu, "dropout": dropout, "norm": norm, "eps": eps}
        super().__init__(width, delta_range=delta_range, rate=rate, **around)
        check_method(method, self.name)
        self.method = method
        A, B = initial_system(measure, state_size)
        self.A = nn.Parameter(A.float(), requires_grad=learn)
        self.B = nn.Parameter(B.float(), requires_grad=learn)
        self.C = nn.Parameter(torch.randn(width, state_size) * state_size**-0.5)
        self.carries(memory=(width, state_size))

    def filter(self) -> Filter:
        transition, write = discretise(self.A.double(), self.B.double(), self.delta, self.method)
        return Filter(DenseTransition(transition), write, self.C.double(), upcast(self.C).dtype)

    def check_loaded(self) -> None:
        super().check_loaded()
        check_stable(self.A, self.name)


def initial_system(measure: str, size: int) -> tuple[Tensor, Tensor]:
    """A [N, N] and B [N], float64, of a HiPPO by its name or drawn at random."""
    if measure != "random":
        return hippo(measure, size).matrices()
    if size < 1:
        raise ThreefoldError(f"LSSL: state_size={size}, expected at least 1")
    A = torch.randn(size, size, dtype=torch.float64) * size**-0.5
    # Moved to the left until no free motion grows, not even for a while.
    growth = torch.linalg.eigvalsh((A + A.mT) / 2).max()
    return A - growth * torch.eye(size, dtype=torch.float64), torch.randn(size).double()
