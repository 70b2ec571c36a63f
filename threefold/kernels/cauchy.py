"""F_jk = Σ_n (i σ_k p_jn − c_k q_jn) / D_nk,  D_nk = c_k² m_n − σ_k² − 2 i σ_k c_k r_n

S4's Cauchy products at points of the unit circle, as a torch operation on the native kernel; its
derivative recomputes the quotients. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

# How many products share their poles; the number of points must be a multiple of the second.
PRODUCTS, POINTS_MULTIPLE = 4, 8


def expected(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if p.ndim != 3 or p.shape[1] != PRODUCTS or 0 in p.shape or points.shape[:-1] != (2,):
        return f"p [D, {PRODUCTS}, N], none empty, and points [2, K]"
    channels, _, size = p.shape
    if q.shape != p.shape or square.shape != (channels, size) or real.shape != square.shape:
        return f"q {list(p.shape)}, square and real [{channels}, {size}]"
    if any(t.dtype != torch.float64 or t.device != p.device for t in (p, q, square, real, points)):
        return "all tensors to be torch.float64 on one device"
    return None


def products(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    """F [D, 4, K], complex."""
    count = points.shape[1]
    missing = -count % POINTS_MULTIPLE
    # At the points added as padding, σ = 1 and c = 0, so that D = −1 whatever the poles are.
    fill = torch.tensor([[1.0], [0.0]], dtype=points.dtype, device=points.device)
    points = torch.cat([points, fill.expand(2, missing)], 1)
    sums = operation(p, q, square, real, points)[..., :count]
    return torch.complex(sums[:, :, 0], sums[:, :, 1])


def _forward(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    sums = _forward_shapes(p, q, square, real, points)
    sizes = [len(p), p.shape[2], points.shape[1]]
    library.call("cauchy_forward", [sums], [p, q, square, real, points], sizes)
    return sums


def _forward_shapes(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    return p.new_empty(len(p), PRODUCTS, 2, points.shape[1])


def _backward(
    grad: Tensor, p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = _backward_shapes(grad, p, q, square, real, points)
    sizes = [len(p), p.shape[2], points.shape[1]]
    library.call("cauchy_backward", grads, [grad, p, q, square, real, points], sizes)
    return grads


def _backward_shapes(
    grad: Tensor, p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        p.new_empty(p.shape),
        p.new_empty(q.shape),
        p.new_empty(square.shape),
        p.new_empty(real.shape),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *backward(grad, *ctx.saved_tensors), None


_INPUTS = "Tensor p, Tensor q, Tensor square, Tensor real, Tensor points"

operation = define(f"cauchy({_INPUTS}) -> Tensor", native=_forward, shapes=_forward_shapes)
backward = define(
    f"cauchy_backward(Tensor grad, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("cauchy", save=_save, backward=_differentiate)
differentiate_once("cauchy_backward", use="cauchy")


register_kernel("cauchy", "cpu", products, dtypes=(torch.float64,))
