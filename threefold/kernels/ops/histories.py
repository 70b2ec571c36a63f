"""Attention over a history that grows by one element."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threefold.kernels.autocast import under_autocast
from threefold.kernels.dispatch import kernel_for, may_call_directly
from threefold.kernels.history import HistoryStep


def history_step(query: Tensor, *given: Any, **more: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    """A step of attention, as `HistoryStep` describes its arguments; None where no kernel serves.

    Returns the output [B, 1, H, V], and the keys and values after the step.
    """
    step = HistoryStep(query, *given, **more)
    tensors = (query, *given[:4], step.bias, step.slopes)
    if not may_call_directly(*tensors) or under_autocast(query):
        return None
    if any(x is not None and x.dtype is not query.dtype for x in tensors):
        return None
    run = kernel_for("history_step", query, form="step")
    if run is None or len(query) == 0:
        return None
    made: tuple[Tensor, Tensor, Tensor] = run(step)
    return made
