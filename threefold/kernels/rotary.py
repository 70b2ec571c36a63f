"""y_i = x_i cos a − x_{i+h} sin a,  y_{i+h} = x_{i+h} cos a + x_i sin a,  a = place · frequency_i

Rotary positions as a torch operation on the native kernel: queries and keys in one pass over memory
each, and the gradient is the same turned back. A step is made of plain torch, which is recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.registration import define, differentiate
from threefold.kernels.replay.activity import recording

_Pair = tuple[Tensor, Tensor]


def serves(query: Tensor, key: Tensor, position: Tensor, frequencies: Tensor) -> bool:
    """Whether the kernel takes these; it must read the numbers of `position`."""
    return (
        query.dim() == 4
        and query.shape[:2] == key.shape[:2]
        and query.dtype == key.dtype
        and query.shape[-1] == key.shape[-1]
        and type(position) in PLAIN_TENSOR_TYPES
        and position.is_cpu
        and frequencies.is_cpu
        and not frequencies.requires_grad
        and len(query) > 0
        and not recording()
        and not torch.compiler.is_compiling()
    )


def _turn(x: Tensor, cos: Tensor, sin: Tensor, starts: Tensor, back: bool) -> Tensor:
    y = x.new_empty(x.shape)
    sizes = [*x.shape, cos.shape[1], len(cos), back]
    library.call("rotary", [y], [x, cos, sin, starts], sizes)
    return y


def _native(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, starts: Tensor, back: bool
) -> _Pair:
    return _turn(query, cos, sin, starts, back), _turn(key, cos, sin, starts, back)


def _shapes(query: Tensor, key: Tensor, *rest: Any) -> _Pair:
    return query.new_empty(query.shape), key.new_empty(key.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tables, ctx.back = inputs[2:]
    ctx.save_for_backward(*tables)


def _differentiate(ctx: Any, grad_query: Tensor, grad_key: Tensor) -> tuple[Tensor | None, ...]:
    grads = operation(grad_query, grad_key, *ctx.saved_tensors, not ctx.back)
    return *grads, None, None, None, None


operation = define(
    "rotary(Tensor query, Tensor key, Tensor cos, Tensor sin, Tensor starts, bool back)"
    " -> (Tensor, Tensor)",
    native=_native,
    shapes=_shapes,
)
differentiate("rotary", save=_save, backward=_differentiate)


def run(query: Tensor, key: Tensor, position: Tensor, frequencies: Tensor) -> _Pair:
    """Queries and keys turned by their positions, with one table of angles where rows share it."""
    length, rows = query.shape[1], position.tolist()
    first, last = min(rows), max(rows) + length
    with torch.no_grad():
        if last - first <= 2 * length:
            places, starts = torch.arange(first, last, device=position.device), position - first
        else:
            places = (
                position.unsqueeze(1) + torch.arange(length, device=position.device)
            ).flatten()
            starts = length * torch.arange(len(rows), device=position.device)
        angle = places.unsqueeze(1) * frequencies
        tables = angle.cos().to(query.dtype), angle.sin().to(query.dtype)
    turned: _Pair = operation(query, key, *tables, starts, False)
    return turned


register_kernel("rotary", "cpu", run)
