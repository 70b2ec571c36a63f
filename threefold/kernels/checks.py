"""given shapes = expected shapes, or a sentence that says which are not

What operations share: the check of many optional inputs, how they are refused, and gradients of
outputs that were not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from threefold.errors import ThreefoldError


def expected_kind(
    x: Tensor, others: tuple[Tensor | None, ...], lengths: Tensor | None
) -> str | None:
    """What is wrong with dtypes and devices; None if nothing is."""
    dtype, device = x.dtype, x.device
    if not dtype.is_floating_point:
        return "floating-point numbers"
    for tensor in others:
        if tensor is not None and (tensor.dtype != dtype or tensor.device != device):
            return f"all of {dtype} on {device}, as x"
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.device != device):
        return f"lengths of torch.int64 on {device}"
    return None


def expected_shapes(value: Tensor, lengths: Tensor | None, *fields: Any) -> str | None:
    """What is wrong with fields (name, tensor or None, shapes it may have …), as what was expected.

    All are to have value's dtype and device; lengths is int64 of value's first axis.
    """
    for name, tensor, *shapes in fields:
        if tensor is None:
            continue
        if tensor.shape not in shapes:
            return f"{name} {' or '.join(str(list(shape)) for shape in shapes)}"
        if tensor.dtype != value.dtype or tensor.device != value.device:
            return f"all of {value.dtype} on {value.device}, as value"
    if lengths is not None and (
        (lengths.shape, lengths.dtype) != (value.shape[:1], torch.int64)
        or lengths.device != value.device
    ):
        return f"lengths [{value.shape[0]}] of torch.int64 on {value.device}"
    return None


def grads_or_zeros(
    grad_out: Tensor | None, grad_state: Tensor | None, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of out [B, L, H, V] and of the new state [B, H, K, V]; None is zeros."""
    batch, _, heads, values = value.shape
    if grad_out is None:
        grad_out = torch.zeros_like(value)
    if grad_state is None:
        grad_state = value.new_zeros(batch, heads, key.shape[-1], values)
    return grad_out, grad_state


def check_lengths(lengths: Tensor | None, length: int) -> None:
    """Refuse lengths outside 0 … L; the native kernels do it themselves."""
    if lengths is None or torch.compiler.is_compiling():
        return
    if bool(((lengths < 0) | (lengths > length)).any()):
        raise ThreefoldError(f"lengths must be within 0 … {length}, given {lengths.tolist()}")


def refuse(name: str, expected: str, given: Mapping[str, Tensor | None]) -> NoReturn:
    """Say what was expected and what was given."""
    described = ", ".join(
        f"{key} {list(tensor.shape)} {tensor.dtype} on {tensor.device}"
        for key, tensor in given.items()
        if tensor is not None
    )
    raise ThreefoldError(f"{name}: expected {expected}; given {described}")
