"""e₋ᵢ = eᵢ / (1 − Hᵢᵢ):  ridge regression whose strength is chosen by its leave-one-out errors.

H maps the targets to the fitted values, so that the error of a fit without example i follows from
the fit with all; one eigendecomposition serves every strength.
Allen 1974, "The relationship between variable selection and data augmentation and a method for
prediction"; Rifkin & Lippert 2007, "Notes on regularized least squares".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from threefold.errors import ThreefoldError

STRENGTHS = tuple(10.0 ** (-3 + 6 * i / 9) for i in range(10))  # 1e-3 … 1e3
TEMPERATURES = tuple(0.02 * math.pow(250, i / 59) for i in range(60))  # 0.02 … 5


class LeaveOneOutFit(NamedTuple):
    """The solution, and the mean squared leave-one-out error of every strength."""

    weight: Tensor  # [F, O]
    offset: Tensor  # [O]
    strength: float
    errors: dict[float, float]
    left_out: Tensor  # [N, O]: the answer for each example of a fit without it

    def __call__(self, x: Tensor) -> Tensor:
        """Answers [N, O] for features [N, F]."""
        return x.to(self.weight.dtype) @ self.weight + self.offset


def fit_leave_one_out(
    x: Tensor, y: Tensor, strengths: Sequence[float] = STRENGTHS, weights: Tensor | None = None
) -> LeaveOneOutFit:
    """Ridge of features x [N, F] and targets y [N, O].

    weights [N], above 0, count examples several times: 2 is the same as two copies of an example,
    of which one is left out at a time.
    """
    if x.dim() != 2 or y.dim() != 2 or len(x) != len(y) or len(x) < 2:
        raise ThreefoldError(
            f"fit: x is {tuple(x.shape)} and y is {tuple(y.shape)}, expected [examples, features] "
            "and [examples, outputs] with at least two examples"
        )
    if not strengths or min(strengths) <= 0:
        raise ThreefoldError(f"fit: strengths are {list(strengths)}, expected numbers above 0")
    counts = torch.ones(len(x), dtype=x.dtype) if weights is None else weights.to(x.dtype)
    share = counts / counts.sum()
    x_mean, y_mean = share @ x, share @ y
    root = counts.sqrt().unsqueeze(1)
    centred, targets = (x - x_mean).mul_(root), (y - y_mean).mul_(root)
    spectrum = _Spectrum(centred, targets, counts)
    errors = {strength: spectrum.error(strength) for strength in sorted(strengths)}
    chosen = min(errors, key=errors.__getitem__)
    weight = spectrum.solve(chosen)
    left_out = y - spectrum.residuals(chosen)
    return LeaveOneOutFit(weight, y_mean - x_mean @ weight, chosen, errors, left_out)


class _Spectrum:
    """The eigenvectors of XXᵀ or XᵀX, whichever is smaller."""

    def __init__(self, x: Tensor, y: Tensor, counts: Tensor) -> None:
        self.x, self.y, self.counts = x, y, counts
        self.by_rows = len(x) <= x.shape[1]
        squares = x @ x.T if self.by_rows else x.T @ x
        values: Tensor
        vectors: Tensor
        values, vectors = torch.linalg.eigh(squares)
        self.values = values.clamp_min(0)
        self.vectors = vectors  # of the rows, or of the features
        self.rows = vectors if self.by_rows else x @ vectors
        self.projected = self.rows.T @ y

    def _factors(self, strength: float) -> Tensor:
        """Hy = R diag(factors) Rᵀ y, R the rows."""
        values = self.values
        return (values if self.by_rows else torch.ones_like(values)) / (values + strength)

    def error(self, strength: float) -> float:
        """The mean squared error on examples that are left out, one at a time."""
        squares = self.residuals(strength).square().mean(1)
        return float(self.counts @ squares / self.counts.sum())

    def residuals(self, strength: float) -> Tensor:
        """Target minus answer [N, O] of examples that are left out, one at a time."""
        factors = self._factors(strength)
        residuals = self.y - self.rows @ (factors.unsqueeze(1) * self.projected)
        # Of one copy; the mean is fitted, too.
        leverage = (self.rows.square() @ factors) / self.counts + 1 / self.counts.sum()
        rest = (1 - self.counts.clamp(max=1) * leverage).clamp_min(1e-12)
        return residuals / (self.counts.sqrt() * rest).unsqueeze(1)

    def solve(self, strength: float) -> Tensor:
        """The weights [F, O]."""
        scaled = self.projected / (self.values + strength).unsqueeze(1)
        return self.x.T @ (self.vectors @ scaled) if self.by_rows else self.vectors @ scaled


def choose_temperature(scores: Tensor, classes: Tensor, weights: Tensor) -> float:
    """The temperature at which a softmax of left-out scores [N, classes] is likeliest right."""
    losses = [
        float(weights.to(scores) @ cross_entropy(scores / t, classes, reduction="none"))
        for t in TEMPERATURES
    ]
    return TEMPERATURES[losses.index(min(losses))]
