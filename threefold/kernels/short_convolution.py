"""g_t = ∂y_t · silu′(·),  ∂x_s = Σ_k weight_k · g_{s+K−1−k},  ∂weight_k = Σ_t g_t · x_{t−K+1+k}

The short convolution as a torch operation on the native kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.declarations import SHORT_CONVOLUTION, SHORT_CONVOLUTION_BACKWARD
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import NativeOperation, derive

# The longest filter that native/short_convolution.cpp supports.
MAX_TAPS = 64


def _lay_out(tensors: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """x may be a slice of a wider tensor, which is not copied."""
    x, stride = library.evenly_spaced(tensors["x"])
    return {"x": x}, {"stride": stride, "backward": "grad_y" in tensors}


expected = SHORT_CONVOLUTION.expected
_forward = NativeOperation(SHORT_CONVOLUTION, lay_out=_lay_out)
_backward = NativeOperation(SHORT_CONVOLUTION_BACKWARD, lay_out=_lay_out)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="short_convolution")


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor | None,
    lengths: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The outputs and the new state."""
    direct = x.shape[1] == 1 and may_call_directly(x, weight, bias, state, lengths)
    call = _forward.call if direct else operation
    y, after = call(x, weight, bias, state, lengths, silu)
    return y, after


register_kernel("short_convolution", "cpu", run)
