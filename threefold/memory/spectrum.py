"""ρ(W) = max |λ|: random matrices, and their scaling to a spectral radius.

A reservoir forgets its past only if its recurrent matrix is small enough; the spectral radius is
the usual measure of that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest

DISTRIBUTIONS = ("uniform", "normal", "signs")
# Up to this size all eigenvalues are computed; above it, Arnoldi's method finds the largest.
MAX_DENSE = 1200


def random_matrix(
    rows: int,
    columns: int,
    *,
    density: float = 1.0,
    distribution: str = "uniform",
    generator: torch.Generator | None = None,
) -> Tensor:
    """A random sparse float64 matrix; its numbers are uniform in ±1, standard normal, or signs.

    Every row has the same number of nonzeros: `density` times the columns, rounded, at least one.
    """
    if distribution not in DISTRIBUTIONS:
        raise ThreefoldError(
            f"unknown distribution {distribution!r}; {nearest(distribution, DISTRIBUTIONS)}"
        )
    if not 0 < density <= 1:
        raise ThreefoldError(f"density={density}, expected a fraction above 0 and at most 1")
    size, cpu = (rows, columns), torch.device("cpu")  # also inside `torch.device("meta")`
    if distribution == "normal":
        matrix = torch.randn(size, generator=generator, dtype=torch.float64, device=cpu)
    else:
        matrix = torch.rand(size, generator=generator, dtype=torch.float64, device=cpu) * 2 - 1
        matrix = matrix.sign() if distribution == "signs" else matrix
    order = torch.rand(size, generator=generator, dtype=torch.float64, device=cpu).argsort(1)
    chosen = order[:, : max(1, round(density * columns))]
    return torch.zeros_like(matrix).scatter(1, chosen, matrix.gather(1, chosen))


def scale_to_radius(matrix: Tensor, radius: float) -> Tensor:
    """The matrix multiplied by a number so that its spectral radius is `radius`."""
    if not radius >= 0:
        raise ThreefoldError(f"spectral radius {radius}, expected 0 or more")
    current = spectral_radius(matrix)
    # With rounding, a nilpotent matrix has a radius of about norm · ε^{1/n}, not 0.
    size = matrix.abs().max().item() if matrix.numel() else 0.0
    if current <= 1e-9 * size or size == 0:
        raise ThreefoldError(
            f"a matrix of {len(matrix)} units with {int((matrix != 0).sum())} connections has the "
            f"spectral radius 0 and cannot be scaled to {radius}; raise the density or the units"
        )
    return matrix * (radius / current)


def spectral_radius(matrix: Tensor) -> float:
    """The largest |eigenvalue| of a square matrix."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ThreefoldError(f"spectral radius of {tuple(matrix.shape)}, expected a square matrix")
    if not bool(torch.isfinite(matrix).all()):
        raise ThreefoldError("spectral radius of a matrix that is not finite (NaN or infinity)")
    if not bool((matrix != 0).any()):
        return 0.0
    matrix = matrix.double()
    if len(matrix) <= MAX_DENSE:
        return float(torch.linalg.eigvals(matrix).abs().max())
    return _arnoldi(matrix)


def _arnoldi(matrix: Tensor, tolerance: float = 1e-8) -> float:
    """Arnoldi's method: A Q = Q H + r eᵀ, Q grows until the largest eigenvalue has converged.

    At the latest Q spans the whole space, and then H is similar to A.
    """
    size = len(matrix)
    rows, columns = matrix.nonzero(as_tuple=True)
    numbers = matrix[rows, columns]
    basis = torch.zeros(size + 1, size, dtype=torch.float64)
    upper = torch.zeros(size + 1, size, dtype=torch.float64)
    start = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis[0] = start / start.norm()
    check = 64
    for k in range(size):
        vector = torch.zeros_like(start).index_add(0, rows, numbers * basis[k][columns])
        # Orthogonalise twice: the second pass removes the rounding errors of the first.
        for _ in range(2):
            along = basis[: k + 1] @ vector
            vector = vector - along @ basis[: k + 1]
            upper[: k + 1, k] += along
        rest = vector.norm()
        ended = rest.item() <= 1e-14 * upper[: k + 1, k].norm().item() or k + 1 == size
        if ended or k + 1 == check:
            values, vectors = torch.linalg.eig(upper[: k + 1, : k + 1])
            largest = values.abs().argmax()
            radius = float(values[largest].abs())
            if ended or (rest * vectors[-1, largest].abs()).item() <= tolerance * radius:
                return radius
            check *= 2
        upper[k + 1, k], basis[k + 1] = rest, vector / rest
    raise AssertionError("the last iteration always returns")
