"""h_t = a_t ⊙ h_{t−1} + b_t,  G_t = ∂h_t + a*_{t+1} ⊙ G_{t+1}:  ∂b = G,  ∂a_t = G_t ⊙ h*_{t−1}

The diagonal recurrence as a torch operation on the native kernel; its outputs are all that the
backward pass needs. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

_Optional = Tensor | None


def expected(decay: Tensor, write: Tensor, state: Tensor, lengths: _Optional) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    shape = write.shape
    fits = decay.shape in (shape, shape[2:]) and state.shape == (shape[0], *shape[2:])
    if not fits or (lengths is not None and lengths.shape != shape[:1]):
        return f"decay {list(shape)} or {list(shape[2:])}, state [B, …] and lengths [B]"
    return expected_kind(write, (decay, state), lengths)


def forward(
    decay: Tensor, write: Tensor, state: Tensor, lengths: _Optional
) -> tuple[Tensor, Tensor]:
    """Call the kernel; a step without gradients calls this directly."""
    out, new_state = _forward_shapes(decay, write, state)
    library.call(
        "diagonal_recurrence_forward",
        [out, new_state],
        [decay, write, state, lengths],
        _sizes(decay, write),
    )
    return out, new_state


def _sizes(decay: Tensor, like: Tensor) -> list[int]:
    planes = 2 if like.dim() == 4 else 1
    return [*like.shape[:2], planes, like.shape[-1], decay.dim() < like.dim()]


def _forward_shapes(
    decay: Tensor, write: Tensor, state: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    return write.new_empty(write.shape), write.new_empty(state.shape)


def _backward(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    decay: Tensor,
    state: Tensor,
    lengths: _Optional,
) -> tuple[Tensor, Tensor, Tensor]:
    fixed = decay.dim() < out.dim()
    grad_decay = out.new_empty(state.shape if fixed else out.shape)
    grad_write, grad_state = torch.empty_like(out), out.new_empty(state.shape)
    library.call(
        "diagonal_recurrence_backward",
        [grad_decay, grad_write, grad_state],
        [grad_out, grad_new_state, out, decay, state, lengths],
        _sizes(decay, out),
    )
    return grad_decay.sum(0) if fixed else grad_decay, grad_write, grad_state


def _backward_shapes(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    decay: Tensor,
    state: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        out.new_empty(decay.shape),
        out.new_empty(out.shape),
        out.new_empty(state.shape),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    decay, _, state, lengths = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], decay, state, lengths)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_new_state: _Optional
) -> tuple[_Optional, ...]:
    return *backward(grad_out, grad_new_state, *ctx.saved_tensors), None


operation = define(
    "diagonal_recurrence(Tensor decay, Tensor write, Tensor state, Tensor? lengths)"
    " -> (Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "diagonal_recurrence_backward(Tensor? grad_out, Tensor? grad_new_state, Tensor out,"
    " Tensor decay, Tensor state, Tensor? lengths) -> (Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("diagonal_recurrence", save=_save, backward=_differentiate)
differentiate_once("diagonal_recurrence_backward", use="a diagonal recurrence")


def run(decay: Tensor, write: Tensor, state: Tensor, lengths: _Optional) -> tuple[Tensor, Tensor]:
    """All memories and the last."""
    direct = write.shape[1] == 1 and may_call_directly(decay, write, state, lengths)
    call = forward if direct else operation
    return call(decay, write, state, lengths)


register_kernel("diagonal_recurrence", "cpu", run)
