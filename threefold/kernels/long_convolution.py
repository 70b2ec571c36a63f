"""∂x_s = Σ_t ∂u_t kernel_{t−s} + skip ∂u_s,  ∂kernel_m = Σ_t ∂u_t x_{t−m},  ∂skip = Σ_t ∂u_t x_t

The long convolution y = gate⊙u as a torch operation on the native kernel, ∂u = gate⊙∂y. Shapes are
checked in `ops`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.checks import expected_kind
from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import LONG_CONVOLUTION, LONG_CONVOLUTION_BACKWARD
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.fourier import next_power_of_two, numbers_per_point, twiddle_factors
from threefold.kernels.registration import NativeOperation, derive

# No block is shorter: its overlap would cost more than its transform.
SMALLEST_BLOCK = 64

_Optional = Tensor | None


def expected(x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, first: int) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if x.ndim != 3 or kernel.ndim != 2 or 0 in x.shape[1:] or kernel.shape[1] == 0:
        return "x [B, L, D] and kernel [D, K], none empty"
    channels = x.shape[2]
    if kernel.shape[0] != channels or not (skip is None or skip.shape == (channels,)):
        return f"kernel [{channels}, K] and skip [{channels}], the last optional"
    if not 0 <= first < x.shape[1]:
        return f"first to be one of the {x.shape[1]} elements, not {first}"
    outputs = (x.shape[0], x.shape[1] - first, channels)
    if gate is not None and gate.shape != outputs:
        return f"gate {list(outputs)}, as y"
    return expected_kind(x, (kernel, skip, gate), None)


@cache
def transform_size(outputs: int, taps: int, *, whole: bool) -> int:
    """The size of a transform: one for all outputs if `whole`, else that of the least work."""
    largest = next_power_of_two(max(outputs + taps - 1, 2))
    if whole:
        return largest
    sizes = [largest]
    while sizes[-1] >= max(2 * next_power_of_two(taps), 2 * SMALLEST_BLOCK):
        sizes.append(sizes[-1] // 2)

    def work(size: int) -> float:
        blocks = -(-outputs // (size - taps + 1))
        return blocks * size * (math.log2(size) + 4)

    return min((size for size in sizes if size >= taps), key=work)


def _result(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    x = given["x"]
    return {"result": (x.shape[0], x.shape[1] - given["first"], x.shape[2])}


def _tables(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Tensor]:
    """The table of the transform, and the workspace: each thread has buffers of its size."""
    x, size = given["x"], given["size"]
    buffers = 4 if "grad_y" in given else 2
    workspace = x.new_empty(torch.get_num_threads(), buffers, size, numbers_per_point(x.dtype))
    return {"twiddle": twiddle_factors(size, x.dtype), "workspace": workspace}


def _of_gate(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The gradient of the gate: its product with what it multiplies."""
    if not values["needs_gate"] or values["gate"] is None:
        return {}
    before = values["before"]
    if not values["save"]:
        x, kernel, skip = values["x"], values["kernel"], values["skip"]
        before, _ = operation(x, kernel, skip, None, values["size"], values["first"], False)
    return {"grad_gate": values["grad_y"] * before}


_forward = NativeOperation(LONG_CONVOLUTION, add_sizes=_result, tables=_tables, large=True)
_backward = NativeOperation(
    LONG_CONVOLUTION_BACKWARD, add_sizes=_result, tables=_tables, large=True
)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="long_convolution", keeps=("before",), finish=_of_gate)


def run(
    x: Tensor, kernel: Tensor, skip: _Optional, gate: _Optional, *, first: int, whole: bool
) -> Tensor:
    """y; its value before the gate is saved only for the gradient of the gate."""
    size = transform_size(x.shape[1] - first, kernel.shape[1], whole=whole)
    save = gate is not None and gate.requires_grad and torch.is_grad_enabled()
    y, _ = operation(x, kernel, skip, gate, size, first, save)
    return y  # type: ignore[no-any-return]


register_kernel("long_convolution", "cpu", run)
