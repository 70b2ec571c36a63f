"""c' = A c + B f:  coefficients of the past of f, kept up as f goes on;  f(t − s) ≈ Σ_n c_n g_n(s).

A measure says how much each moment of the past counts, an orthonormal basis g of it spans what is
remembered, and A, B follow from both.
Gu et al. 2020, "HiPPO: Recurrent Memory with Optimal Polynomial Projections"; 2023 (Fourier).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.memory.discretisation import check_delta, discretise


@dataclass(frozen=True)
class Hippo(ABC):
    """N coefficients of the past; `window` is the length of what is remembered, in time."""

    size: int
    window: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.window < math.inf:
            raise ThreefoldError(
                f"{type(self).__name__}: size={self.size}, window={self.window}; expected at least "
                "1 coefficient and a positive window"
            )

    @abstractmethod
    def matrices(self) -> tuple[Tensor, Tensor]:
        """A [N, N] and B [N], float64."""

    @abstractmethod
    def basis(self, past: Tensor) -> Tensor:
        """g_n(s) for each s ≥ 0 of `past` [...], as [..., N]."""

    @abstractmethod
    def measure(self, past: Tensor) -> Tensor:
        """How much the moment s ≥ 0 before now counts."""

    def project(
        self,
        signal: Tensor,
        period: float,
        method: str = "bilinear",
        *,
        start: Tensor | None = None,
        before: int = 0,
    ) -> Tensor:
        """The coefficients [..., L, N] after each sample of signal [..., L], `period` apart.

        A signal may come in pieces: `start` [..., N] is what is known of the `before` samples that
        came before this one.
        """
        step = torch.tensor(period, dtype=torch.float64)
        check_delta(step / self.window, type(self).__name__)
        transition, write = discretise(*self.matrices(), step, method)
        now = self._begin(signal, start, before)
        found = []
        for sample in signal.double().unbind(-1):
            now = now @ transition.mT + sample.unsqueeze(-1) * write
            found.append(now)
        return torch.stack(found, -2)

    def _begin(self, signal: Tensor, start: Tensor | None, before: int) -> Tensor:
        wanted = (*signal.shape[:-1], self.size)
        if signal.dim() < 1 or signal.shape[-1] < 1 or before < 0:
            raise ThreefoldError(
                f"{type(self).__name__}: signal is {tuple(signal.shape)} after {before} samples, "
                "expected [..., length ≥ 1] after 0 or more"
            )
        if start is None:
            return signal.new_zeros(wanted, dtype=torch.float64)
        if start.shape != wanted:
            raise ThreefoldError(
                f"{type(self).__name__}: start is {tuple(start.shape)}, expected {wanted}"
            )
        return start.double()

    def reconstruct(self, coefficients: Tensor, past: Tensor) -> Tensor:
        """f at each moment of `past` [T] before now, [..., T], from coefficients [..., N]."""
        return coefficients @ self.basis(past.double()).mT


class LegT(Hippo):
    """A sliding window in which every moment counts the same: Legendre polynomials (the LMU's)."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        n = torch.arange(self.size, dtype=torch.float64)
        root = torch.sqrt(2 * n + 1)
        sign = torch.where(n[:, None] < n, (-1.0) ** (n[:, None] - n), 1.0)
        return -torch.outer(root, root) * sign / self.window, root / self.window

    def basis(self, past: Tensor) -> Tensor:
        return _legendre(1 - 2 * past / self.window, self.size)

    def measure(self, past: Tensor) -> Tensor:
        return torch.where(past <= self.window, 1 / self.window, 0.0)


class LagT(Hippo):
    """The further back the less, exponentially: Laguerre polynomials."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        ones = torch.ones(self.size, self.size, dtype=torch.float64)
        return -ones.tril() / self.window, ones[0] / self.window

    def basis(self, past: Tensor) -> Tensor:
        x = past / self.window
        values = [torch.ones_like(x), 1 - x]
        for n in range(1, self.size - 1):
            values.append(((2 * n + 1 - x) * values[n] - n * values[n - 1]) / (n + 1))
        return torch.stack(values[: self.size], -1)

    def measure(self, past: Tensor) -> Tensor:
        return torch.exp(-past / self.window) / self.window


class Fourier(Hippo):
    """A sliding window, seen through 1, √2 cos and √2 sin of its whole periods; N is odd."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise ThreefoldError(
                f"Fourier: size={self.size}, expected an odd number: the mean, then a cosine and a "
                "sine of each period"
            )

    def matrices(self) -> tuple[Tensor, Tensor]:
        # The series at a jump gives the mean of both sides, so f(t − window) ≈ 2 Σ c g(0) − f(t).
        edge = self.basis(torch.zeros((), dtype=torch.float64))
        turn = torch.zeros(self.size, self.size, dtype=torch.float64)
        for n in range(1, (self.size + 1) // 2):
            cosine, sine = 2 * n - 1, 2 * n
            turn[cosine, sine], turn[sine, cosine] = -2 * math.pi * n, 2 * math.pi * n
        return (turn - 2 * torch.outer(edge, edge)) / self.window, 2 * edge / self.window

    def basis(self, past: Tensor) -> Tensor:
        angle = 2 * math.pi * past.unsqueeze(-1) / self.window
        angle = angle * torch.arange(1, (self.size + 1) // 2, dtype=torch.float64)
        waves = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], -1).flatten(-2)
        return torch.cat([torch.ones_like(past).unsqueeze(-1), waves], -1)

    def measure(self, past: Tensor) -> Tensor:
        return torch.where(past <= self.window, 1 / self.window, 0.0)


