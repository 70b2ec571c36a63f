"""∂R = Σ_t ∂(a, g)_t ⊗ [h; c]_{t−1},  ∂w = Σ_t ∂f_t ⊗ h_t: gated units with LegS, natively.

The kernel computes the gradients of the inputs and of the written values f; those of the matrices
are products of them with all states, computed by torch. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import (
    define,
    differentiate,
    differentiate_once,
    save_or_recompute,
)

_Optional = Tensor | None


def expected(
    inputs: Tensor,
    matrix: Tensor,
    say: Tensor,
    state: Tensor,
    position: Tensor,
    lengths: Tensor | None,
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if inputs.ndim != 4 or 0 in inputs.shape[1:] or inputs.shape[2] != 2 or say.ndim != 2:
        return "inputs [B, L, 2, H], none empty, and say [M, H]"
    batch, _, _, hidden = inputs.shape
    size = matrix.shape[-1]
    memories = max(1, say.shape[0])
    if not (
        matrix.shape == (2 * hidden, size)
        and size > hidden
        and (size - hidden) % memories == 0
        and say.shape == (memories, hidden)
        and state.shape == (batch, size)
        and position.shape == (batch,)
        and position.dtype == torch.int64
        and (lengths is None or lengths.shape == (batch,))
    ):
        return (
            f"matrix [{2 * hidden}, {hidden} + M·N], say [M, {hidden}], state [{batch}, {hidden} + "
            f"M·N], position [{batch}] (int64) and lengths [{batch}]"
        )
    return expected_kind(inputs, (matrix, say, state), lengths)


def forward(
    inputs: Tensor,
    matrix: Tensor,
    say: Tensor,
    state: Tensor,
    position: Tensor,
    lengths: _Optional,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel; the last output is what the backward pass needs, empty without `save`."""
    out, new_state, saved = _forward_shapes(inputs, matrix, say, state, position, lengths, save)
    sizes = _sizes(inputs.shape[:2], say, state)
    library.call(
        "legs_recurrence_forward",
        [out, new_state, saved if save else None, _workspace(out, sizes)],
        [inputs, matrix, say, state, position, lengths],
        sizes,
    )
    return out, new_state, saved


def _sizes(rows: Any, say: Tensor, state: Tensor) -> list[int]:
    memories, hidden = say.shape
    return [*rows, hidden, memories, (state.shape[1] - hidden) // memories]


def _workspace(like: Tensor, sizes: list[int]) -> Tensor:
    return library.workspace("legs_recurrence_workspace", like, [sizes[0], *sizes[2:]])


def _forward_shapes(
    inputs: Tensor,
    matrix: Tensor,
    say: Tensor,
    state: Tensor,
    position: Tensor,
    lengths: _Optional,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out = inputs.new_empty(*inputs.shape[:2], state.shape[1])
    return out, inputs.new_empty(state.shape), inputs.new_empty(inputs.shape if save else (0,))


def _backward(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    saved: Tensor,
    matrix: Tensor,
    say: Tensor,
    state: Tensor,
    position: Tensor,
    lengths: _Optional,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden = say.shape[1]
    grad_inputs, grad_state = torch.empty_like(saved), torch.empty_like(state)
    said = out.new_empty(*out.shape[:2], len(say))
    sizes = _sizes(out.shape[:2], say, state)
    library.call(
        "legs_recurrence_backward",
        [grad_inputs, said, grad_state, _workspace(out, sizes)],
        [grad_out, grad_new_state, out, saved, matrix, say, state, position, lengths],
        sizes,
    )
    before = torch.cat([state.unsqueeze(1), out[:, :-1]], 1)
    grad_matrix = grad_inputs.flatten(0, 1).flatten(1).mT @ before.flatten(0, 1)
    grad_say = said.flatten(0, 1).mT @ out[..., :hidden].flatten(0, 1)
    return grad_inputs, grad_matrix, grad_say, grad_state


def _backward_shapes(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    saved: Tensor,
    matrix: Tensor,
    say: Tensor,
    state: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_inputs, *grads = (t.new_empty(t.shape) for t in (saved, matrix, say, state))
    return grad_inputs, grads[0], grads[1], grads[2]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given, *tensors, ctx.saved = inputs
    save_or_recompute(ctx, given, tensors, output)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_new_state: _Optional, _: _Optional
) -> tuple[_Optional, ...]:
    *tensors, out, saved, given = ctx.saved_tensors
    if not ctx.saved:
        saved = operation(given, *tensors, True)[2]
    grads = backward(grad_out, grad_new_state, out, saved, *tensors)
    return *grads, None, None, None


_TENSORS = "Tensor matrix, Tensor say, Tensor state, Tensor position, Tensor? lengths"

operation = define(
    f"legs_recurrence(Tensor inputs, {_TENSORS}, bool save) -> (Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "legs_recurrence_backward(Tensor? grad_out, Tensor? grad_new_state, Tensor out, Tensor saved,"
    f" {_TENSORS}) -> (Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("legs_recurrence", save=_save, backward=_differentiate)
differentiate_once("legs_recurrence_backward", use="a unit coupled with LegS")


def run(*given: Any) -> tuple[Tensor, Tensor]:
    """All outputs [h; c] and the last."""
    if given[0].shape[1] == 1 and may_call_directly(*given):
        inputs, matrix, say, state, position, lengths = given
        out, state, _ = forward(inputs, matrix, say, state, position, lengths, False)
        return out, state
    out, state, _ = operation(*given, needs_saving(*given))
    return out, state


register_kernel("legs_recurrence", "cpu", run)
