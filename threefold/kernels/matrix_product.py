"""y = x Wᵀ + bias,  ∂x = ∂y W,  ∂W = ∂yᵀ x:  large products of float32 by oneDNN

torch gives products of float32 to MKL, which on processors of other makers than Intel keeps to
vectors of 256 bits. Where such a processor has AVX-512, oneDNN, which is part of torch, is twice as
fast. The processor alone decides, so that the same machine always computes the same bits.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.autocast import under_autocast
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.dispatch import (
    may_call_directly,
    needs_saving,
    register_kernel,
    transforms_active,
)
from threefold.kernels.registration import define, differentiate
from threefold.kernels.replay.activity import recording

# Multiplications, without and with gradients, below which calling it costs more than it saves.
_WORTH_CALLING, _WORTH_DIFFERENTIATING = 1 << 22, 1 << 23
# ∂W is computed as its transpose if W has few columns, because results with long rows are faster.
_FEW_COLUMNS, _MOST_ROWS = 512, 4096


@cache
def preferred() -> bool:
    """Whether oneDNN's products are the faster ones of this machine."""
    return (
        torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and maker() not in ("", "GenuineIntel")
    )


def maker() -> str:
    """The maker of the processor, as it names itself; empty if it is not known."""
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "vendor_id":
                return value.strip()
        return ""
    return platform.processor().rpartition(", ")[2]


def serves(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a product that torch could compute is one for oneDNN."""
    if torch.compiler.is_compiling():
        return False
    least = _WORTH_DIFFERENTIATING if needs_saving(x, weight, bias) else _WORTH_CALLING
    return (
        preferred()
        and x.numel() * weight.shape[0] >= least
        and all(
            t is None
            or (t.dtype is torch.float32 and type(t) in PLAIN_TENSOR_TYPES and not t.is_neg())
            for t in (x, weight, bias)
        )
        and bool(torch.backends.mkldnn.enabled)
        and not (recording() or under_autocast(x) or transforms_active())
    )


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product; x may have any strides, weight may be transposed."""
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def _shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients, by the same operation, so that they have derivatives too."""
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    flat = grad.reshape(-1, grad.shape[-1])
    return (
        operation(grad, weight.t(), None) if of_x else None,
        _of_weight(flat, x.reshape(-1, x.shape[-1])) if of_weight else None,
        flat.sum(0) if of_bias else None,
    )


def _of_weight(grad: Tensor, x: Tensor) -> Tensor:
    rows, columns = grad.shape[1], x.shape[1]
    if columns < min(rows, _FEW_COLUMNS) and rows <= _MOST_ROWS:
        transposed: Tensor = operation(x.t(), grad.t(), None)
        return transposed.t()
    y: Tensor = operation(grad.t(), x.t(), None)
    return y


operation = define(
    "matrix_product(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    native=forward,
    shapes=_shapes,
)
differentiate("matrix_product", save=_save, backward=_differentiate)


def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product, of what it `serves`."""
    call = forward if may_call_directly(x) else operation
    y: Tensor = call(x, weight, bias)
    return y


register_kernel("matrix_product", "cpu", run, dtypes=(torch.float32,))
