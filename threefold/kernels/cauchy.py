"""F_jk = Σ_n (i σ_k p_jn − c_k q_jn) / D_nk,  D_nk = c_k² m_n − σ_k² − 2 i σ_k c_k r_n

S4's Cauchy products at points of the unit circle, as a torch operation on the native kernel; its
derivative recomputes the quotients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels.declarations import CAUCHY, CAUCHY_BACKWARD
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.registration import NativeOperation, derive

# The number of points must be a multiple of this.
POINTS_MULTIPLE = 8


def expected(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if p.dtype != torch.float64:
        return "tensors of torch.float64"
    return CAUCHY.expected(p, q, square, real, points)


_forward, _backward = NativeOperation(CAUCHY), NativeOperation(CAUCHY_BACKWARD)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="cauchy")


def products(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    """F [D, 4, K], complex."""
    count = points.shape[1]
    missing = -count % POINTS_MULTIPLE
    # At the points added as padding, σ = 1 and c = 0, so that D = −1 whatever the poles are.
    fill = torch.tensor([[1.0], [0.0]], dtype=points.dtype, device=points.device)
    points = torch.cat([points, fill.expand(2, missing)], 1)
    sums = operation(p, q, square, real, points)[..., :count]
    return torch.complex(sums[:, :, 0], sums[:, :, 1])


register_kernel("cauchy", "cpu", products, dtypes=(torch.float64,))
