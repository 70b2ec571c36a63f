"""∂x_s = Σ_t ∂u_t kernel_{t−s} + skip ∂u_s,  ∂kernel_m = Σ_t ∂u_t x_{t−m},  ∂skip = Σ_t ∂u_t x_t

The long convolution y = gate⊙u as a torch operation on the native kernel, ∂u = gate⊙∂y. Shapes are
checked in `ops`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.fourier import next_power_of_two, numbers_per_point, twiddle_factors
from threefold.kernels.registration import define, differentiate, differentiate_once
from threefold.kernels.system_memory import on_large_pages

# No block is shorter: its overlap would cost more than its transform.
SMALLEST_BLOCK = 64

_Optional = Tensor | None


def expected(x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, first: int) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if x.ndim != 3 or kernel.ndim != 2 or 0 in x.shape[1:] or kernel.shape[1] == 0:
        return "x [B, L, D] and kernel [D, K], none empty"
    channels = x.shape[2]
    if kernel.shape[0] != channels or not (skip is None or skip.shape == (channels,)):
        return f"kernel [{channels}, K] and skip [{channels}], the last optional"
    if not 0 <= first < x.shape[1]:
        return f"first to be one of the {x.shape[1]} elements, not {first}"
    outputs = (x.shape[0], x.shape[1] - first, channels)
    if gate is not None and gate.shape != outputs:
        return f"gate {list(outputs)}, as y"
    return expected_kind(x, (kernel, skip, gate), None)


@cache
def transform_size(outputs: int, taps: int, *, whole: bool) -> int:
    """The size of a transform: one for all outputs if `whole`, else that of the least work."""
    largest = next_power_of_two(max(outputs + taps - 1, 2))
    if whole:
        return largest
    sizes = [largest]
    while sizes[-1] >= max(2 * next_power_of_two(taps), 2 * SMALLEST_BLOCK):
        sizes.append(sizes[-1] // 2)

    def work(size: int) -> float:
        blocks = -(-outputs // (size - taps + 1))
        return blocks * size * (math.log2(size) + 4)

    return min((size for size in sizes if size >= taps), key=work)


def _workspace(x: Tensor, buffers: int, size: int) -> Tensor:
    return x.new_empty(torch.get_num_threads(), buffers, size, numbers_per_point(x.dtype))


def _forward(
    x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, size: int, first: int, save: bool
) -> tuple[Tensor, Tensor]:
    """y, and with `save` also its value before the gate."""
    outputs = _forward_shapes(x, kernel, skip, gate, size, first, save)
    on_large_pages(outputs)
    _call("forward", [*outputs, _workspace(x, 2, size)], [x, kernel, skip], gate, size, first)
    return outputs


def _call(
    name: str,
    outputs: list[Tensor],
    inputs: list[_Optional],
    gate: _Optional,
    size: int,
    first: int,
) -> None:
    """Call a kernel; a gate that is a slice of a wider tensor is not copied."""
    *_, x, kernel, _ = inputs
    assert x is not None and kernel is not None
    step = 0
    if gate is not None:
        gate, step = library.evenly_spaced(gate)
    library.call(
        f"long_convolution_{name}",
        outputs,
        [*map(library.contiguous, inputs), gate, twiddle_factors(size, x.dtype)],
        [*x.shape, kernel.shape[1], size, first, step],
        laid_out=True,
    )


def _forward_shapes(
    x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, size: int, first: int, save: bool
) -> tuple[Tensor, Tensor]:
    shape = (x.shape[0], x.shape[1] - first, x.shape[2])
    return x.new_empty(shape), x.new_empty(shape if save else 0)


def _backward(
    grad_y: Tensor,
    x: Tensor,
    kernel: Tensor,
    skip: _Optional,
    gate: _Optional,
    size: int,
    first: int,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward_shapes(grad_y, x, kernel, skip)
    on_large_pages(grads)
    _call(
        "backward", [*grads, _workspace(x, 4, size)], [grad_y, x, kernel, skip], gate, size, first
    )
    return grads


def _backward_shapes(
    grad_y: Tensor, x: Tensor, kernel: Tensor, skip: _Optional, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of skip is empty where there is no skip."""
    given = x.new_empty(0 if skip is None else skip.shape)
    return x.new_empty(x.shape), kernel.new_empty(kernel.shape), given


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.size, ctx.first, ctx.saved = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_y: Tensor, _: Tensor) -> tuple[_Optional, ...]:
    *inputs, before = ctx.saved_tensors
    x, kernel, skip, gate = inputs
    grads = backward(grad_y, *inputs, ctx.size, ctx.first)
    grad_skip = None if skip is None else grads[2]
    grad_gate = None
    if gate is not None and ctx.needs_input_grad[3]:
        if not ctx.saved:
            before, _ = operation(x, kernel, skip, None, ctx.size, ctx.first, False)
        grad_gate = grad_y * before
    return *grads[:2], grad_skip, grad_gate, None, None, None


_INPUTS = "Tensor x, Tensor kernel, Tensor? skip, Tensor? gate, int size, int first"

operation = define(
    f"long_convolution({_INPUTS}, bool save) -> (Tensor, Tensor)",
    native=_forward,
    shapes=_forward_shapes,
)
backward = define(
    f"long_convolution_backward(Tensor grad_y, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("long_convolution", save=_save, backward=_differentiate)
differentiate_once("long_convolution_backward", use="long_convolution")


def run(
    x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, *, first: int, whole: bool
) -> Tensor:
    """y; its value before the gate is saved only for the gradient of the gate."""
    size = transform_size(x.shape[1] - first, kernel.shape[1], whole=whole)
    save = gate is not None and gate.requires_grad and torch.is_grad_enabled()
    y, _ = operation(x, kernel, skip, gate, size, first, save)
    return y  # type: ignore[no-any-return]


register_kernel("long_convolution", "cpu", run)
