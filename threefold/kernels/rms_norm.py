"""û = u·r,  r = 1/√(mean(u²) + eps),  ∂u = r·(h − û·mean(h·û)),  ∂weight = Σ_rows ∂y ⊙ û

The RMS norm with its gate as a torch operation on the native kernel. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

# The sum over rows for the weight's gradient is made in pieces, independent of the threads.
_MAX_PIECES = 32

_Optional = Tensor | None


def expected(x: Tensor, weight: Tensor | None, gate: Tensor | None) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if x.ndim < 1 or x.shape[-1] == 0:
        return "x […, D], D ≥ 1"
    if not x.dtype.is_floating_point:
        return "floating-point numbers"
    if weight is not None and (
        weight.ndim not in (1, 2) or weight.shape != x.shape[-weight.ndim :]
    ):
        return f"weight [{x.shape[-1]}], or the last two axes of x"
    if gate is not None and gate.shape != x.shape:
        return f"gate {list(x.shape)}, as x"
    return None


def _sizes(x: Tensor, weight: _Optional, gate_first: bool) -> list[int]:
    size = x.shape[-1]
    groups = weight.shape[0] if weight is not None and weight.ndim == 2 else 1
    return [x.numel() // size, size, groups, gate_first]


def forward(x: Tensor, weight: _Optional, gate: _Optional, eps: float, gate_first: bool) -> Tensor:
    """Call the kernel; a step without gradients calls this directly."""
    y = x.new_empty(x.shape)
    sizes = _sizes(x, weight, gate_first)
    library.call("rms_norm_forward", [y], [x, weight, gate], sizes, [eps])
    return y


def _forward_shapes(x: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape)


def _backward(
    grad_y: Tensor, x: Tensor, weight: _Optional, gate: _Optional, eps: float, gate_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = _sizes(x, weight, gate_first)
    rows, size, groups, _ = sizes
    pieces = max(1, min(_MAX_PIECES, rows))
    grads = _backward_shapes(grad_y, x, weight, gate)
    # The kernel writes the weight's gradient even where there is no weight.
    grad_weight = x.new_empty(groups, size) if weight is None else grads[1]
    workspace = x.new_empty(pieces * groups, size)
    library.call(
        "rms_norm_backward",
        [grads[0], grad_weight, grads[2], workspace],
        [grad_y, x, weight, gate],
        [*sizes, pieces],
        [eps],
    )
    return grads


def _backward_shapes(
    grad_y: Tensor, x: Tensor, weight: _Optional, gate: _Optional, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        x.new_empty(0 if weight is None else weight.shape),
        x.new_empty(0 if gate is None else gate.shape),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.eps, ctx.gate_first = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[_Optional, ...]:
    x, weight, gate = ctx.saved_tensors
    grad_x, grad_weight, grad_gate = backward(grad_y, x, weight, gate, ctx.eps, ctx.gate_first)
    return (
        grad_x,
        None if weight is None else grad_weight,
        None if gate is None else grad_gate,
        None,
        None,
    )


_INPUTS = "Tensor x, Tensor? weight, Tensor? gate, float eps, bool gate_first"

operation = define(f"rms_norm({_INPUTS}) -> Tensor", native=forward, shapes=_forward_shapes)
backward = define(
    f"rms_norm_backward(Tensor grad_y, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("rms_norm", save=_save, backward=_differentiate)
differentiate_once("rms_norm_backward", use="rms_norm")


def run(x: Tensor, weight: _Optional, gate: _Optional, eps: float, gate_first: bool) -> Tensor:
    """The normed x."""
    call = forward if may_call_directly(x) else operation
    y: Tensor = call(x, weight, gate, eps, gate_first)
    return y


register_kernel("rms_norm", "cpu", run)
