"""h_t = a_t ⊙ h_{t−1} + b_t,  G_t = ∂h_t + a*_{t+1} ⊙ G_{t+1}:  ∂b = G,  ∂a_t = G_t ⊙ h*_{t−1}

The diagonal recurrence as a torch operation on the native kernel; its outputs are all that the
backward pass needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.kernels.checks import expected_kind
from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import DIAGONAL_RECURRENCE, DIAGONAL_RECURRENCE_BACKWARD
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import NativeOperation, derive


def expected(decay: Tensor, write: Tensor, state: Tensor, lengths: Tensor | None) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    shape = write.shape
    fits = decay.shape in (shape, shape[2:]) and state.shape == (shape[0], *shape[2:])
    if not fits or (lengths is not None and lengths.shape != shape[:1]):
        return f"decay {list(shape)} or {list(shape[2:])}, state [B, …] and lengths [B]"
    return expected_kind(write, (decay, state), lengths)


def _sizes(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    decay, timed = given["decay"], given["out" if "out" in given else "write"]
    fixed = decay.dim() < timed.dim()
    return {
        "batch": timed.shape[0],
        "length": timed.shape[1],
        "planes": 2 if timed.dim() == 4 else 1,
        "channels": timed.shape[-1],
        "fixed": fixed,
        "of_decay": given["state"].shape if fixed else timed.shape,
    }


def _over_rows(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The gradient of a fixed decay is that of every row by itself, added up."""
    fixed = values["decay"].dim() < values["out"].dim()
    return {"grad_decay": values["grad_decay"].sum(0)} if fixed else {}


_forward = NativeOperation(DIAGONAL_RECURRENCE, add_sizes=_sizes)
_backward = NativeOperation(DIAGONAL_RECURRENCE_BACKWARD, add_sizes=_sizes)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="a diagonal recurrence", finish=_over_rows)


def run(
    decay: Tensor, write: Tensor, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """All memories and the last."""
    direct = write.shape[1] == 1 and may_call_directly(decay, write, state, lengths)
    call = _forward.call if direct else operation
    out, last = call(decay, write, state, lengths)
    return out, last


register_kernel("diagonal_recurrence", "cpu", run)
