"""Checks that operations share: dtypes, devices, shapes and lengths of their inputs.

A check returns what was expected, as text for the error message, or None if the inputs fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError

# Types whose memory a kernel may read directly; subclasses may store something else there.
PLAIN_TENSOR_TYPES = (Tensor, nn.Parameter)


def expected_kind(
    x: Tensor, others: tuple[Tensor | None, ...], lengths: Tensor | None
) -> str | None:
    """The dtype or device that was expected; None if all inputs have it."""
    dtype, device = x.dtype, x.device
    if not dtype.is_floating_point:
        return "floating-point numbers"
    for tensor in others:
        if tensor is not None and (tensor.dtype != dtype or tensor.device != device):
            return f"all tensors to be {dtype} on {device}, as x is"
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.device != device):
        return f"lengths of torch.int64 on {device}"
    return None


def expected_shapes(value: Tensor, lengths: Tensor | None, *fields: Any) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs have it.

    Each field is (name, tensor or None, allowed shapes …) and must have value's dtype and device;
    lengths is int64 [B], B the first axis of value.
    """
    for name, tensor, *shapes in fields:
        if tensor is None:
            continue
        if tensor.shape not in shapes:
            return f"{name} {' or '.join(str(list(shape)) for shape in shapes)}"
        if tensor.dtype != value.dtype or tensor.device != value.device:
            return f"all tensors to be {value.dtype} on {value.device}, as value is"
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
    """Raise if a length is outside 0 … L; the native kernels check it themselves."""
    if lengths is None or lengths.is_meta or torch.compiler.is_compiling():
        return
    if bool(((lengths < 0) | (lengths > length)).any()):
        raise ThreefoldError(f"lengths must be within 0 … {length}, given {lengths.tolist()}")


def refuse(name: str, expected: str, given: Mapping[str, Tensor | None]) -> NoReturn:
    """Raise an error that says what was expected and what was given."""
    described = ", ".join(
        f"{key} {list(tensor.shape)} {tensor.dtype} on {tensor.device}"
        for key, tensor in given.items()
        if tensor is not None
    )
    raise ThreefoldError(f"{name}: expected {expected}; given {described}")
