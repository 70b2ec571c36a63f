"""W = (XᵀX + βI)⁻¹ XᵀY of centred X and Y:  ridge regression from sums over the samples.

One pass gives the sums of every fold, whose size does not grow with the samples; the held-out error
of any β follows from them, so that β is chosen without a second pass.  Recursive least squares
keeps P = (XᵀX + βI)⁻¹ itself.
Hoerl & Kennard 1970, "Ridge regression"; Plackett 1950, "Some theorems in least squares".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError

# Columns of XᵀX per product: only blocks on and above the diagonal are computed.
BLOCK_COLUMNS = 256
# Samples per update of P in the recursion; the result is that of one sample at a time.
RECURSION_BATCH = 64


class RidgeStatistics(ABC):
    """Statistics of samples x [N, F], y [N, O] that suffice for a ridge, of fixed size."""

    count: int
    features: int

    @abstractmethod
    def add(self, x: Tensor, y: Tensor) -> None:
        """Add samples."""

    @abstractmethod
    def __add__(self, other: Any) -> Self:
        """The statistics of the samples of both."""

    @abstractmethod
    def solve(self, regularisation: float) -> tuple[Tensor, Tensor]:
        """Weights [F, O] and offset [O]; the offset is not penalised."""

    @abstractmethod
    def error(self, weight: Tensor, offset: Tensor) -> tuple[float, float]:
        """Σ (y − Wᵀx − b)² over these samples, and a bound of its rounding error."""

    @abstractmethod
    def gram(self) -> tuple[Tensor, Tensor]:
        """Σ zzᵀ [F+1, F+1] and Σ zyᵀ [F+1, O] of z = [x; 1]."""


class NormalEquations(RidgeStatistics):
    """Σ xxᵀ and Σ xyᵀ, after a fixed shift of x and y: the fast way.

    Squaring halves the precision: a regularisation below about 1e-15 of the Σ x² of the largest
    feature is lost.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        # A shift near the mean keeps the precision that centring would lose.
        self.shift = x, y
        self.count, self.features = 0, len(x)
        self.upper = x.new_zeros(len(x), len(x))  # blocks on and above the diagonal of Σ xxᵀ
        self.products = x.new_zeros(len(x), len(y))
        self.x, self.y = torch.zeros_like(x), torch.zeros_like(y)
        self.target_squares = torch.zeros_like(y)  # Σ y²

    def add(self, x: Tensor, y: Tensor) -> None:
        x, y = x - self.shift[0], y - self.shift[1]
        for first in range(0, x.shape[1], BLOCK_COLUMNS):
            rows = x[:, first : first + BLOCK_COLUMNS]
            self.upper[first : first + BLOCK_COLUMNS, first:].addmm_(rows.T, x[:, first:])
        self.products.addmm_(x.T, y)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.target_squares += y.square().sum(0)
        self.count += len(x)

    def __add__(self, other: Any) -> Self:
        both = type(self)(*self.shift)
        for name in ("count", "upper", "products", "x", "y", "target_squares"):
            setattr(both, name, getattr(self, name) + getattr(other, name))
        return both

    def _moments_about(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Σ (·−x)(·−x)ᵀ, both triangles; Σ (·−x)(·−y)ᵀ; Σ (·−y)²."""
        squares = self.upper.triu() + self.upper.triu(1).T
        squares += self.count * torch.outer(x, x) - torch.outer(self.x, x) - torch.outer(x, self.x)
        products = self.products + self.count * torch.outer(x, y)
        products -= torch.outer(self.x, y) + torch.outer(x, self.y)
        return squares, products, self.target_squares - 2 * self.y * y + self.count * y * y

    def solve(self, regularisation: float) -> tuple[Tensor, Tensor]:
        x, y = self.x / self.count, self.y / self.count
        squares, products, _ = self._moments_about(x, y)
        squares.diagonal().add_(regularisation)
        factor, failed = torch.linalg.cholesky_ex(squares)
        if int(failed):
            raise ThreefoldError(
                f"fit: the features are linearly dependent at regularisation={regularisation:g}; "
                "raise it, or set precise=True, which has twice the precision"
            )
        weight = torch.cholesky_solve(products, factor)
        return weight, y + self.shift[1] - (x + self.shift[0]) @ weight

    def error(self, weight: Tensor, offset: Tensor) -> tuple[float, float]:
        mean = offset + self.shift[0] @ weight - self.shift[1]
        squares, products, energy = self._moments_about(torch.zeros_like(self.x), mean)
        parts = (energy.sum(), -2 * (weight * products).sum(), (weight * (squares @ weight)).sum())
        sizes = (weight.abs() * (squares.abs() @ weight.abs())).sum() + energy.abs().sum()
        return float(sum(parts)), torch.finfo(weight.dtype).eps * float(sizes)

    def gram(self) -> tuple[Tensor, Tensor]:
        inner, products, _ = self._moments_about(-self.shift[0], -self.shift[1])
        x, y = self.x + self.count * self.shift[0], self.y + self.count * self.shift[1]
        last = torch.cat([x, x.new_full((1,), self.count)])
        upper = torch.cat([inner, x.unsqueeze(1)], 1)
        return torch.cat([upper, last.unsqueeze(0)]), torch.cat([products, y.unsqueeze(0)])


class QRFactor(RidgeStatistics):
    """The factor R of [1 X Y] = QR: the precise way, at four times the cost.

    Without its first row, R is the factor of the centred samples.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.count, self.features = 0, len(x)
        self.factor = x.new_zeros(0, 1 + len(x) + len(y))

    def add(self, x: Tensor, y: Tensor) -> None:
        self.count += len(x)
        self._append(torch.cat([x.new_ones(len(x), 1), x, y], 1))

    def _append(self, rows: Tensor) -> None:
        self.factor = torch.linalg.qr(torch.cat([self.factor, rows]), mode="r").R

    def __add__(self, other: Any) -> Self:
        both = copy(self)
        both.count = self.count + other.count
        both._append(other.factor)
        return both

    def solve(self, regularisation: float) -> tuple[Tensor, Tensor]:
        size = self.features
        rows = self.factor[1:, 1:]
        ridge = rows.new_zeros(size, rows.shape[1])
        ridge.diagonal().fill_(regularisation**0.5)
        solved = torch.linalg.qr(torch.cat([rows, ridge]), mode="r").R[:size]
        diagonal = solved.diagonal().abs()
        if not bool(diagonal.min() > 1e-15 * diagonal.max()):
            raise ThreefoldError(
                f"fit: the features are linearly dependent at regularisation={regularisation:g}; "
                "raise it"
            )
        weight = torch.linalg.solve_triangular(solved[:, :size], solved[:, size:], upper=True)
        first = self.factor[0] / self.factor[0, 0]
        return weight, first[size + 1 :] - first[1 : size + 1] @ weight

    def error(self, weight: Tensor, offset: Tensor) -> tuple[float, float]:
        size = self.features
        factor = self.factor
        rest = factor[:, size + 1 :] - factor[:, 1 : size + 1] @ weight - factor[:, :1] * offset
        return float(rest.square().sum()), 0.0

    def gram(self) -> tuple[Tensor, Tensor]:
        parts = torch.cat([self.factor[:, 1 : self.features + 1], self.factor[:, :1]], 1)
        return parts.T @ parts, parts.T @ self.factor[:, self.features + 1 :]


class FoldStatistics:
    """The statistics of several folds, with one common shift: the mean of the first samples."""

    def __init__(self, count: int, precise: bool = False) -> None:
        self.count = count
        self.kind = QRFactor if precise else NormalEquations
        self.folds: list[RidgeStatistics] = []

    def add(self, x: Tensor, y: Tensor, fold: int) -> None:
        """Add samples to one fold; an empty x is allowed."""
        if len(x) == 0:
            return
        if not self.folds:
            self.folds = [self.kind(x.mean(0), y.mean(0)) for _ in range(self.count)]
        self.folds[fold].add(x, y)


class RidgeFit(NamedTuple):
    """The solution of a ridge regression."""

    weight: Tensor  # [F, O]
    offset: Tensor  # [O]
    regularisation: float
    errors: dict[float, float]  # mean squared error on held-out folds, by regularisation
    statistics: RidgeStatistics  # of all samples


def fit_ridge(folds: FoldStatistics, grid: Sequence[float]) -> RidgeFit:
    """Solve the ridge of all samples, with the β of least error on held-out folds.

    It is the largest β whose error equals the least one within rounding.
    """
    _check(folds, grid)
    total = reduce(add, folds.folds)
    if len(grid) == 1:
        return RidgeFit(*total.solve(grid[0]), grid[0], {}, total)
    results: dict[float, tuple[float, float]] = {}
    for beta in sorted(grid):
        try:
            results[beta] = _held_out_error(folds.folds, beta)
        except ThreefoldError:  # too small to be solved
            continue
    if not results:
        raise ThreefoldError(
            f"fit: the features are linearly dependent at every regularisation of {list(grid)}; "
            "add a larger one"
        )
    least = min(error + rounding for error, rounding in results.values())
    chosen = max(beta for beta, (error, _) in results.items() if error <= least)
    errors = {beta: max(error, 0.0) / total.count for beta, (error, _) in results.items()}
    return RidgeFit(*total.solve(chosen), chosen, errors, total)


def _held_out_error(folds: Sequence[RidgeStatistics], beta: float) -> tuple[float, float]:
    """The sum over folds of the error of a fit on the other folds, and its rounding error."""
    error = rounding = 0.0
    for fold in folds:
        others = reduce(add, (other for other in folds if other is not fold))
        each = fold.error(*others.solve(beta))
        error, rounding = error + each[0], rounding + each[1]
    return error, rounding


def _check(folds: FoldStatistics, grid: Sequence[float]) -> None:
    counts = [fold.count for fold in folds.folds]
    if not counts:
        raise ThreefoldError("fit: no element is left after the wash-out; shorten it")
    if len(grid) > 1 and min(counts) == 0:
        raise ThreefoldError(
            f"fit: {sum(counts)} samples cannot be split into {len(counts)} folds to choose the "
            "regularisation; give more samples, fewer folds or one regularisation"
        )
    least = sum(counts) - (max(counts) if len(grid) > 1 else 0)
    features = folds.folds[0].features
    if min(grid) == 0 and least <= features:
        raise ThreefoldError(
            f"fit: {least} samples for {features} features have no unique solution without "
            "regularisation; give more samples or a regularisation above 0"
        )


class RecursiveLeastSquares:
    """Recursive least squares of y = Wᵀ[x; 1]; each new sample scales the weight of old ones by λ.

    After n samples W minimises Σ λ^{n−i} |y_i − Wᵀ[x_i; 1]|² + λⁿ β |W|²: with λ = 1 a ridge in
    which the offset is penalised too.
    """

    def __init__(self, weights: Tensor, covariance: Tensor) -> None:
        self.weights = weights  # [F+1, O], the offset last
        self.covariance = covariance  # P [F+1, F+1]

    @classmethod
    def empty(cls, features: int, outputs: int, regularisation: float) -> RecursiveLeastSquares:
        if not regularisation > 0:
            raise ThreefoldError(
                f"partial_fit: regularisation={regularisation}, expected a number above 0: the "
                "recursion starts from its inverse"
            )
        identity = torch.eye(features + 1, dtype=torch.float64)
        return cls(identity.new_zeros(features + 1, outputs), identity / regularisation)

    @classmethod
    def from_statistics(
        cls, statistics: RidgeStatistics, regularisation: float
    ) -> RecursiveLeastSquares:
        """The recursion as it would be after these samples."""
        precision, products = statistics.gram()
        precision.diagonal().add_(regularisation)
        factor, failed = torch.linalg.cholesky_ex(precision)
        if int(failed):
            raise ThreefoldError(
                f"partial_fit: the features of the fit are linearly dependent at "
                f"regularisation={regularisation:g}; fit with a larger one"
            )
        return cls(torch.cholesky_solve(products, factor), torch.cholesky_inverse(factor))

    def add(self, x: Tensor, y: Tensor, forgetting: float) -> None:
        """Add samples in order; batches give the same result as one at a time."""
        for first in range(0, len(x), RECURSION_BATCH):
            last = first + RECURSION_BATCH
            rows, targets = x[first:last], y[first:last]
            count = len(rows)
            rows = torch.cat([rows, rows.new_ones(count, 1)], 1)
            before = self.covariance / forgetting**count
            ages = torch.arange(count - 1, -1, -1, dtype=rows.dtype)
            projected = before @ rows.T
            inner = rows @ projected
            inner.diagonal().add_(forgetting**-ages)
            factor = torch.linalg.cholesky(inner)
            gain = torch.cholesky_solve(projected.T, factor).T
            self.weights = self.weights + gain @ (targets - rows @ self.weights)
            after = before - gain @ projected.T
            self.covariance = (after + after.T) / 2
