"""y_l = Re Σ_n c_n w_n^l,  m_n = Σ_l x_l w_n^l;  ∂c = conj(m),  ∂w = conj(c m′),  m′ = ∂m/∂w

Products with the Vandermonde matrix of each channel and with its transpose, as torch operations on
the native kernels; each is the other's derivative. Complex numbers are pairs. Shapes are checked in
`ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

_Optional = Tensor | None


def expected(
    factor: Tensor, lengths: _Optional, *, coefficient: _Optional = None, x: _Optional = None
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if factor.ndim != 3 or factor.shape[2] != 2 or 0 in factor.shape:
        return "factor [D, N, 2], none empty"
    rows = 0
    if coefficient is not None:
        rows = len(coefficient)
        if coefficient.shape != (rows, *factor.shape):
            return f"coefficient [R, {', '.join(map(str, factor.shape))}]"
    if x is not None:
        rows = len(x)
        if x.ndim != 3 or x.shape[2] != len(factor) or x.shape[1] == 0:
            return f"x [R, L, {len(factor)}], not empty"
    for tensor in (factor, coefficient):
        if tensor is not None and (tensor.dtype, tensor.device) != (torch.float64, factor.device):
            return "factor and coefficient of torch.float64 on one device"
    if lengths is not None and (lengths.shape, lengths.dtype) != ((rows,), torch.int64):
        return f"lengths [{rows}] of torch.int64"
    return None


def _workspace(factor: Tensor, dtype: torch.dtype, moments: bool) -> list[Tensor]:
    sizes = [factor.shape[1], moments]
    reals, doubles = library.ask("vandermonde_workspace", dtype, sizes, answers=2)
    return [factor.new_empty(reals, dtype=dtype), factor.new_empty(doubles)]


def _product(
    factor: Tensor,
    coefficient: Tensor,
    lengths: _Optional,
    length: int,
    backwards: bool,
    dtype: torch.dtype,
) -> Tensor:
    y = _product_shapes(factor, coefficient, lengths, length, backwards, dtype)
    channels, size, _ = factor.shape
    library.call(
        "vandermonde_product",
        [y, *_workspace(factor, dtype, False)],
        [factor, coefficient, lengths],
        [len(y), length, channels, size, backwards],
    )
    return y


def _product_shapes(
    factor: Tensor,
    coefficient: Tensor,
    lengths: _Optional,
    length: int,
    backwards: bool,
    dtype: torch.dtype,
) -> Tensor:
    return factor.new_empty(len(coefficient), length, len(factor), dtype=dtype)


def _sums(
    x: Tensor, factor: Tensor, lengths: _Optional, backwards: bool, slopes: bool
) -> list[Tensor]:
    found = [factor.new_empty(len(x), *factor.shape) for _ in range(1 + slopes)]
    channels, size, _ = factor.shape
    library.call(
        "vandermonde_moments",
        [*found, *[None] * (not slopes), *_workspace(factor, x.dtype, True)],
        [x, factor, lengths],
        [*x.shape[:2], channels, size, backwards],
        dtype=x.dtype,
    )
    return found


def _moments(x: Tensor, factor: Tensor, lengths: _Optional, backwards: bool) -> Tensor:
    return _sums(x, factor, lengths, backwards, False)[0]


def _moments_shapes(x: Tensor, factor: Tensor, *rest: Any) -> Tensor:
    return factor.new_empty(len(x), *factor.shape)


def _slopes(
    x: Tensor, factor: Tensor, lengths: _Optional, backwards: bool
) -> tuple[Tensor, Tensor]:
    moments, slopes = _sums(x, factor, lengths, backwards, True)
    return moments, slopes


def _slopes_shapes(x: Tensor, factor: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _moments_shapes(x, factor), _moments_shapes(x, factor)


def conjugate(pairs: Tensor) -> Tensor:
    """The conjugates of complex numbers [..., 2]."""
    return torch.stack([pairs[..., 0], -pairs[..., 1]], -1)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The products of complex numbers [..., 2]."""
    (p, q), (r, s) = a.unbind(-1), b.unbind(-1)
    return torch.stack([p * r - q * s, p * s + q * r], -1)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    factor, coefficient, lengths, _, ctx.backwards, _ = inputs
    ctx.save_for_backward(factor, coefficient, lengths)


def _differentiate_product(ctx: Any, grad: Tensor) -> tuple[_Optional, ...]:
    factor, coefficient, lengths = ctx.saved_tensors
    moments, slopes = slopes_operation(grad, factor, lengths, ctx.backwards)
    grad_factor = conjugate(multiply(coefficient, slopes).sum(0))
    return grad_factor, conjugate(moments), None, None, None, None


def _save_moments(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, factor, lengths, ctx.backwards = inputs
    ctx.save_for_backward(x, factor, lengths)


def _differentiate_moments(ctx: Any, grad: Tensor) -> tuple[_Optional, ...]:
    x, factor, lengths = ctx.saved_tensors
    grad_x = grad_factor = None
    if ctx.needs_input_grad[0]:
        length = x.shape[1]
        grad_x = operation(factor, conjugate(grad), lengths, length, ctx.backwards, x.dtype)
    if ctx.needs_input_grad[1]:
        _, slopes = slopes_operation(x, factor, lengths, ctx.backwards)
        grad_factor = multiply(grad, conjugate(slopes)).sum(0)
    return grad_x, grad_factor, None, None


operation = define(
    "vandermonde(Tensor factor, Tensor coefficient, Tensor? lengths, int length, bool backwards,"
    " ScalarType dtype) -> Tensor",
    native=_product,
    shapes=_product_shapes,
)
moments_operation = define(
    "moments(Tensor x, Tensor factor, Tensor? lengths, bool backwards) -> Tensor",
    native=_moments,
    shapes=_moments_shapes,
)
slopes_operation = define(
    "moments_and_slopes(Tensor x, Tensor factor, Tensor? lengths, bool backwards)"
    " -> (Tensor, Tensor)",
    native=_slopes,
    shapes=_slopes_shapes,
)
differentiate("vandermonde", save=_save_product, backward=_differentiate_product)
differentiate("moments", save=_save_moments, backward=_differentiate_moments)
differentiate_once("moments_and_slopes", use="vandermonde")


register_kernel("vandermonde", "cpu", operation)
register_kernel("moments", "cpu", moments_operation)
