"""g_t = ∂y_t · silu′(·),  ∂x_s = Σ_k weight_k · g_{s+K−1−k},  ∂weight_k = Σ_t g_t · x_{t−K+1+k}

The short convolution as a torch operation on the native kernel. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

# The longest filter that native/short_convolution.cpp supports.
MAX_TAPS = 64

_Optional = Tensor | None


def expected(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if x.ndim != 3 or weight.ndim != 2 or 0 in x.shape[1:] or 0 in weight.shape:
        return "x [B, L, D] and weight [D, K], none empty"
    batch, _, channels = x.shape
    filters, taps = weight.shape
    if not (
        filters == channels
        and (bias is None or bias.shape == (channels,))
        and (state is None or state.shape == (batch, taps - 1, channels))
        and (lengths is None or lengths.shape == (batch,))
    ):
        return (
            f"weight [{channels}, K], bias [{channels}], state [{batch}, {taps - 1}, {channels}] "
            f"and lengths [{batch}], the last three optional"
        )
    return expected_kind(x, (weight, bias, state), lengths)


def forward(
    x: Tensor, weight: Tensor, bias: _Optional, state: _Optional, lengths: _Optional, silu: bool
) -> tuple[Tensor, Tensor]:
    """Call the kernel; a step without gradients calls this directly."""
    batch, length, channels = x.shape
    taps = weight.shape[1]
    y = x.new_empty(batch, length, channels)
    new_state = x.new_empty(batch, taps - 1, channels)
    workspace = x.new_empty(taps, channels)
    x, stride = library.evenly_spaced(x)
    library.call(
        "short_convolution_forward",
        [y, new_state, workspace],
        [x, *map(library.contiguous, (weight, bias, state, lengths))],
        [batch, length, channels, taps, stride, silu],
        laid_out=True,
    )
    return y, new_state


def _forward_shapes(
    x: Tensor, weight: Tensor, bias: _Optional, state: _Optional, lengths: _Optional, silu: bool
) -> tuple[Tensor, Tensor]:
    batch, length, channels = x.shape
    return x.new_empty(batch, length, channels), x.new_empty(batch, weight.shape[1] - 1, channels)


def _backward(
    grad_y: Tensor,
    grad_new_state: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: _Optional,
    state: _Optional,
    lengths: _Optional,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, channels = x.shape
    taps = weight.shape[1]
    grads = _backward_shapes(grad_y, grad_new_state, x, weight, bias, state, lengths, silu)
    workspace = x.new_empty(taps + batch * (taps + 1), channels)
    contiguous = library.contiguous
    x, stride = library.evenly_spaced(x)
    library.call(
        "short_convolution_backward",
        [*grads, workspace],
        [
            contiguous(grad_y),
            contiguous(grad_new_state),
            x,
            *map(contiguous, (weight, bias, state, lengths)),
        ],
        [batch, length, channels, taps, stride, silu],
        laid_out=True,
    )
    return grads


def _backward_shapes(
    grad_y: Tensor, grad_new_state: Tensor, x: Tensor, weight: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, channels = x.shape
    taps = weight.shape[1]
    return (
        x.new_empty(batch, length, channels),
        x.new_empty(channels, taps),
        x.new_empty(channels),
        x.new_empty(batch, taps - 1, channels),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_y: Tensor, grad_new_state: Tensor) -> tuple[_Optional, ...]:
    x, weight, bias, state, lengths = ctx.saved_tensors
    grad_x, grad_weight, grad_bias, grad_state = backward(
        grad_y, grad_new_state, x, weight, bias, state, lengths, ctx.silu
    )
    return (
        grad_x,
        grad_weight,
        None if bias is None else grad_bias,
        None if state is None else grad_state,
        None,
        None,
    )


_INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor? state, Tensor? lengths, bool silu"

operation = define(
    f"short_convolution({_INPUTS}) -> (Tensor, Tensor)", native=forward, shapes=_forward_shapes
)
backward = define(
    f"short_convolution_backward(Tensor grad_y, Tensor grad_new_state, {_INPUTS})"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("short_convolution", save=_save, backward=_differentiate)
differentiate_once("short_convolution_backward", use="short_convolution")


def run(
    x: Tensor, weight: Tensor, bias: _Optional, state: _Optional, lengths: _Optional, silu: bool
) -> tuple[Tensor, Tensor]:
    """The outputs and the new state."""
    direct = x.shape[1] == 1 and may_call_directly(x, weight, bias, state, lengths)
    call = forward if direct else operation
    return call(x, weight, bias, state, lengths, silu)


register_kernel("short_convolution", "cpu", run)
