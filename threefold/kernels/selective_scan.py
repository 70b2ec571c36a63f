"""S = e^{ΔA} ⊙ S₋ + Δ B x,  G = C ∂ỹ + e^{Δ₊A} ⊙ G₊:  ∂B = Σ_d Δ x G,  ∂C = Σ_d S ∂ỹ, …

The selective scan as a torch operation on the native kernels. Shapes are checked in `ops`. For
training the state before every 64th element is saved as a hidden output of the operation; the
backward pass recomputes the states between.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

# As `block` in native/selective_scan.h.
CHECKPOINT_EVERY = 64

_Optional = Tensor | None
Scan = tuple[Tensor, Tensor, Tensor]


def expected(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    gate: Tensor | None,
    delta_bias: Tensor | None,
    state: Tensor | None,
    lengths: Tensor | None,
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    shape = x.shape
    if len(shape) != 3 or A.ndim != 2 or 0 in shape[1:] or 0 in A.shape:
        return "x [B, L, D] and A [D, N], none empty"
    batch, length, channels = shape
    filters, size = A.shape
    if not (
        filters == channels
        and delta.shape == shape
        and B.shape == C.shape == (batch, length, size)
        and (gate is None or gate.shape == shape)
        and (D is None or D.shape == (channels,))
        and (delta_bias is None or delta_bias.shape == (channels,))
        and (state is None or state.shape == (batch, channels, size))
        and (lengths is None or lengths.shape == (batch,))
    ):
        return (
            f"delta and gate {list(shape)}, A [{channels}, N], B and C [{batch}, {length}, N], "
            f"D and delta_bias [{channels}], state [{batch}, {channels}, N] and lengths [{batch}]"
        )
    return expected_kind(x, (delta, A, B, C, D, gate, delta_bias, state), lengths)


def _up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


def states_shape(batch: int, length: int, channels: int, size: int) -> tuple[int, int, int, int]:
    """States saved for the backward pass: before each block, and the last."""
    return batch, (length + CHECKPOINT_EVERY - 1) // CHECKPOINT_EVERY + 1, size, _up(channels, 32)


def _workspace(x: Tensor, size: int, *, backward: bool) -> Tensor:
    return library.workspace("selective_scan_workspace", x, [*x.shape, size, backward])


def forward(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: _Optional,
    gate: _Optional,
    delta_bias: _Optional,
    state: _Optional,
    lengths: _Optional,
    softplus: bool,
    hold: bool,
    save: bool,
) -> Scan:
    """Call the kernel; the last output is the saved states, empty without `save`."""
    batch, length, channels = x.shape
    size = A.shape[1]
    y = x.new_empty(batch, length, channels)
    new_state = x.new_empty(batch, channels, size)
    shape = states_shape(batch, length, channels, size)
    # Zeros, because padding is not written and an operation's outputs must be deterministic.
    states = x.new_zeros(shape) if save else None
    workspace = _workspace(x, size, backward=False)
    inputs, strides = _laid_out(x, delta, A, B, C, D, gate, delta_bias)
    library.call(
        "selective_scan_forward",
        [y, new_state, states, workspace],
        [*inputs, library.contiguous(state), library.contiguous(lengths)],
        [batch, length, channels, size, *strides, softplus, hold, save],
        laid_out=True,
    )
    return y, new_state, x.new_empty(0) if states is None else states


def step(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: _Optional,
    gate: _Optional,
    delta_bias: _Optional,
    state: _Optional,
    softplus: bool,
    hold: bool,
) -> tuple[Tensor, Tensor]:
    """Call the kernel for one element of each row, without gradients, with the least overhead."""
    batch, _, channels = x.shape
    size = A.shape[1]
    y = x.new_empty(batch, 1, channels)
    new_state = x.new_empty(batch, channels, size)
    library.call(
        "selective_scan_forward",
        [y, new_state, None, None],
        [x, delta, A, B, C, D, gate, delta_bias, state, None],
        [batch, 1, channels, size, channels, channels, size, size, channels, softplus, hold, False],
    )
    return y, new_state


def _laid_out(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: _Optional,
    gate: _Optional,
    delta_bias: _Optional,
) -> tuple[list[_Optional], list[int]]:
    """The inputs in a layout the kernel can read, and the strides of x, delta, B, C and gate."""
    contiguous = library.contiguous
    timed = [
        (None, 0) if tensor is None else library.evenly_spaced(tensor)
        for tensor in (x, delta, B, C, gate)
    ]
    (x, _), (delta, _), (B, _), (C, _), (gate, _) = timed  # type: ignore[assignment]
    inputs = [x, delta, contiguous(A), B, C, contiguous(D), gate, contiguous(delta_bias)]
    return inputs, [stride for _, stride in timed]


def _forward_shapes(x: Tensor, delta: Tensor, A: Tensor, *rest: Any) -> Scan:
    batch, length, channels = x.shape
    size, save = A.shape[1], rest[-1]
    shape = states_shape(batch, length, channels, size) if save else (0,)
    return (
        x.new_empty(batch, length, channels),
        x.new_empty(batch, channels, size),
        x.new_empty(shape),
    )


def _backward(
    grad_y: _Optional,
    grad_new_state: _Optional,
    states: Tensor,
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: _Optional,
    gate: _Optional,
    delta_bias: _Optional,
    lengths: _Optional,
    softplus: bool,
    hold: bool,
) -> tuple[Tensor, ...]:
    batch, length, channels = x.shape
    size = A.shape[1]
    grads = _backward_shapes(grad_y, grad_new_state, states, x, delta, A, B, C, D, gate)
    *first, grad_gate, grad_bias, grad_state = grads
    contiguous = library.contiguous
    inputs, strides = _laid_out(x, delta, A, B, C, D, gate, delta_bias)
    library.call(
        "selective_scan_backward",
        [
            *first,
            None if gate is None else grad_gate,
            grad_bias,
            grad_state,
            _workspace(x, size, backward=True),
        ],
        [
            contiguous(grad_y),
            contiguous(grad_new_state),
            contiguous(states),
            *inputs,
            contiguous(lengths),
        ],
        [batch, length, channels, size, *strides, softplus, hold],
        laid_out=True,
    )
    return grads


def _backward_shapes(
    grad_y: _Optional,
    grad_new_state: _Optional,
    states: Tensor,
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: _Optional,
    gate: _Optional,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Gradients of x, delta, A, B, C, D, gate (empty without one), delta_bias and state."""
    batch, length, channels = x.shape
    size = A.shape[1]
    return (
        x.new_empty(batch, length, channels),
        x.new_empty(batch, length, channels),
        x.new_empty(channels, size),
        x.new_empty(batch, length, size),
        x.new_empty(batch, length, size),
        x.new_empty(channels),
        x.new_empty((batch, length, channels) if gate is not None else (0,)),
        x.new_empty(channels),
        x.new_empty(batch, channels, size),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Scan) -> None:
    *tensors, ctx.softplus, ctx.hold, ctx.saved = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[2])


