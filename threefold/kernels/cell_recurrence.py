"""∂U = Σ_t ∂a_t ⊗ h_{t−1}: the loop of a nonlinear cell as a torch operation on the native kernel.

The kernel gives the gradients of the gates' inputs; those of the recurrent matrices are one product
of them with all hidden states, computed by torch. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import needs_saving, register_kernel
from threefold.kernels.registration import (
    define,
    differentiate,
    differentiate_once,
    save_or_recompute,
)

_Optional = Tensor | None


class CellKind(NamedTuple):
    """Gates, parts of the state, numbers saved for the backward pass, and rows of `extra`."""

    gates: int
    parts: int
    saved: int
    extras: int = 0


# In the order of `with_kind` in native/cell_recurrence.cpp; sizes as in native/cell_kinds.h.
CELL_KINDS = {
    "rnn_tanh": CellKind(1, 1, 0),
    "rnn_relu": CellKind(1, 1, 0),
    "rnn_sigmoid": CellKind(1, 1, 0),
    "rnn_identity": CellKind(1, 1, 0),
    "lstm": CellKind(4, 2, 5),
    "peephole_lstm": CellKind(4, 2, 5, 3),
    "coupled_lstm": CellKind(3, 2, 4),
    "gru": CellKind(3, 1, 3),
    "gru_writes": CellKind(3, 1, 3),
    "gru_after": CellKind(3, 1, 4, 1),
    "gru_after_writes": CellKind(3, 1, 4, 1),
    "slstm": CellKind(4, 4, 6),
    "rnn_memory": CellKind(1, 1, 0, 1),
    "gated_memory": CellKind(2, 1, 2, 1),
    "ur_lstm": CellKind(4, 2, 5),
    "ur_gru": CellKind(4, 1, 4),
    "euler": CellKind(2, 1, 1, 1),
    "rnn_modrelu": CellKind(1, 1, 0, 1),
}
_NUMBERS = {kind: number for number, kind in enumerate(CELL_KINDS)}


def expected(
    kind: str,
    inputs: Tensor,
    recurrent: Tensor,
    state: Tensor,
    extra: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    gates, parts, _, extras = CELL_KINDS[kind]
    if inputs.ndim != 4 or 0 in inputs.shape[1:] or inputs.shape[2] != gates:
        return f"inputs [B, L, {gates}, H], none empty"
    batch, _, _, hidden = inputs.shape
    blocks = recurrent.shape[0]
    size = hidden // blocks if blocks else 0
    if not (
        recurrent.shape == (blocks, gates * size, size)
        and size * blocks == hidden
        and state.shape == (batch, parts, hidden)
        and (extra is None if extras == 0 else extra is not None)
        and (extra is None or extra.shape == (extras, hidden))
        and (mask is None or mask.shape == (batch, hidden))
        and (lengths is None or lengths.shape == (batch,))
    ):
        return (
            f"recurrent [N, {gates}·S, S] with N·S = {hidden}, state [{batch}, {parts}, {hidden}], "
            f"extra [{extras}, {hidden}], mask [{batch}, {hidden}] and lengths [{batch}]"
        )
    return expected_kind(inputs, (recurrent, state, extra, mask), lengths)


def forward(
    inputs: Tensor,
    recurrent: Tensor,
    state: Tensor,
    extra: _Optional,
    mask: _Optional,
    lengths: _Optional,
    kind: str,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel; the last output is what the backward pass needs, empty without `save`."""
    out, new_state, saved = _forward_shapes(inputs, recurrent, state, kind, save)
    sizes = _sizes(out, recurrent, kind)
    library.call(
        "cell_recurrence_forward",
        [out, new_state, saved, _workspace(out, sizes, False)],
        [inputs, recurrent, state, extra, mask, lengths],
        sizes,
    )
    return out, new_state, saved


def _sizes(out: Tensor, recurrent: Tensor, kind: str) -> list[int]:
    return [*out.shape, len(recurrent), _NUMBERS[kind]]


def _workspace(like: Tensor, sizes: list[int], backward: bool) -> Tensor:
    return library.workspace("cell_recurrence_workspace", like, [*sizes, backward])


