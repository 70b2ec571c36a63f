"""∂R = Σ_t ∂(a, g)_t ⊗ [h; c]_{t−1},  ∂w = Σ_t ∂f_t ⊗ h_t: gated units with LegS, natively.

The kernel computes the gradients of the inputs and of the written values f; those of the matrices
are products of them with all states, computed by torch. Shapes are checked in `ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import LEGS_RECURRENCE, LEGS_RECURRENCE_BACKWARD
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import NativeOperation, derive


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
    hidden, memories = inputs.shape[3], max(1, say.shape[0])
    size = matrix.shape[-1]
    if size <= hidden or (size - hidden) % memories:
        return f"matrix [{2 * hidden}, {hidden} + M·N]"
    return LEGS_RECURRENCE.expected(inputs, matrix, say, state, position, lengths)


def _order(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    memories, hidden = given["say"].shape
    return {"order": (given["state"].shape[1] - hidden) // memories}


def _of_matrices(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The gradients of both matrices: products with all states."""
    state, out, hidden = values["state"], values["out"], values["say"].shape[1]
    grads, said = values["grad_inputs"], values["grad_said"]
    before = torch.cat([state.unsqueeze(1), out[:, :-1]], 1)
    return {
        "grad_matrix": grads.flatten(0, 1).flatten(1).mT @ before.flatten(0, 1),
        "grad_say": said.flatten(0, 1).mT @ out[..., :hidden].flatten(0, 1),
    }


_forward = NativeOperation(LEGS_RECURRENCE, add_sizes=_order)
_backward = NativeOperation(LEGS_RECURRENCE_BACKWARD, add_sizes=_order)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="a unit coupled with LegS", finish=_of_matrices)


def run(*given: Any) -> tuple[Tensor, Tensor]:
    """All outputs [h; c] and the last."""
    if given[0].shape[1] == 1 and may_call_directly(*given):
        inputs, matrix, say, state, position, lengths = given
        out, state, _ = _forward.call(inputs, matrix, say, state, position, lengths, False)
        return out, state
    out, state, _ = operation(*given, needs_saving(*given))
    return out, state


register_kernel("legs_recurrence", "cpu", run)
