"""û = u·r,  r = 1/√(mean(u²) + eps),  ∂u = r·(h − û·mean(h·û)),  ∂weight = Σ_rows ∂y ⊙ û

The RMS norm with its gate as a torch operation on the native kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import RMS_NORM, RMS_NORM_BACKWARD
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import NativeOperation, derive


def expected(x: Tensor, weight: Tensor | None, gate: Tensor | None) -> str | None:
    """The shape or dtype that was expected; None if all inputs fit, in whatever dtypes."""
    alike = (None if t is None else t.to(x.dtype) for t in (weight, gate))
    return RMS_NORM.expected(x, *alike)


def _sizes(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    x, weight = given["x"], given["weight"]
    groups = weight.shape[0] if weight is not None and weight.dim() == 2 else 1
    return {"rows": x.numel() // x.shape[-1], "groups": groups}


_forward = NativeOperation(RMS_NORM, add_sizes=_sizes)
_backward = NativeOperation(RMS_NORM_BACKWARD, add_sizes=_sizes)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="rms_norm")


def run(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, gate_first: bool
) -> Tensor:
    """The normed x."""
    call = _forward.call if may_call_directly(x) else operation
    y: Tensor = call(x, weight, gate, eps, gate_first)
    return y


register_kernel("rms_norm", "cpu", run)
