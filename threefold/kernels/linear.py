"""y = x Wᵀ + bias,  each weight read from memory once for all rows

The native product of a few rows with a matrix, for steps without gradients. It is called without
torch's dispatcher, so it is not a torch operation. `ops.linear` checks shapes and decides when to
use it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.autocast import under_autocast
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.replay.activity import recording

# With more rows, torch's matrix product reuses each weight often enough from the cache.
MAX_ROWS = 8

# Narrow weights would first be widened for torch's product, which pays off with more rows.
MAX_NARROW_ROWS = 32

# In a program the native product serves more, to the same bits for each row: up to 64 rows it is
# about twice as fast as torch's.
MAX_RECORDED_ROWS = 64

# The workspace holds rows of x padded to a multiple of this; the widest vector has 16 numbers.
_GROUP, _LANES = 32, 16

_FLOAT, _NARROW = torch.float32, torch.bfloat16
# (dtype of the weight, of x) → the kernel, and the dtype it sums in.
_KERNELS = {
    (torch.float32, torch.float32): ("linear", torch.float32),
    (torch.float64, torch.float64): ("linear", torch.float64),
    (_NARROW, _NARROW): ("linear_narrow", _FLOAT),
    (_NARROW, _FLOAT): ("linear_narrow", _FLOAT),
}


def expected(x: Tensor, weight: Tensor, bias: Tensor | None) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if weight.ndim != 2 or x.ndim < 1:
        return "x […, I] and weight [O, I]"
    outputs, inputs = weight.shape
    if x.shape[-1] != inputs or (bias is not None and bias.shape != (outputs,)):
        return f"x […, {inputs}] and bias [{outputs}], the last optional"
    if under_autocast(x):
        return None
    if bias is not None and bias.dtype != weight.dtype:
        return f"a bias of {weight.dtype}, as the weight has"
    if x.dtype != weight.dtype and (x.dtype, weight.dtype) != (torch.float32, torch.bfloat16):
        return f"x of {weight.dtype}, as the weight has (or float32 with a weight of bfloat16)"
    return None


def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """The product, or None where the kernel cannot be used; x is a plain tensor.

    A token takes about a hundred of these calls, so no check is made twice.
    """
    native = library.current().native
    kernel = _KERNELS.get((weight.dtype, x.dtype))
    if native is None or kernel is None or not _readable(weight):
        return None
    outputs, inputs = weight.shape
    *batch, given = x.shape
    rows = math.prod(batch)
    narrow = kernel[0] == "linear_narrow"
    most = MAX_NARROW_ROWS if narrow else MAX_ROWS
    if recording():  # a program has no other product
        most = MAX_RECORDED_ROWS
    if given != inputs or not 0 < rows <= most or not inputs or not _fits(bias, weight):
        return None
    if not x.is_contiguous():
        x = x.contiguous()
    batch.append(outputs)
    y = x.new_empty(batch)
    copied = narrow or inputs % _GROUP or rows > MAX_ROWS
    workspace = _workspace(x, rows, inputs, kernel[1]) if copied else None
    status = native.function(*kernel)(
        y.data_ptr(),
        None if workspace is None else workspace.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        rows,
        inputs,
        outputs,
        *((x.dtype is _NARROW,) if narrow else ()),
        torch.get_num_threads(),
    )
    if status:
        raise ThreefoldError(f"linear: {library.STATUS.get(status, f'status {status}')}")
    return y


def forward_codes(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor | None:
    """scale ⊙ (x codesᵀ) + bias, or None where the kernel cannot be used; x is a plain tensor."""
    native = library.current().native
    if native is None or x.dtype not in library.SUFFIXES or codes.dtype is not torch.int8:
        return None
    outputs, inputs = codes.shape
    *batch, given = x.shape
    rows = math.prod(batch)
    readable = _readable(codes) and scale.dtype is x.dtype and _fits_rows(scale, outputs)
    fits = bias is None or (bias.dtype is x.dtype and _fits_rows(bias, outputs))
    if given != inputs or not 0 < rows <= MAX_NARROW_ROWS or not inputs or not (readable and fits):
        return None
    x = x.contiguous()
    y = x.new_empty([*batch, outputs])
    workspace = _workspace(x, rows, inputs, x.dtype) if inputs % _GROUP else None
    tensors = (y, workspace, x, codes, scale, bias)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    library.invoke("linear_codes", x.dtype, pointers, [rows, inputs, outputs])
    return y


def _fits_rows(vector: Tensor, outputs: int) -> bool:
    return (
        vector.shape == (outputs,)
        and vector.is_contiguous()
        and vector.is_cpu
        and type(vector) in PLAIN_TENSOR_TYPES
    )


def _readable(weight: Tensor) -> bool:
    return (
        type(weight) in PLAIN_TENSOR_TYPES
        and weight.is_cpu
        and weight.ndim == 2
        and weight.is_contiguous()
    )


def _fits(bias: Tensor | None, weight: Tensor) -> bool:
    return bias is None or (
        bias.shape == weight.shape[:1]
        and bias.dtype is weight.dtype
        and bias.is_contiguous()
        and bias.is_cpu
        and type(bias) in PLAIN_TENSOR_TYPES
    )


def _workspace(x: Tensor, rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    # Many rows are stored by columns, a vector of rows at a time.
    rows = rows if rows <= MAX_ROWS else -(-rows // _LANES) * _LANES
    return x.new_empty(rows * -(-inputs // _GROUP) * _GROUP, dtype=dtype)


register_kernel("linear_codes", "cpu", forward_codes)
register_kernel("linear", "cpu", forward, dtypes=(torch.float32, torch.float64, torch.bfloat16))
