"""h' = A h + B u:  zero-order hold Ā = e^{ΔA}, B̄ = A⁻¹(Ā − I)B;  bilinear Ā = (I−ΔA/2)⁻¹(I+ΔA/2).

From continuous time to elements Δ apart.  Half the sampling rate is twice the Δ: divide Δ by the
ratio of the sampling rates to apply the same filter at another rate.
Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest

METHODS = ("zero_order_hold", "bilinear")
# Δ outside this range, in units of the filter's time, is taken for a mistake.
DELTA_RANGE = (1e-9, 1e3)


def discretise(A: Tensor, B: Tensor, delta: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """Ā [..., N, N] and B̄ [..., N] of A [..., N, N] and B [..., N], for Δ = delta [...]."""
    check_method(method, "discretise")
    size = A.shape[-1]
    identity = torch.eye(size, dtype=A.dtype, device=A.device)
    step = delta[..., None, None] * A
    push = delta[..., None] * B
    if method == "bilinear":
        both = torch.cat([identity + step / 2, push.unsqueeze(-1)], -1)
        both = torch.linalg.solve(identity - step / 2, both)
    else:
        # e^[[ΔA, ΔB], [0, 0]] = [[Ā, B̄], [0, 1]] holds for a singular A too.
        both = torch.cat([step, push.unsqueeze(-1).expand(*step.shape[:-1], 1)], -1)
        both = torch.linalg.matrix_exp(torch.nn.functional.pad(both, (0, 0, 0, 1)))[..., :size, :]
    return both[..., :size], both[..., size]


def discretise_diagonal(a: Tensor, delta: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """The factor w = Ā and B̄/B of complex a [..., N], for Δ = delta [...]."""
    check_method(method, "discretise_diagonal")
    step = delta.unsqueeze(-1) * a
    if method == "bilinear":
        return (1 + step / 2) / (1 - step / 2), delta.unsqueeze(-1) / (1 - step / 2)
    return torch.exp(step), torch.expm1(step) / a


def check_method(method: str, owner: str) -> None:
    """Raise if the discretisation method is unknown."""
    if method not in METHODS:
        raise ThreefoldError(f"{owner}: unknown method {method!r}; {nearest(method, METHODS)}")


def check_rate(rate: float, owner: str) -> float:
    """Raise if the ratio of sampling rates is not positive and finite."""
    if not 0 < rate < float("inf"):
        raise ThreefoldError(f"{owner}: rate={rate}, expected a positive ratio of sampling rates")
    return rate


def check_delta(delta: Tensor, owner: str) -> None:
    """Raise if Δ is NaN or outside `DELTA_RANGE`."""
    low, high = DELTA_RANGE
    if not bool(((delta >= low) & (delta <= high)).all()):
        raise ThreefoldError(
            f"{owner}: Δ goes from {delta.min().item():g} to {delta.max().item():g}, expected "
            f"{low:g} … {high:g}"
        )


def check_stable(A: Tensor, owner: str) -> None:
    """Raise if A has an eigenvalue with a positive real part: its state would grow."""
    if not bool(A.isfinite().all()):
        raise ThreefoldError(f"{owner}: A is not finite (NaN or infinity)")
    largest = torch.linalg.eigvals(A.detach().double()).real.max().item()
    # The eigenvalues of a matrix far from normal are only known to about N · ε · ‖A‖.
    uncertainty = A.shape[-1] * torch.finfo(torch.float32).eps * A.detach().abs().max().item()
    if largest > uncertainty:
        raise ThreefoldError(
            f"{owner}: A is not stable: an eigenvalue has the real part {largest:g}, expected none "
            "above 0"
        )
