"""A = Diag(Λ) − P Pᴴ:  K̂(z) = C̃ (I − Ā z)⁻¹ B̄ at the roots of unity,  C̃ = C (I − Ā^L).

S4's filter: bilinear, a step in O(N) by Woodbury's identity, and taps by the truncated generating
function: four Cauchy products Σ_n v_n / ((1−z) − (1+z) Δ/2 Λ_n), without storing their matrix.
A is never diagonalised: its eigenvectors are too ill-conditioned for floating point.  Each number
of Λ, P, B, C stands for itself and its conjugate.
Gu, Goel & Ré 2022, "Efficiently Modeling Long Sequences with Structured State Spaces".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.memory.filter import Filter
from threefold.memory.transition import DenseTransition, MatrixTransition


@dataclass(frozen=True)
class DPLR:
    """Λ, P, B [N] for all channels or [H, N]; C [H, N]; all complex128; Δ [H]."""

    poles: Tensor
    P: Tensor
    B: Tensor
    C: Tensor
    delta: Tensor

    def filter(self, dtype: torch.dtype) -> Filter:
        """The discretised filter."""
        turn = DPLRTransition.of(self)
        read = 2 * self.C.conj()
        row = torch.cat([read.real, read.imag], -1)
        return Filter(
            turn,
            turn.write(self.B, self.delta),
            row,
            dtype,
            impulse=lambda length: self.taps(length, row, turn),
        )

    def taps(self, length: int, row: Tensor, transition: MatrixTransition) -> Tensor:
        """K̄ [H, length], float64, from the generating function at `length` roots of unity."""
        rest, left = row, length
        while left:
            if left & 1:
                rest = transition.before(rest)
            left >>= 1
            transition = transition.squared() if left else transition
        real, imaginary = (row - rest).chunk(2, -1)
        C = torch.complex(real, -imaginary) / 2
        taps: Tensor = torch.fft.irfft(
            self.generating(C, unit_circle_points(length, C.device)), n=length
        )
        return taps

    def generating(self, C: Tensor, points: Tensor) -> Tensor:
        """C (I − Ā z)⁻¹ B̄ = Δ (C·B − α (C·P)(Pᴴ·B) / (1 + α Pᴴ·P)), [H, K]; α = (1+z) Δ/2.

        u·v is Σ u v / d, d = (1−z) − α Λ, over both numbers of each pair:
        v/d + v̄/d̃ = 2 ((1−z) Re v − α Re(v Λ̄)) / ((1−z)² − 2 α (1−z) Re Λ + α² |Λ|²).
        At z = e^{−iφ}, with σ = 2 sin φ/2 and c = cos φ/2, 1 − z = iσ e^{−iφ/2}, α = cΔ e^{−iφ/2}:
        u·v = 2 e^{iφ/2} F, F the sum of (iσ Re v − c Re(vΔΛ̄)) / (c²|ΔΛ|² − σ² − 2iσc Re ΔΛ).
        """
        P, B, poles = (x.expand_as(C) for x in (self.P, self.B, self.poles))
        products = torch.stack([C * B, C * P, P.conj() * B, P.conj() * P], 1)
        delta = self.delta.unsqueeze(-1)
        poles = delta * poles
        weights = (products * poles.conj().unsqueeze(1)).real
        square = poles.real.square() + poles.imag.square()
        CB, CP, PB, PP = ops.cauchy(products.real, weights, square, poles.real, points).unbind(1)
        sine, cosine = points
        twice = 2 * cosine * delta
        turn = torch.complex(cosine, sine / 2)
        values: Tensor = 2 * delta * turn * (CB - twice * CP * PB / (1 + twice * PP))
        return values


def unit_circle_points(length: int, device: torch.device | None = None) -> Tensor:
    """σ = 2 sin φ/2 and c = cos φ/2 at φ = 2πk/length, [2, length // 2 + 1]: half of the circle.

    The taps are real, so the other half are the conjugates.
    """
    at = torch.arange(length // 2 + 1, dtype=torch.float64, device=device)
    half = torch.pi * at / length
    return torch.stack([2 * half.sin(), half.cos()])


@dataclass(frozen=True)
class DPLRTransition(MatrixTransition):
    """s = (I − Δ/2 A)⁻¹ (I + Δ/2 A) s₋ in O(N); blocks use the same map as a matrix."""

    ahead: Tensor  # I + Δ/2 Λ, as real planes [2, H, N]
    behind: Tensor  # D = (I − Δ/2 Λ)⁻¹
    P: Tensor
    half: Tensor  # Δ/2, [H]
    scale: Tensor  # Δ/2 / (1 + Δ/2 Pᴴ D P), [H]

    @classmethod
    def of(cls, system: DPLR) -> DPLRTransition:
        half = system.delta / 2
        turn = half.unsqueeze(-1) * system.poles
        behind = 1 / (1 - turn)
        weight = 2 * (system.P.abs().square() * behind).real.sum(-1)
        P = system.P.expand_as(system.C)
        scale = half / (1 + half * weight)
        return cls(_planes(1 + turn), _planes(behind), _planes(P), half, scale)

    def write(self, B: Tensor, delta: Tensor) -> Tensor:
        """B̄ = (I − Δ/2 A)⁻¹ Δ B, [H, 2·N]."""
        return self._solve(*_planes(delta.unsqueeze(-1) * B))

    def after(self, state: Tensor) -> Tensor:
        a, b = state.chunk(2, -1)
        share = (2 * self.half * self._seen(a, b)).unsqueeze(-1)
        (c, d), (p, q) = self.ahead, self.P
        return self._solve(c * a - d * b - share * p, c * b + d * a - share * q)

    def before(self, row: Tensor) -> Tensor:
        return self.dense.before(row)

    def squared(self) -> MatrixTransition:
        return self.dense.squared()

    def to(self, dtype: torch.dtype) -> DPLRTransition:
        parts = (self.ahead, self.behind, self.P, self.half, self.scale)
        return DPLRTransition(*(part.to(dtype) for part in parts))

    def unroll(self, gains: Tensor, state: Tensor) -> Tensor:
        return self.dense.unroll(gains, state)

    @cached_property
    def dense(self) -> DenseTransition:
        """This map as a matrix: column j is the image of the j-th unit vector."""
        _, channels, pairs = self.P.shape
        unit = torch.eye(2 * pairs, dtype=self.P.dtype, device=self.P.device).unsqueeze(1)
        return DenseTransition(self.after(unit.expand(-1, channels, -1)).permute(1, 2, 0))

    def _solve(self, a: Tensor, b: Tensor) -> Tensor:
        """(I − Δ/2 A)⁻¹ (a + i b) = D (1 − P scale Pᴴ D) (a + i b)."""
        (c, d), (p, q) = self.behind, self.P
        a, b = c * a - d * b, c * b + d * a
        share = (2 * self.scale * self._seen(a, b)).unsqueeze(-1)
        return torch.cat([a - share * (c * p - d * q), b - share * (c * q + d * p)], -1)

    def _seen(self, a: Tensor, b: Tensor) -> Tensor:
        """Re Pᴴ s: half of the sum over each number and its conjugate."""
        p, q = self.P
        seen: Tensor = (p * a + q * b).sum(-1)
        return seen


def _planes(numbers: Tensor) -> Tensor:
    return torch.stack([numbers.real, numbers.imag])
