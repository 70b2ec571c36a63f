"""A = Diag(Λ) − P Pᴴ:  K̂(z) = C̃ (I − Ā z)⁻¹ B̄ at the roots of unity,  C̃ = C (I − Ā^L).

S4's filter: bilinear, a step in O(N) by Woodbury's identity, and taps by the truncated generating
function: four Cauchy products Σ_n v_n / ((1−z) − (1+z) Δ/2 Λ_n), summed in blocks of roots.
A is never diagonalised: its eigenvectors are useless in floating point.  Each number of Λ, P, B, C
stands for itself and its conjugate.
Gu, Goel & Ré 2022, "Efficiently Modeling Long Sequences with Structured State Spaces".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from threefold.memory.filter import Filter
from threefold.memory.transition import Dense, Transition

# Numbers of one block of roots × channels × states: 16 MB each in complex128.
BLOCK = 2**20


@dataclass(frozen=True)
class LowRank:
    """Λ, P, B [N], or [H, N] for other ones in each channel; C [H, N]; all complex128; Δ [H]."""

    poles: Tensor
    P: Tensor
    B: Tensor
    C: Tensor
    delta: Tensor

    def filter(self, dtype: torch.dtype) -> Filter:
        """The discretised filter."""
        turn = Woodbury.of(self)
        read = 2 * self.C.conj()
        row = torch.cat([read.real, read.imag], -1)
        return Filter(
            turn,
            turn.write(self.B, self.delta),
            row,
            dtype,
            impulse=lambda length: self.taps(length, row, turn),
        )

    def taps(self, length: int, row: Tensor, transition: Transition) -> Tensor:
        """K̄ [H, length], float64, from the generating function at `length` roots of unity."""
        rest, left = row, length
        while left:
            if left & 1:
                rest = transition.before(rest)
            left >>= 1
            transition = transition.squared() if left else transition
        real, imaginary = (row - rest).chunk(2, -1)
        C = torch.complex(real, -imaginary) / 2
        # The taps are real, so half of the roots tell the others.
        count = length // 2 + 1
        each = max(1, BLOCK // C.numel())
        parts = []
        for begin in range(0, count, each):
            at = torch.arange(begin, min(begin + each, count), device=C.device)
            angle = -2 * torch.pi * at.double() / length
            z = torch.complex(angle.cos(), angle.sin())
            parts.append(
                checkpoint(
                    generating, z, self.poles, self.P, self.B, C, self.delta, use_reentrant=False
                )
            )
        taps: Tensor = torch.fft.irfft(torch.cat(parts, -1), n=length)
        return taps


def generating(z: Tensor, poles: Tensor, P: Tensor, B: Tensor, C: Tensor, delta: Tensor) -> Tensor:
    """C (I − Ā z)⁻¹ B̄ = Δ (C·B − α (C·P)(Pᴴ·B) / (1 + α Pᴴ·P)) at each z, [H, Z]; α = (1+z) Δ/2.

    u·v is Σ u v / d, d = (1−z) − α Λ, over both numbers of each pair:
    v/d + v̄/d̃ = 2 ((1−z) Re v − α Re(v Λ̄)) / ((1−z)² − 2 α (1−z) Re Λ + α² |Λ|²).
    """
    poles, P, B = (x.expand_as(C) for x in (poles, P, B))
    products = torch.stack([C * B, C * P, P.conj() * B, P.conj() * P], 1)
    weights = torch.cat([products.real, (products * poles.conj().unsqueeze(1)).real], 1)
    a, b = (1 - z), (1 + z) * delta.unsqueeze(-1) / 2
    a_, b_ = a[None, None], b.unsqueeze(1)
    below = a_ * a_ - 2 * a_ * b_ * poles.real.unsqueeze(-1)
    below = below + b_ * b_ * poles.abs().square().unsqueeze(-1)
    sums = torch.bmm(weights.to(below.dtype), 1 / below)
    CB, CP, PB, PP = (2 * (a[None, None] * sums[:, :4] - b_ * sums[:, 4:])).unbind(1)
    return delta.unsqueeze(-1) * (CB - b * CP * PB / (1 + b * PP))


@dataclass(frozen=True)
class Woodbury(Transition):
    """s = (I − Δ/2 A)⁻¹ (I + Δ/2 A) s₋ in O(N); blocks use the matrix of the same map."""

    ahead: Tensor  # I + Δ/2 Λ, as real planes [2, H, N]
    behind: Tensor  # D = (I − Δ/2 Λ)⁻¹
    P: Tensor
    half: Tensor  # Δ/2, [H]
    scale: Tensor  # Δ/2 / (1 + Δ/2 Pᴴ D P), [H]

    @classmethod
    def of(cls, system: LowRank) -> Woodbury:
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

    def squared(self) -> Transition:
        return self.dense.squared()

    def to(self, dtype: torch.dtype) -> Woodbury:
        parts = (self.ahead, self.behind, self.P, self.half, self.scale)
        return Woodbury(*(part.to(dtype) for part in parts))

    def scan(self, gains: Tensor, state: Tensor) -> Tensor:
        return self.dense.scan(gains, state)

    @cached_property
    def dense(self) -> Dense:
        """The matrix of this map: its column j is where the j-th unit goes."""
        _, channels, pairs = self.P.shape
        unit = torch.eye(2 * pairs, dtype=self.P.dtype, device=self.P.device).unsqueeze(1)
        return Dense(self.after(unit.expand(-1, channels, -1)).permute(1, 2, 0))

    def _solve(self, a: Tensor, b: Tensor) -> Tensor:
        """(I − Δ/2 A)⁻¹ (a + i b) = D (1 − P scale Pᴴ D) (a + i b)."""
        (c, d), (p, q) = self.behind, self.P
        a, b = c * a - d * b, c * b + d * a
        share = (2 * self.scale * self._seen(a, b)).unsqueeze(-1)
        return torch.cat([a - share * (c * p - d * q), b - share * (c * q + d * p)], -1)

    def _seen(self, a: Tensor, b: Tensor) -> Tensor:
        """Re Pᴴ s, half of the sum over both numbers of each pair."""
        p, q = self.P
        seen: Tensor = (p * a + q * b).sum(-1)
        return seen


def _planes(numbers: Tensor) -> Tensor:
    return torch.stack([numbers.real, numbers.imag])
