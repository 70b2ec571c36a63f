"""c' = A c + B f:  coefficients of the past of f, updated online;  f(t − s) ≈ Σ_n c_n g_n(s).

A measure weights each moment of the past, an orthonormal basis g for it spans what is remembered,
and A, B follow from both.
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
from threefold.kernels.parameter_cache import ParameterCache
from threefold.memory.discretisation import check_delta, discretise


@dataclass(frozen=True)
class Hippo(ABC):
    """N coefficients of the past; `window` is how long is remembered, in units of time."""

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
        """The weight of the moment s ≥ 0 before now."""

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

        A signal may come in pieces: `start` [..., N] is the coefficients after the `before` samples
        that came earlier.
        """
        step = torch.tensor(period, dtype=torch.float64)
        check_delta(step / self.window, type(self).__name__)
        transition, write = discretise(*self.matrices(), step, method)
        now = self._begin(signal, start, before)
        coefficients = []
        for sample in signal.double().unbind(-1):
            now = now @ transition.mT + sample.unsqueeze(-1) * write
            coefficients.append(now)
        return torch.stack(coefficients, -2)

    def _begin(self, signal: Tensor, start: Tensor | None, before: int) -> Tensor:
        expected = (*signal.shape[:-1], self.size)
        if signal.dim() < 1 or signal.shape[-1] < 1 or before < 0:
            raise ThreefoldError(
                f"{type(self).__name__}: signal is {tuple(signal.shape)} after {before} samples, "
                "expected [..., length ≥ 1] after 0 or more"
            )
        if start is None:
            return signal.new_zeros(expected, dtype=torch.float64)
        if start.shape != expected:
            raise ThreefoldError(
                f"{type(self).__name__}: start is {tuple(start.shape)}, expected {expected}"
            )
        return start.double()

    def reconstruct(self, coefficients: Tensor, past: Tensor) -> Tensor:
        """f at each moment of `past` [T] before now, [..., T], from coefficients [..., N]."""
        return coefficients @ self.basis(past.double()).mT


class LegT(Hippo):
    """A sliding window with equal weights: Legendre polynomials (as in the LMU)."""

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
    """Weights that decay exponentially into the past: Laguerre polynomials."""

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
    """A sliding window with the basis 1, √2 cos and √2 sin of its harmonics; N is odd."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 2 == 0:
            raise ThreefoldError(
                f"Fourier: size={self.size}, expected an odd number: the mean, then a cosine and a "
                "sine of each period"
            )

    def matrices(self) -> tuple[Tensor, Tensor]:
        # At a jump the series gives the mean of both sides: f(t − window) ≈ 2 Σ c g(0) − f(t).
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
    """All of the past with equal weights: c' = (A c + B f)/t, without a window.

    Without the 1/t (`DecayingLegS`, S4) the same A and B weight the past by e^{−s}.
    """

    def matrices(self) -> tuple[Tensor, Tensor]:
        return _legs_matrices(self.size)

    def basis(self, past: Tensor) -> Tensor:
        """`past` runs from 0 (now) to 1 (the beginning)."""
        return _legendre(1 - 2 * past, self.size)

    def measure(self, past: Tensor) -> Tensor:
        return torch.where(past <= 1, 1.0, 0.0)

    def transition(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Ā [..., N, N] and B̄ [..., N] of element number `count` [...] ≥ 1, bilinear."""
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
        """The coefficients after each sample; `period` is ignored, since LegS has no time scale.

        Bilinear is the only method.
        """
        if method != "bilinear":
            raise ThreefoldError(
                f"LegS: method is {method!r}, expected 'bilinear', the only one for its 1/t"
            )
        A, B = self.matrices()
        identity = torch.eye(self.size, dtype=torch.float64)
        now = self._begin(signal, start, before)
        coefficients = []
        for count, sample in enumerate(signal.double().unbind(-1), before + 1):
            half = A / (2 * count)
            push = now @ (identity + half).mT + sample.unsqueeze(-1) * B / count
            now = torch.linalg.solve_triangular(
                identity - half, push.unsqueeze(-1), upper=False
            ).squeeze(-1)
            coefficients.append(now)
        return torch.stack(coefficients, -2)


