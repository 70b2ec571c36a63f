"""s ← Ā s,  c ← c Ā,  Ā ← Ā²: how a filter's state changes without input.

`DiagonalTransition` multiplies each number of the state by a complex factor; `DenseTransition` is a
real matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from threefold.kernels import ops


class Transition(ABC):
    """Ā of every channel, on real vectors [..., H, S]."""

    @abstractmethod
    def after(self, state: Tensor) -> Tensor:
        """Ā s."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Transition:
        """The same in another dtype."""


class MatrixTransition(Transition):
    """A transition whose powers are matrices; sequences run in blocks."""

    @abstractmethod
    def before(self, row: Tensor) -> Tensor:
        """c Ā."""

    @abstractmethod
    def squared(self) -> MatrixTransition:
        """The transition of twice as many elements."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> MatrixTransition:
        """The same in another dtype."""

    @abstractmethod
    def unroll(self, gains: Tensor, state: Tensor) -> Tensor:
        """s = Ā s₋ + gain for gains [B, L, H, S]: all states [B, L+1, H, S], `state` first."""


@dataclass(frozen=True)
class DiagonalTransition(Transition):
    """Ā = Diag(w), w [H, 2, S/2]: real parts, imaginary parts."""

    factor: Tensor

    def after(self, state: Tensor) -> Tensor:
        real, imaginary = self.factor.unbind(-2)
        a, b = state.chunk(2, -1)
        return torch.cat([real * a - imaginary * b, real * b + imaginary * a], -1)

    def to(self, dtype: torch.dtype) -> DiagonalTransition:
        return DiagonalTransition(self.factor.to(dtype))

    def taps(self, write: Tensor, read: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """K̄_t = c Āᵗ b, [H, length], for b and c [H, S]."""
        both = _times(_row(read), _numbers(write)).unsqueeze(0)
        return ops.vandermonde(self._pairs, both, length, dtype=dtype)[0].mT

    def respond(self, read: Tensor, state: Tensor, length: int, dtype: torch.dtype) -> Tensor:
        """c Ā^{t+1} s, [B, length, H]: the outputs of a state [B, H, S] without input."""
        w = torch.view_as_complex(self._pairs)
        both = _times(_row(read), _numbers(state.double()), w)
        return ops.vandermonde(self._pairs, both, length, dtype=dtype)

    def collect(self, write: Tensor, x: Tensor, state: Tensor, lengths: Tensor | None) -> Tensor:
        """Σ_t Ā^{L−1−t} b x_t + Āᴸ s, the state after x [B, L, H], at each row's own length L."""
        sums = ops.moments(x, self._pairs, lengths=lengths, backwards=True)
        gained = torch.view_as_complex(sums) * _numbers(write)
        decay = self._power(x.shape[1] if lengths is None else lengths)
        after = gained + decay * _numbers(state.double())
        return torch.cat([after.real, after.imag], -1).to(x.dtype)

    @property
    def _pairs(self) -> Tensor:
        """w as [H, N, 2]."""
        return self.factor.mT.contiguous()

    def _power(self, exponent: int | Tensor) -> Tensor:
        """w to a power, [H, N], or [B, H, N] for one power per row, by squaring."""
        square = torch.view_as_complex(self._pairs)
        power = torch.ones_like(square)
        if isinstance(exponent, Tensor):
            exponent = exponent.view(-1, 1, 1)
        left = int(exponent.max()) if isinstance(exponent, Tensor) else exponent
        for bit in range(left.bit_length()):
            if isinstance(exponent, Tensor):
                power = torch.where((exponent >> bit & 1).bool(), power * square, power)
            elif exponent >> bit & 1:
                power = power * square
            square = square * square
        return power


def _numbers(planes: Tensor) -> Tensor:
    """[..., S] to complex [..., S/2]."""
    return torch.complex(*planes.chunk(2, -1))


def _row(planes: Tensor) -> Tensor:
    """The conjugate of `_numbers`: for a row c, Re(c s) is the sum of products with s's planes."""
    real, imaginary = planes.chunk(2, -1)
    return torch.complex(real, -imaginary)  # `conj` is a view whose gradients vmap does not know


def _times(*numbers: Tensor) -> Tensor:
    """A product of complex numbers, as pairs."""
    product = numbers[0]
    for other in numbers[1:]:
        product = product * other
    return torch.view_as_real(product.resolve_conj())


@dataclass(frozen=True)
class DenseTransition(MatrixTransition):
    """Ā [H, S, S], or [1, S, S] for all channels."""

    matrix: Tensor

    def after(self, state: Tensor) -> Tensor:
        return torch.einsum("hij,...hj->...hi", self._all(state), state)

    def before(self, row: Tensor) -> Tensor:
        return torch.einsum("...hi,hij->...hj", row, self._all(row))

    def squared(self) -> DenseTransition:
        return DenseTransition(self.matrix @ self.matrix)

    def to(self, dtype: torch.dtype) -> DenseTransition:
        return DenseTransition(self.matrix.to(dtype))

    def unroll(self, gains: Tensor, state: Tensor) -> Tensor:
        states = [state]
        for gain in gains.unbind(1):
            states.append(self.after(states[-1]) + gain)
        return torch.stack(states, 1)

    def _all(self, like: Tensor) -> Tensor:
        return self.matrix.expand(like.shape[-2], -1, -1)
