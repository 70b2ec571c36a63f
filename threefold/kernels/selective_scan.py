"""S = e^{ΔA} ⊙ S₋ + Δ B x,  G = C ∂ỹ + e^{Δ₊A} ⊙ G₊:  ∂B = Σ_d Δ x G,  ∂C = Σ_d S ∂ỹ, …

The selective scan as a torch operation on the native kernels. Shapes are checked in `ops`. For
training the state before every 64th element is saved as a hidden output of the operation; the
backward pass recomputes the states between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import SELECTIVE_SCAN, SELECTIVE_SCAN_BACKWARD
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import NativeOperation, derive

_Optional = Tensor | None


def _flags(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    return {"backward": "states" in given, "keep": given.get("save", False)}


def _of_bias(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    return {"grad_delta_bias": values["grad_bias"]}


expected = SELECTIVE_SCAN.expected
_forward = NativeOperation(SELECTIVE_SCAN, add_sizes=_flags)
_backward = NativeOperation(SELECTIVE_SCAN_BACKWARD, add_sizes=_flags)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="selective_scan", finish=_of_bias)


def run(
    inputs: tuple[_Optional, ...], lengths: _Optional, softplus: bool, hold: bool
) -> tuple[Tensor, Tensor]:
    """The outputs and the new state; inputs are x, delta, A, B, C, D, gate, delta_bias, state."""
    x = inputs[0]
    assert x is not None
    direct = x.shape[1] == 1 and may_call_directly(*inputs)
    call = _forward.call if direct else operation
    y, state, _ = call(*inputs, lengths, softplus, hold, needs_saving(*inputs))
    return y, state


register_kernel("selective_scan", "cpu", run)
