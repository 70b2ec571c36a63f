"""S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t⊗v_t,   o_t = S_tᵀ q_t,   or
S_t = (Diag(α_t) + a_t b_tᵀ) S_{t−1} + k_t⊗v_t

The linear memory with the delta rule or a rank-one term, as a torch operation on the native kernel.
Shapes are checked in `ops`; native/operations.h describes the arguments of the kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_shapes, grads_or_zeros
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.library import with_unit_stride
from threefold.kernels.registration import define, differentiate, differentiate_once
from threefold.kernels.system_memory import on_large_pages

# Elements between two checkpoints: memories from which the backward pass recomputes.
CHECKPOINT_EVERY = 64

_Optional = Tensor | None


class DeltaInputs(NamedTuple):
    """The inputs of the operation: either strength, or write and read."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: _Optional
    strength: _Optional
    write: _Optional
    read: _Optional
    state: _Optional
    lengths: _Optional

    def expected(self) -> str | None:
        """The shape, dtype or device that was expected; None if all inputs fit."""
        batch, length, heads, values = self.value.shape
        groups, keys = self.query.shape[2:]
        if groups == 0 or heads % groups or (self.strength is None) == (self.write is None):
            return (
                "heads of query that divide those of value, and either strength or write and read"
            )
        timed, sized = (batch, length, heads), (batch, length, heads, keys)
        return expected_shapes(
            self.value,
            self.lengths,
            ("query", self.query, (batch, length, groups, keys)),
            ("key", self.key, self.query.shape),
            ("log_decay", self.log_decay, (heads,), timed, sized),
            ("strength", self.strength, timed),
            ("write", self.write, sized),
            ("read", self.read, sized),
            ("state", self.state, (batch, heads, keys, values)),
        )

    def as_read(self) -> DeltaInputs:
        """The inputs as the kernel can read them; slices of wider tensors are not copied."""
        log_decay = self.log_decay
        if log_decay is not None and log_decay.dim() == 4:
            log_decay = with_unit_stride(log_decay)
        return self._replace(
            query=with_unit_stride(self.query),
            key=with_unit_stride(self.key),
            value=with_unit_stride(self.value),
            log_decay=log_decay,
            write=None if self.write is None else with_unit_stride(self.write),
            read=None if self.read is None else with_unit_stride(self.read),
            state=None if self.state is None else self.state.contiguous(),
            lengths=None if self.lengths is None else self.lengths.contiguous(),
        )

    def sizes(self) -> list[int]:
        batch, length, heads, values = self.value.shape
        groups, keys = self.query.shape[2:]
        decays = 0
        if self.log_decay is not None:
            decays = keys if self.log_decay.dim() == 4 else 1
        sizes = [batch, length, heads, groups, keys, values, decays]
        # Into how many parts a head's value columns are cut, so that threads stay busy.
        dtype = self.value.dtype
        return [*sizes, *library.ask("delta_recurrence_parts", dtype, [batch * heads, values])]

    def strides(self) -> list[int]:
        """The strides of rows, elements and heads; 0 for inputs that are None."""
        timed = (tensor.stride()[:3] if tensor is not None else (0, 0, 0) for tensor in self[:7])
        return [stride for strides in timed for stride in strides]


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: _Optional,
    strength: _Optional,
    write: _Optional,
    read: _Optional,
    state: _Optional,
    lengths: _Optional,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Call the kernel; a step without gradients calls this directly.

    With `save` the last two outputs are what the backward pass needs, else they are empty.
    """
    inputs = DeltaInputs(
        query, key, value, log_decay, strength, write, read, state, lengths
    ).as_read()
    outputs = _forward_shapes(*inputs, save)
    on_large_pages(outputs)
    sizes = inputs.sizes()
    library.call(
        "delta_recurrence_forward",
        [*outputs, library.workspace("delta_recurrence_workspace", value, [*sizes, False])],
        inputs,
        sizes,
        strides=inputs.strides(),
    )
    return outputs


def _forward_shapes(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, heads, values = value.shape
    keys = query.shape[-1]
    save = rest[-1]
    blocks = -(-length // CHECKPOINT_EVERY)
    return (
        value.new_empty(batch, length, heads, values),
        value.new_empty(batch, heads, keys, values),
        value.new_empty((batch, length, heads, values) if save else 0),
        value.new_empty((batch, heads, blocks - 1, keys, values) if save else 0),
    )


def _backward(
    grad_out: Tensor, grad_state: Tensor, moved: Tensor, checkpoints: Tensor, *tensors: Any
) -> tuple[Tensor, ...]:
    inputs = DeltaInputs(*tensors).as_read()
    value, sizes = inputs.value, inputs.sizes()
    batch, length, heads, _, keys, values, _, parts = sizes
    grad_out = with_unit_stride(grad_out)

    def of_parts(x: _Optional) -> Tensor:
        size = () if x is None or x.dim() == 3 else (keys,)
        return value.new_empty(0 if x is None else (parts, batch, length, heads, *size))

    grads = [of_parts(x) for x in inputs[:7]]
    grads[2] = value.new_empty(batch, length, heads, values)
    grads.append(value.new_empty(batch, heads, keys, values))
    on_large_pages(grads)
    library.call(
        "delta_recurrence_backward",
        [*grads, library.workspace("delta_recurrence_workspace", value, [*sizes, True])],
        [grad_out, grad_state.contiguous(), moved, checkpoints, *inputs],
        sizes,
        strides=[*inputs.strides(), *grad_out.stride()[:3]],
    )
    complete = (2, 7)  # value and state: not computed in parts
    return tuple(
        grad if index in complete or x is None else _added_up(grad, x.shape[2])
        for index, (grad, x) in enumerate(zip(grads, inputs, strict=False))
    )


def _added_up(grads: Tensor, heads: int) -> Tensor:
    """Gradients [parts, B, L, H, …] summed over parts, then over the heads of a group."""
    grad = grads[0] if len(grads) == 1 else grads.sum(0)
    if grad.shape[2] == heads:
        return grad
    return torch.unflatten(grad, 2, (heads, grad.shape[2] // heads)).sum(3)


def _backward_shapes(
    grad_out: Tensor, grad_state: Tensor, moved: Tensor, checkpoints: Tensor, *tensors: Any
) -> tuple[Tensor, ...]:
    """The gradient of an input that is None is empty, except that of the state."""
    inputs = DeltaInputs(*tensors)
    shapes = [0 if x is None else x.shape for x in inputs[:7]]
    return tuple(inputs.value.new_empty(shape) for shape in (*shapes, grad_state.shape))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.saved = inputs
    ctx.save_for_backward(*tensors, *output[2:])
    ctx.mark_non_differentiable(*output[2:])
    # Zeros for unused gradients would be as large as what is saved.
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_state: _Optional, *_: _Optional
) -> tuple[_Optional, ...]:
    *inputs, moved, checkpoints = ctx.saved_tensors
    if not ctx.saved:
        _, _, moved, checkpoints = operation(*inputs, True)
    given = grads_or_zeros(grad_out, grad_state, *inputs[1:3])
    grads = backward(*given, moved, checkpoints, *inputs)
    wanted = zip(grads, ctx.needs_input_grad, strict=False)
    return (*(grad if needed else None for grad, needed in wanted), None, None)


_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? strength, "
    "Tensor? write, Tensor? read, Tensor? state, Tensor? lengths"
)

operation = define(
    f"delta_recurrence({_INPUTS}, bool save) -> (Tensor, Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "delta_recurrence_backward(Tensor grad_out, Tensor grad_state, Tensor moved, "
    f"Tensor checkpoints, {_INPUTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("delta_recurrence", save=_save, backward=_differentiate)
differentiate_once("delta_recurrence_backward", use="linear_recurrence")


def run(inputs: DeltaInputs) -> tuple[Tensor, Tensor]:
    """The outputs and the new state."""
    direct = inputs.value.shape[1] == 1 and may_call_directly(*inputs)
    log_decay = inputs.log_decay
    if log_decay is not None and log_decay.dim() == 1:
        inputs = inputs._replace(log_decay=log_decay.expand(inputs.value.shape[:3]))
    call = forward if direct else operation
    out, state, *_ = call(*inputs, needs_saving(*inputs))
    return out, state


register_kernel("delta_recurrence", "cpu", run)
