"""y_nj = Σ_i x_ni W_nij  for every element: products with block-diagonal matrices of small blocks

Several of them are written side by side into one tensor, as a layer reads them. Shapes are checked
in `ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import may_call_directly, register_kernel, transforms_active
from threefold.kernels.registration import define, differentiate, differentiate_once

# Larger blocks are products for torch.
LARGEST = 8
# The workspace holds the weights of a row padded to whole vectors of up to 16 numbers.
_LANES = 16


def expected(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> str | None:
    """The shapes that were expected; None if all inputs fit."""
    if len(inputs) != len(weights) or not inputs:
        return "as many weights as inputs"
    for x, weight in zip(inputs, weights, strict=True):
        if weight.ndim != 3 or x.ndim != 3 or weight.shape[0] * weight.shape[1] != x.shape[-1]:
            return "x [B, L, blocks · I] and weight [blocks, I, O]"
        if x.shape[:2] != inputs[0].shape[:2]:
            return f"x {[*inputs[0].shape[:2], x.shape[-1]]}, as long as the first"
    return None


def serves(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> bool:
    """Whether the kernel computes this: small square blocks, and one dtype on one device."""
    tensors = [*inputs, *weights]
    kind = (tensors[0].dtype, tensors[0].device)
    # A batching rule for lists of tensors would have to be written by hand.
    return not (torch.is_autocast_enabled("cpu") or transforms_active()) and (
        all(weight.shape[1] == weight.shape[2] <= LARGEST for weight in weights)
        and all((tensor.dtype, tensor.device) == kind for tensor in tensors)
    )


def forward(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Call the kernel; what has no gradients calls this directly."""
    y = _shapes(inputs, weights)
    parts = torch.split(y, [x.shape[-1] for x in inputs], -1)
    for part, x, weight in zip(parts, inputs, weights, strict=True):
        _product(part, x, weight)
    return y


def _product(y: Tensor, x: Tensor, weight: Tensor, *, turned: bool = False) -> None:
    """y = x W, or x Wᵀ; the elements of y are evenly spaced."""
    x, x_stride = library.evenly_spaced(x)
    weight = weight.contiguous()
    strides = [x_stride, y.stride(1), turned]
    library.call(
        "block_product",
        [y, _workspace(weight)],
        [x, weight],
        [x.shape[0] * x.shape[1], x.shape[2], weight.shape[1], *strides],
        laid_out=True,
    )


def _workspace(weight: Tensor) -> Tensor:
    blocks, size, _ = weight.shape
    return weight.new_empty((blocks * size + _LANES) * size)


def _backward(
    grad: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    grad = grad.contiguous()
    of_inputs, of_weights = _backward_shapes(grad, inputs, weights)
    parts = torch.split(grad, [x.shape[-1] for x in inputs], -1)
    for i, part in enumerate(parts):
        _product(of_inputs[i], part, weights[i], turned=True)
        x, stride = library.evenly_spaced(inputs[i])
        library.call(
            "block_product_weight",
            [of_weights[i], _workspace(weights[i])],
            [part, x],
            [x.shape[0] * x.shape[1], x.shape[2], weights[i].shape[1], stride, grad.shape[2]],
            laid_out=True,
        )
    return of_inputs, of_weights


def _shapes(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    x = inputs[0]
    return x.new_empty(x.shape[0], x.shape[1], sum(x.shape[-1] for x in inputs))


def _backward_shapes(
    grad: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    return [x.new_empty(x.shape) for x in inputs], [w.new_empty(w.shape) for w in weights]


def _save(ctx: Any, inputs: tuple[Sequence[Tensor], Sequence[Tensor]], output: Tensor) -> None:
    ctx.count = len(inputs[0])
    ctx.save_for_backward(*inputs[0], *inputs[1])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    saved = list(ctx.saved_tensors)
    grads: tuple[list[Tensor], list[Tensor]] = backward(
        grad, saved[: ctx.count], saved[ctx.count :]
    )
    return grads


operation = define(
    "block_products(Tensor[] inputs, Tensor[] weights) -> Tensor", native=forward, shapes=_shapes
)
backward = define(
    "block_products_backward(Tensor grad, Tensor[] inputs, Tensor[] weights) "
    "-> (Tensor[] of_inputs, Tensor[] of_weights)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("block_products", save=_save, backward=_differentiate)
differentiate_once("block_products_backward", use="block_products")


def run(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The products, side by side."""
    call = forward if may_call_directly(*inputs) else operation
    y: Tensor = call(list(inputs), list(weights))
    return y


register_kernel("block_products", "cpu", run, shortest=2)
