"""y = silu(gate) ⊙ x,  ∂x = ∂y ⊙ silu(gate),  ∂gate = ∂y ⊙ x ⊙ silu′(gate)

The product of a gated layer as a torch operation on the native kernel: one pass over memory each
way, and nothing is kept for the backward pass but the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.checks import expected_kind
from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import SWIGLU, SWIGLU_BACKWARD
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import NativeOperation, derive, differentiate


def expected(gate: Tensor, x: Tensor) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    return (
        f"x {list(gate.shape)}, as gate"
        if x.shape != gate.shape
        else expected_kind(gate, (x,), None)
    )


def _count(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    return {"count": given["x"].numel()}


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_again(ctx: Any, of_gate: Tensor, of_x: Tensor) -> tuple[Tensor, ...]:
    """Second derivatives, in plain torch; of_gate and of_x are the gradients of the gradients."""
    grad_y, gate, x = ctx.saved_tensors
    share = torch.sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    bend = share * (1 - share) * (2 + gate * (1 - 2 * share))
    for_grad = of_gate * x * slope + of_x * gate * share
    return for_grad, of_gate * grad_y * x * bend + of_x * grad_y * slope, of_gate * grad_y * slope


_forward = NativeOperation(SWIGLU, add_sizes=_count)
_backward = NativeOperation(SWIGLU_BACKWARD, add_sizes=_count)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use=None)
differentiate("swiglu_backward", save=_save, backward=_differentiate_again)


def run(gate: Tensor, x: Tensor) -> Tensor:
    """The gated x."""
    call = _forward.call if may_call_directly(gate, x) else operation
    y: Tensor = call(gate, x)
    return y


register_kernel("swiglu", "cpu", run)