class DecayingLegS(Hippo):
    """LegS without the 1/t, as in S4: a fixed filter that weights the past by e^{−s}."""

    def matrices(self) -> tuple[Tensor, Tensor]:
        A, B = _legs_matrices(self.size)
        return A / self.window, B / self.window

    def basis(self, past: Tensor) -> Tensor:
        return _legendre(2 * torch.exp(-past / self.window) - 1, self.size)

    def measure(self, past: Tensor) -> Tensor:
        return torch.exp(-past / self.window) / self.window


MEASURES: dict[str, type[Hippo]] = {
    "legs": LegS,
    "legt": LegT,
    "lagt": LagT,
    "fourier": Fourier,
    "decaying": DecayingLegS,
}


def hippo(measure: str, size: int, window: float = 1.0) -> Hippo:
    """The projection onto `size` basis functions, by the name of its measure."""
    if measure not in MEASURES:
        raise ThreefoldError(f"unknown measure {measure!r}; {nearest(measure, MEASURES)}")
    return MEASURES[measure](size, window)


@lru_cache(64)
def discretised_hippo(measure: str, size: int, window: float, method: str) -> tuple[Tensor, Tensor]:
    """Ā and B̄ for Δ = 1, float64 on the CPU; cached."""
    with torch.inference_mode(False), torch.device("cpu"):
        step = torch.ones((), dtype=torch.float64)
        A, B = discretise(*hippo(measure, size, window).matrices(), step, method)
        return A.contiguous(), B.contiguous()


def sliding_window_system(
    cache: ParameterCache[tuple[Tensor, ...]], order: int, window: float, like: Tensor
) -> tuple[Tensor, ...]:
    """Ā and B̄ of LegT by zero-order hold, in the dtype and on the device of `like`."""

    def make() -> tuple[Tensor, ...]:
        fixed = discretised_hippo("legt", order, window, "zero_order_hold")
        return tuple(part.to(like) for part in fixed)

    return cache.of([], make, order, window, like.dtype, like.device)


def normal_plus_low_rank(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """LegS as V (Diag(Λ) − P Pᴴ) Vᴴ: Λ, P and B in that basis, complex128 [N/2] each.

    A + P Pᵀ with P = √(n+½) is −½ I plus a skew matrix, which is normal: V is unitary.  Of each
    conjugate pair the one with the positive imaginary part is returned; N is even.
    """
    if size < 2 or size % 2:
        raise ThreefoldError(f"normal_plus_low_rank: size={size}, expected an even number")
    A, B = _legs_matrices(size)
    P = B / math.sqrt(2)
    skew = A + torch.outer(P, P) + 0.5 * torch.eye(size, dtype=torch.float64)
    # i times a skew matrix is Hermitian; its eigenvalues come as ±ω.
    values, vectors = torch.linalg.eigh(1j * skew)
    basis = vectors[:, : size // 2].flip(1)
    frequency = -values[: size // 2].flip(0)
    poles = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return poles, basis.mH @ P.to(basis.dtype), basis.mH @ B.to(basis.dtype)


def _legs_matrices(size: int) -> tuple[Tensor, Tensor]:
    n = torch.arange(size, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    return -(torch.outer(root, root).tril(-1) + torch.diag(n + 1)), root


def _legendre(x: Tensor, size: int) -> Tensor:
    """√(2n+1) P_n(x) for n < size: orthonormal for the mean over −1 … 1."""
    values = [torch.ones_like(x), x]
    for n in range(1, size - 1):
        values.append(((2 * n + 1) * x * values[n] - n * values[n - 1]) / (n + 1))
    scale = torch.sqrt(2 * torch.arange(size, dtype=x.dtype) + 1)
    return torch.stack(values[:size], -1) * scale
