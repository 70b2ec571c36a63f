"""y = silu(gate) ⊙ x,  ∂x = ∂y ⊙ silu(gate),  ∂gate = ∂y ⊙ x ⊙ silu′(gate)

The product of a gated layer as a torch operation on the native kernel: one pass over memory each
way, and nothing is kept for the backward pass but the inputs. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import define, differentiate


def expected(gate: Tensor, x: Tensor) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    return (
        f"x {list(gate.shape)}, as gate"
        if x.shape != gate.shape
        else expected_kind(gate, (x,), None)
    )


def forward(gate: Tensor, x: Tensor) -> Tensor:
    """Call the kernel; a step without gradients calls this directly."""
    y = x.new_empty(x.shape)
    library.call("swiglu_forward", [y], [gate, x], [x.numel()])
    return y


def _backward(grad_y: Tensor, gate: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    grads = _backward_shapes(grad_y, gate, x)
    library.call("swiglu_backward", grads, [grad_y, gate, x], [x.numel()])
    return grads


def _forward_shapes(gate: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _backward_shapes(grad_y: Tensor, gate: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_y: Tensor) -> tuple[Tensor, Tensor]:
    gate, x = ctx.saved_tensors
    grads: tuple[Tensor, Tensor] = backward(grad_y, gate, x)
    return grads


def _differentiate_again(ctx: Any, of_gate: Tensor, of_x: Tensor) -> tuple[Tensor, ...]:
    """Second derivatives, in plain torch; of_gate and of_x are the gradients of the gradients."""
    grad_y, gate, x = ctx.saved_tensors
    share = torch.sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    bend = share * (1 - share) * (2 + gate * (1 - 2 * share))
    for_grad = of_gate * x * slope + of_x * gate * share
    return for_grad, of_gate * grad_y * x * bend + of_x * grad_y * slope, of_gate * grad_y * slope


operation = define(
    "swiglu(Tensor gate, Tensor x) -> Tensor", native=forward, shapes=_forward_shapes
)
backward = define(
    "swiglu_backward(Tensor grad_y, Tensor gate, Tensor x) -> (Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("swiglu", save=_save, backward=_differentiate)
differentiate("swiglu_backward", save=_save, backward=_differentiate_again)


def run(gate: Tensor, x: Tensor) -> Tensor:
    """The gated x."""
    call = forward if may_call_directly(gate, x) else operation
    y: Tensor = call(gate, x)
    return y


register_kernel("swiglu", "cpu", run)
