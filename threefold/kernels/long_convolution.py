"""∂x_s = Σ_t ∂y_t kernel_{t−s} + skip ∂y_s,  ∂kernel_m = Σ_t ∂y_t x_{t−m},  ∂skip = Σ_t ∂y_t x_t

The long convolution as a torch operation on the native kernel. Shapes are checked in `ops`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.registration import define, differentiate, differentiate_once
from threefold.kernels.shapes import expected_kind

# Bytes of two vectors in the widest variant: a place of native/fourier.h has no more.
PLACE_BYTES = 128
# No block is shorter: its borders would cost more than its transform.
SMALLEST = 64

_Optional = Tensor | None


def expected(x: Tensor, kernel: Tensor, skip: _Optional, first: int) -> str | None:
    """What is wrong, said as what was expected; None if nothing is."""
    if x.ndim != 3 or kernel.ndim != 2 or 0 in x.shape[1:] or kernel.shape[1] == 0:
        return "x [B, L, D] and kernel [D, K], none empty"
    channels = x.shape[2]
    if kernel.shape[0] != channels or not (skip is None or skip.shape == (channels,)):
        return f"kernel [{channels}, K] and skip [{channels}], the last optional"
    if not 0 <= first < x.shape[1]:
        return f"a first output among the {x.shape[1]} elements, not {first}"
    return expected_kind(x, (kernel, skip), None)


@cache
def transform_size(outputs: int, taps: int, *, whole: bool) -> int:
    """Places of a transform: one for all outputs, or as many as make the least work."""
    largest = power_of_two(max(outputs + taps - 1, 2))
    if whole:
        return largest
    sizes = [largest]
    while sizes[-1] >= max(2 * power_of_two(taps), 2 * SMALLEST):
        sizes.append(sizes[-1] // 2)

    def work(size: int) -> float:
        blocks = -(-outputs // (size - taps + 1))
        return blocks * size * (math.log2(size) + 4)

    return min((size for size in sizes if size >= taps), key=work)


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


@cache
def twiddle(size: int, dtype: torch.dtype) -> Tensor:
    """w^j, w^2j, w^3j with w = e^{−2πi/n} for n = 4, 8, …, size and j < n/4, as pairs."""
    stages = [torch.zeros(0, dtype=torch.float64)]
    n = 4
    while n <= size:
        turns = torch.arange(n // 4, dtype=torch.float64).unsqueeze(1) * torch.arange(1, 4) / n
        angles = -2 * math.pi * turns
        stages.append(torch.stack([angles.cos(), angles.sin()], -1).flatten())
        n *= 2
    return torch.cat(stages).to(dtype)


def place(dtype: torch.dtype) -> int:
    """Numbers of a place in the widest variant."""
    return PLACE_BYTES // dtype.itemsize


def _workspace(x: Tensor, buffers: int, size: int) -> Tensor:
    return x.new_empty(torch.get_num_threads(), buffers, size, place(x.dtype))


def _forward(x: Tensor, kernel: Tensor, skip: _Optional, size: int, first: int) -> Tensor:
    y = _forward_shapes(x, kernel, skip, size, first)
    library.call(
        "long_convolution_forward",
        [y, _workspace(x, 2, size)],
        [x, kernel, skip, twiddle(size, x.dtype)],
        [*x.shape, kernel.shape[1], size, first],
    )
    return y


def _forward_shapes(x: Tensor, kernel: Tensor, skip: _Optional, size: int, first: int) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] - first, x.shape[2])


def _backward(
    grad_y: Tensor, x: Tensor, kernel: Tensor, skip: _Optional, size: int, first: int
) -> tuple[Tensor, Tensor]:
    grads = _backward_shapes(grad_y, x, kernel, skip, size, first)
    library.call(
        "long_convolution_backward",
        [*grads, _workspace(x, 4, size)],
        [grad_y, x, kernel, skip, twiddle(size, x.dtype)],
        [*x.shape, kernel.shape[1], size, first],
    )
    return grads


def _backward_shapes(
    grad_y: Tensor, x: Tensor, kernel: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), kernel.new_empty(kernel.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.size, ctx.first = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[_Optional, ...]:
    x, kernel, skip = ctx.saved_tensors
    grad_x, grad_kernel = backward(grad_y, x, kernel, skip, ctx.size, ctx.first)
    grad_skip = None if skip is None else (grad_y * x[:, ctx.first :]).sum((0, 1))
    return grad_x, grad_kernel, grad_skip, None, None


_INPUTS = "Tensor x, Tensor kernel, Tensor? skip, int size, int first"

operation = define(
    f"long_convolution({_INPUTS}) -> Tensor", native=_forward, shapes=_forward_shapes
)
backward = define(
    f"long_convolution_backward(Tensor grad_y, {_INPUTS}) -> (Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("long_convolution", save=_save, backward=_differentiate)
differentiate_once("long_convolution_backward", use="long_convolution")