class LegS(Hippo):
    """All of the past, each moment the same: c' = (A c + B f)/t, without a window.

    Used without the 1/t (`DecayingLegS`, S4) the same A and B see the past through e^{−s}.
    """

    def matrices(self) -> tuple[Tensor, Tensor]:
        n = torch.arange(self.size, dtype=torch.float64)
        root = torch.sqrt(2 * n + 1)
        return -(torch.outer(root, root).tril(-1) + torch.diag(n + 1)), root

    def basis(self, past: Tensor) -> Tensor:
        """`past` from 0, now, to 1, the beginning: of the scaled past."""
        return _legendre(1 - 2 * past, self.size)

    def measure(self, past: Tensor) -> Tensor:
        return torch.where(past <= 1, 1.0, 0.0)

    def transition(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Ā [..., N, N] and B̄ [..., N] of the element number count [...] ≥ 1, bilinear."""
        A, B = (part.to(count.device) for part in self.matrices())
        share = 1 / count.double().unsqueeze(-1)
        identity = torch.eye(self.size, dtype=A.dtype, device=A.device)
        half = share.unsqueeze(-1) * A / 2
        both = torch.cat([identity + half, (share * B).unsqueeze(-1)], -1)
        both = torch.linalg.solve_triangular(identity - half, both, upper=False)
        return both[..., :-1], both[..., -1]

    def project(
        self,
        signal: Tensor,
        period: float = 1.0,
        method: str = "bilinear",
        *,
        start: Tensor | None = None,
        before: int = 0,
    ) -> Tensor:
        """The coefficients after each sample; the period is free: LegS knows no time scale.

        Bilinear is the only method.
        """
        if method != "bilinear":
            raise ThreefoldError(f"LegS: method {method!r}; with its 1/t it has 'bilinear' only")
        A, B = self.matrices()
        identity = torch.eye(self.size, dtype=torch.float64)
        now = self._begin(signal, start, before)
        found = []
        for count, sample in enumerate(signal.double().unbind(-1), before + 1):
            half = A / (2 * count)
            push = now @ (identity + half).mT + sample.unsqueeze(-1) * B / count
            now = torch.linalg.solve_triangular(
                identity - half, push.unsqueeze(-1), upper=False
            ).squeeze(-1)
            found.append(now)
        return torch.stack(found, -2)


class DecayingLegS(LegS):
    """LegS without the 1/t, as S4 uses it: a fixed filter that sees the past through e^{−s}."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        A, B = super().matrices()
        return A / self.window, B / self.window

    def basis(self, past: Tensor) -> Tensor:
        return _legendre(2 * torch.exp(-past / self.window) - 1, self.size)

    def measure(self, past: Tensor) -> Tensor:
        return torch.exp(-past / self.window) / self.window

    def project(
        self,
        signal: Tensor,
        period: float = 1.0,
        method: str = "bilinear",
        *,
        start: Tensor | None = None,
        before: int = 0,
    ) -> Tensor:
        return Hippo.project(self, signal, period, method, start=start, before=before)


MEASURES: dict[str, type[Hippo]] = {
    "legs": LegS,
    "legt": LegT,
    "lagt": LagT,
    "fourier": Fourier,
    "decaying": DecayingLegS,
}


def hippo(measure: str, size: int, window: float = 1.0) -> Hippo:
    """The projection onto `size` functions by the name of its measure."""
    if measure not in MEASURES:
        raise ThreefoldError(f"unknown measure {measure!r}; {nearest(measure, MEASURES)}")
    return MEASURES[measure](size, window)


@lru_cache(64)
def discretised_hippo(measure: str, size: int, window: float, method: str) -> tuple[Tensor, Tensor]:
    """Ā and B̄ for elements 1 apart, float64 on the CPU: constants, made once."""
    with torch.inference_mode(False), torch.device("cpu"):
        step = torch.ones((), dtype=torch.float64)
        made = discretise(*hippo(measure, size, window).matrices(), step, method)
        return made[0].contiguous(), made[1].contiguous()


def normal_plus_low_rank(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """LegS as V (Diag(Λ) − P Pᴴ) Vᴴ: Λ, P and B in that basis, complex128 [N/2] each.

    A + P Pᵀ with P = √(n+½) is −½ I plus a skew matrix, which is normal: V is unitary.  Of each
    conjugate pair the one with the positive imaginary part is given; N is even.
    """
    if size < 2 or size % 2:
        raise ThreefoldError(f"normal_plus_low_rank: size={size}, expected an even number")
    A, B = LegS(size).matrices()
    P = B / math.sqrt(2)
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(size, dtype=torch.float64)
    # i times a skew matrix is Hermitian; its eigenvalues come as ±ω.
    values, vectors = torch.linalg.eigh(1j * skew)
    kept = vectors[:, : size // 2].flip(1)
    frequency = -values[: size // 2].flip(0)
    poles = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return poles, kept.mH @ P.to(kept.dtype), kept.mH @ B.to(kept.dtype)


def _legendre(x: Tensor, size: int) -> Tensor:
    """√(2n+1) P_n(x) for n < size: orthonormal for the mean over −1 … 1."""
    values = [torch.ones_like(x), x]
    for n in range(1, size - 1):
        values.append(((2 * n + 1) * x * values[n] - n * values[n - 1]) / (n + 1))
    scale = torch.sqrt(2 * torch.arange(size, dtype=x.dtype) + 1)
    return torch.stack(values[:size], -1) * scale