def _forward_shapes(
    inputs: Tensor, recurrent: Tensor, state: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _, hidden = inputs.shape
    kind, save = rest[-2:]
    saved = (batch, length, CELL_KINDS[kind].saved, hidden) if save else (0,)
    return (
        inputs.new_empty(batch, length, hidden),
        inputs.new_empty(state.shape),
        inputs.new_empty(saved),
    )


def _backward(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    saved: Tensor,
    recurrent: Tensor,
    state: Tensor,
    extra: _Optional,
    mask: _Optional,
    lengths: _Optional,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, hidden = out.shape
    grad_inputs = out.new_empty(batch, length, CELL_KINDS[kind].gates, hidden)
    grad_state = torch.empty_like(state)
    sizes = _sizes(out, recurrent, kind)
    library.call(
        "cell_recurrence_backward",
        [grad_inputs, grad_state, _workspace(out, sizes, True)],
        [grad_out, grad_new_state, out, saved, recurrent, state, extra, mask, lengths],
        sizes,
    )
    seen = _before(state[:, :1], out)
    if mask is not None:
        seen = seen * mask.unsqueeze(1)
    grad_recurrent = _of_recurrent(grad_inputs, seen, saved, len(recurrent), kind)
    grad_extra = _of_extra(grad_inputs, state, out, saved, kind)
    return grad_inputs, grad_state, grad_recurrent, grad_extra


def _before(first: Tensor, following: Tensor) -> Tensor:
    """[B, L, H] shifted by one element: `first`, then all but the last."""
    return torch.cat([first, following[:, :-1]], 1)


def _of_recurrent(grads: Tensor, seen: Tensor, saved: Tensor, blocks: int, kind: str) -> Tensor:
    """The gradient of the recurrent matrices [N, G·S, S]."""
    size = grads.shape[-1] // blocks
    if "gru" in kind:
        gates, candidate, reset = grads[:, :, :-1], grads[:, :, -1:], saved[:, :, :1]
        # n = tanh(x + r ⊙ U h₋), or tanh(x + U (r ⊙ h₋)): r multiplies one factor or the other.
        if "after" in kind:
            pairs = [(gates, seen), (candidate * reset, seen)]
        else:
            pairs = [(gates, seen), (candidate, seen * reset.squeeze(2))]
    else:
        pairs = [(grads, seen)]
    made = [_product(grad, read, blocks, size) for grad, read in pairs]
    return torch.cat(made, 1) if len(made) > 1 else made[0]


def _product(grads: Tensor, read: Tensor, blocks: int, size: int) -> Tensor:
    """Σ over rows and elements of grads [B, L, G, H] ⊗ read [B, L, H], block by block."""
    elements, gates = grads.shape[0] * grads.shape[1], grads.shape[2]
    if blocks == 1:
        across = grads.flatten(2).reshape(elements, gates * size)
        return (across.mT @ read.reshape(elements, size)).unsqueeze(0)
    across = grads.reshape(elements, gates, blocks, size)
    product = torch.einsum("egno,ens->ngos", across, read.reshape(elements, blocks, size))
    return product.reshape(blocks, gates * size, size)


def _of_extra(grads: Tensor, state: Tensor, out: Tensor, saved: Tensor, kind: str) -> Tensor:
    """The gradient of peepholes, inner bias, step size or modReLU's bias; empty if there is none.

    The mask of linear units has no gradient: zeros.
    """
    if kind == "peephole_lstm":
        cell = saved[:, :, 4]
        before = _before(state[:, 1:2], cell)
        pairs = ((0, before), (1, before), (3, cell))
        return torch.stack([(grads[:, :, gate] * seen).sum((0, 1)) for gate, seen in pairs])
    if "after" in kind:
        return (grads[:, :, 2] * saved[:, :, 0]).sum((0, 1)).unsqueeze(0)
    if kind == "euler":
        return (grads[:, :, 0] * saved[:, :, 0]).sum((0, 1)).unsqueeze(0)
    if kind == "rnn_modrelu":
        return (grads[:, :, 0] * out.sign()).sum((0, 1)).unsqueeze(0)
    if kind.endswith("memory"):
        return grads.new_zeros(1, grads.shape[-1])
    return grads.new_empty(0)


def _backward_shapes(
    grad_out: _Optional,
    grad_new_state: _Optional,
    out: Tensor,
    saved: Tensor,
    recurrent: Tensor,
    state: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, hidden = out.shape
    gates, extras = CELL_KINDS[rest[-1]].gates, CELL_KINDS[rest[-1]].extras
    return (
        out.new_empty(batch, length, gates, hidden),
        out.new_empty(state.shape),
        out.new_empty(recurrent.shape),
        out.new_empty((extras, hidden) if extras else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    given, *tensors, ctx.kind, ctx.saved = inputs
    save_or_recompute(ctx, given, tensors, output)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_new_state: _Optional, _: _Optional
) -> tuple[_Optional, ...]:
    recurrent, state, extra, mask, lengths, out, saved, given = ctx.saved_tensors
    tensors = (recurrent, state, extra, mask, lengths)
    if not ctx.saved:
        saved = operation(given, *tensors, ctx.kind, True)[2]
    grad_inputs, grad_state, grad_recurrent, grad_extra = backward(
        grad_out, grad_new_state, out, saved, *tensors, ctx.kind
    )
    of_extra = None if extra is None else grad_extra
    return grad_inputs, grad_recurrent, grad_state, of_extra, None, None, None, None


_TENSORS = "Tensor recurrent, Tensor state, Tensor? extra, Tensor? mask, Tensor? lengths"

operation = define(
    f"cell_recurrence(Tensor inputs, {_TENSORS}, str kind, bool save) -> (Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "cell_recurrence_backward(Tensor? grad_out, Tensor? grad_new_state, Tensor out, Tensor saved,"
    f" {_TENSORS}, str kind) -> (Tensor, Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("cell_recurrence", save=_save, backward=_differentiate)
differentiate_once("cell_recurrence_backward", use="a nonlinear cell")


def run(
    kind: str,
    inputs: Tensor,
    recurrent: Tensor,
    state: Tensor,
    extra: _Optional,
    mask: _Optional,
    lengths: _Optional,
) -> tuple[Tensor, Tensor]:
    """The hidden states and the last parts."""
    given = (inputs, recurrent, state, extra, mask, lengths)
    out, state, _ = operation(*given, kind, needs_saving(*given))
    return out, state


# For one element, packing the matrices costs more than it saves.
register_kernel("cell_recurrence", "cpu", run, shortest=2)
