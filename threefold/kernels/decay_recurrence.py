"""S_t = Diag(α_t) S_{t−1} Diag(α'_t) + k_t⊗v_t,  o_t = S_tᵀ q_t,  α = exp(log_decay)

The linear memory with decays as a torch operation on the native kernel. Shapes are checked in
`ops`; native/operations.h describes the arguments of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.checks import expected_shapes, grads_or_zeros
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.library import with_unit_stride
from threefold.kernels.registration import define, differentiate, differentiate_once
from threefold.kernels.system_memory import on_large_pages

# Elements between two checkpoints: memories from which the backward pass recomputes.
CHECKPOINT_EVERY = 64

_Optional = Tensor | None


class DecayInputs(NamedTuple):
    """The inputs of the operation; bonus and log_decay_value exclude each other."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: _Optional
    log_decay_value: _Optional
    bonus: _Optional
    state: _Optional
    lengths: _Optional

    def expected(self) -> str | None:
        """The shape, dtype or device that was expected; None if all inputs fit."""
        batch, length, heads, values = self.value.shape
        groups, keys = self.query.shape[2:]
        if groups == 0 or heads % groups:
            return "heads of query that divide those of value"
        timed, sized = (batch, length, heads), (batch, length, heads, keys)
        return expected_shapes(
            self.value,
            self.lengths,
            ("query", self.query, (batch, length, groups, keys)),
            ("key", self.key, self.query.shape),
            ("log_decay", self.log_decay, (heads,), timed, sized),
            ("log_decay_value", self.log_decay_value, self.value.shape),
            ("bonus", self.bonus, (heads, keys)),
            ("state", self.state, (batch, heads, keys, values)),
        )

    def as_read(self) -> DecayInputs:
        """The inputs as the kernel can read them; slices of wider tensors are not copied."""
        log_decay = self.log_decay
        if log_decay is not None and log_decay.dim() == 4:
            log_decay = with_unit_stride(log_decay)
        on_value = self.log_decay_value
        return DecayInputs(
            with_unit_stride(self.query),
            with_unit_stride(self.key),
            with_unit_stride(self.value),
            log_decay,
            None if on_value is None else with_unit_stride(on_value),
            *map(library.contiguous, (self.bonus, self.state, self.lengths)),
        )

    def sizes(self) -> list[int]:
        batch, length, heads, values = self.value.shape
        groups, keys = self.query.shape[2:]
        decays = 0
        if self.log_decay is not None:
            decays = keys if self.log_decay.dim() == 4 else 1
        return [batch, length, heads, groups, keys, values, decays]

    def strides(self) -> list[int]:
        """The strides of rows, elements and heads; 0, 0 for rows and elements of a fixed decay."""
        strides: list[int] = []
        for tensor in self[:5]:
            strides += [0, 0, 0] if tensor is None else [0, 0, *tensor.stride()[:3]][-3:]
        return strides

    def workspace(self, sizes: list[int], *, backward: bool) -> Tensor:
        flags = [self.log_decay_value is not None, self.bonus is not None, backward]
        return library.workspace("decay_recurrence_workspace", self.value, [*sizes, *flags])


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: _Optional,
    log_decay_value: _Optional,
    bonus: _Optional,
    state: _Optional,
    lengths: _Optional,
    save: bool,
    check: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel; a step without gradients calls this directly.

    With `save` the last output is the checkpoints of the backward pass, else it is empty. `check`
    raises for log-decays above 0.
    """
    given = DecayInputs(query, key, value, log_decay, log_decay_value, bonus, state, lengths)
    inputs = given.as_read()
    outputs = _forward_shapes(*inputs, save, check)
    sizes = inputs.sizes()
    workspace = None
    if save or value.shape[1] > 1:
        workspace = inputs.workspace(sizes, backward=False)
        on_large_pages(outputs)
    library.call(
        "decay_recurrence_forward",
        [*outputs, workspace],
        inputs,
        [*sizes, check],
        strides=inputs.strides(),
    )
    return outputs


def _forward_shapes(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, heads, values = value.shape
    keys = query.shape[-1]
    save = rest[-2]
    blocks = -(-length // CHECKPOINT_EVERY)
    return (
        value.new_empty(batch, length, heads, values),
        value.new_empty(batch, heads, keys, values),
        value.new_empty((batch, heads, blocks, keys, values) if save else 0),
    )


def _backward(
    grad_out: Tensor, grad_state: Tensor, checkpoints: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    *tensors, of_decays = rest
    inputs = DecayInputs(*tensors).as_read()
    grads = list(_backward_shapes(grad_out, grad_state, checkpoints, *rest))
    log_decay, sizes = inputs.log_decay, inputs.sizes()
    fixed = of_decays and log_decay is not None and log_decay.dim() == 1
    if fixed:
        grads[3] = inputs.value.new_empty(sizes[:3])
    on_large_pages(grads)
    grad_out = with_unit_stride(grad_out)
    library.call(
        "decay_recurrence_backward",
        [*grads, inputs.workspace(sizes, backward=True)],
        [grad_out, grad_state.contiguous(), checkpoints.contiguous(), *inputs],
        sizes,
        strides=[*inputs.strides(), *grad_out.stride()[:3]],
    )
    if fixed:
        grads[3] = grads[3].sum((0, 1))
    return tuple(grads)


def _backward_shapes(
    grad_out: Tensor, grad_state: Tensor, checkpoints: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """A gradient that is not wanted is an empty tensor."""
    *tensors, of_decays = rest
    inputs = DecayInputs(*tensors)
    wanted = inputs[:7]
    if not of_decays:
        wanted = inputs._replace(log_decay=None, log_decay_value=None)[:7]
    return tuple(grad_out.new_empty(0 if x is None else x.shape) for x in wanted)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.saved, _ = inputs
    ctx.save_for_backward(*tensors, output[2])
    ctx.mark_non_differentiable(output[2])
    # Zeros for unused gradients would be as large as the checkpoints.
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_state: _Optional, _: _Optional
) -> tuple[_Optional, ...]:
    *inputs, checkpoints = ctx.saved_tensors
    if not ctx.saved:
        checkpoints = operation(*inputs, True, False)[2]
    needed = ctx.needs_input_grad[:7]
    given = grads_or_zeros(grad_out, grad_state, *inputs[1:3])
    grads = backward(*given, checkpoints, *inputs, any(needed[3:5]))
    chosen = (grad if need else None for grad, need in zip(grads, needed, strict=True))
    return (*chosen, None, None, None)


_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? log_decay_value, "
    "Tensor? bonus, Tensor? state, Tensor? lengths"
)

operation = define(
    f"decay_recurrence({_INPUTS}, bool save, bool check) -> (Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "decay_recurrence_backward(Tensor grad_out, Tensor grad_state, Tensor checkpoints, "
    f"{_INPUTS}, bool of_decays) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("decay_recurrence", save=_save, backward=_differentiate)
differentiate_once("decay_recurrence_backward", use="linear_recurrence")


def run(inputs: DecayInputs, check: Callable[[], None] | None) -> tuple[Tensor, Tensor]:
    """The outputs and the new state.

    `check()` raises if a log-decay is above 0, with a better message than the kernel's status.
    """
    direct = inputs.value.shape[1] == 1 and may_call_directly(*inputs)
    call, save = (forward if direct else operation), needs_saving(*inputs)
    if check is None or torch.compiler.is_compiling():
        out, state, _ = call(*inputs, save, check is not None)
        return out, state
    try:
        out, state, _ = call(*inputs, save, True)
    except ThreefoldError:
        check()
        raise
    return out, state


register_kernel("decay_recurrence", "cpu", run)
