"""h' = A h + B u:  zero-order hold Ā = e^{ΔA}, B̄ = A⁻¹(Ā − I)B;  bilinear Ā = (I−ΔA/2)⁻¹(I+ΔA/2).

From continuous time to elements Δ apart.  Half the sampling rate is twice the Δ: a filter hears the
same signal at another rate when Δ is divided by that rate.
Gu et al. 2022, "Efficiently Modeling Long Sequences with Structured State Spaces".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest

METHODS = ("zero_order_hold", "bilinear")
# Elements nearer than this, or further apart, in units of the filter's time are a mistake.
DELTA_RANGE = (1e-9, 1e3)


def discretise(A: Tensor, B: Tensor, delta: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """Ā [..., N, N] and B̄ [..., N] of A [..., N, N], B [..., N] at steps of delta [...]."""
    check_method(method, "discretise")
    size = A.shape[-1]
    identity = torch.eye(size, dtype=A.dtype, device=A.device)
    step = delta[..., None, None] * A
    push = delta[..., None] * B
    if method == "bilinear":
        both = torch.cat([identity + step / 2, push.unsqueeze(-1)], -1)
        both = torch.linalg.solve(identity - step / 2, both)
    else:
        # e^[[ΔA, ΔB], [0, 0]] = [[Ā, B̄], [0, 1]]: right for an A without an inverse too.
        both = torch.cat([step, push.unsqueeze(-1).expand(*step.shape[:-1], 1)], -1)
        both = torch.linalg.matrix_exp(torch.nn.functional.pad(both, (0, 0, 0, 1)))[..., :size, :]
    return both[..., :size], both[..., size]


def discretise_diagonal(a: Tensor, delta: Tensor, method: str) -> tuple[Tensor, Tensor]:
    """For complex a [..., N] at steps of delta [...]: the factor w, and B̄/B."""
    check_method(method, "discretise_diagonal")
    step = delta.unsqueeze(-1) * a
    if method == "bilinear":
        return (1 + step / 2) / (1 - step / 2), delta.unsqueeze(-1) / (1 - step / 2)
    return torch.exp(step), torch.expm1(step) / a


def check_method(method: str, owner: str) -> None:
    """Refuse an unknown discretisation."""
    if method not in METHODS:
        raise ThreefoldError(f"{owner}: unknown method {method!r}; {nearest(method, METHODS)}")


def check_rate(rate: float, owner: str) -> float:
    """Refuse what is no ratio of sampling rates."""
    if not 0 < rate < float("inf"):
        raise ThreefoldError(f"{owner}: rate={rate}, expected a positive ratio of sampling rates")
    return rate


def check_delta(delta: Tensor, owner: str) -> None:
    """Refuse steps that are no numbers or outside the range."""
    low, high = DELTA_RANGE
    if not bool(((delta >= low) & (delta <= high)).all()):
        raise ThreefoldError(
            f"{owner}: Δ goes from {delta.min().item():g} to {delta.max().item():g}, expected "
            f"{low:g} … {high:g}"
        )


def check_stable(A: Tensor, owner: str) -> None:
    """Refuse an A whose free motion grows: an eigenvalue to the right of the imaginary axis."""
    if not bool(A.isfinite().all()):
        raise ThreefoldError(f"{owner}: A holds numbers that are not finite")
    largest = torch.linalg.eigvals(A.detach().double()).real.max().item()
    # Eigenvalues of a stable but far from normal matrix are only known to about N · ε · ‖A‖ ...
    doubt = A.shape[-1] * torch.finfo(torch.float32).eps * A.detach().abs().max().item()
    if largest > doubt:
        raise ThreefoldError(
            f"{owner}: A is not stable, an eigenvalue has the real part {largest:g}; expected none "
            "above 0"
        )