def _differentiate(
    ctx: Any, grad_y: _Optional, grad_new_state: _Optional, _: _Optional
) -> tuple[_Optional, ...]:
    *tensors, state, lengths, states = ctx.saved_tensors
    if not ctx.saved:
        inputs = (*tensors, state, lengths, ctx.softplus, ctx.hold)
        states = operation(*inputs, True)[2]
    *grads, grad_state = backward(
        grad_y, grad_new_state, states, *tensors, lengths, ctx.softplus, ctx.hold
    )
    wanted = [
        None if tensor is None else grad
        for tensor, grad in zip([*tensors, state], [*grads, grad_state], strict=True)
    ]
    return *wanted, None, None, None, None


_INPUTS = (
    "Tensor x, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? gate,"
    " Tensor? delta_bias"
)

operation = define(
    f"selective_scan({_INPUTS}, Tensor? state, Tensor? lengths, bool softplus, bool hold,"
    " bool save) -> (Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    f"selective_scan_backward(Tensor? grad_y, Tensor? grad_new_state, Tensor states, {_INPUTS},"
    f" Tensor? lengths, bool softplus, bool hold) -> ({', '.join(['Tensor'] * 9)})",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("selective_scan", save=_save, backward=_differentiate)
differentiate_once("selective_scan_backward", use="selective_scan")


def run(
    inputs: tuple[_Optional, ...], lengths: _Optional, softplus: bool, hold: bool
) -> tuple[Tensor, Tensor]:
    """The outputs and the new state; inputs are x, delta, A, B, C, D, gate, delta_bias, state."""
    x = inputs[0]
    assert x is not None
    if x.shape[1] == 1 and lengths is None and may_call_directly(*inputs):
        return step(*inputs, softplus, hold)  # type: ignore[call-arg, arg-type]
    y, state, _ = operation(*inputs, lengths, softplus, hold, needs_saving(*inputs))
    return y, state


register_kernel("selective_scan", "cpu", run)
