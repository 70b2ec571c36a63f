"""∂U = Σ_t ∂a_t ⊗ h_{t−1}: the loop of a nonlinear cell as a torch operation on the native kernel.

The kernel gives the gradients of the gates' inputs; those of the recurrent matrices are one product
of them with all hidden states, computed by torch. Shapes are checked in `ops`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import CELL_RECURRENCE, CELL_RECURRENCE_BACKWARD
from threefold.kernels.dispatch import needs_saving, register_kernel
from threefold.kernels.registration import NativeOperation, derive


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
    hidden, blocks = inputs.shape[3], recurrent.shape[0]
    size = hidden // blocks if blocks else 0
    parts_fit = state.dim() == 3 and state.shape[1] == parts
    extra_fits = extra is None if extras == 0 else extra is not None and len(extra) == extras
    fits = size * blocks == hidden and recurrent.shape[1:] == (gates * size, size)
    if not (fits and parts_fit and extra_fits):
        batch = inputs.shape[0]
        return (
            f"recurrent [N, {gates}·S, S] with N·S = {hidden}, state [{batch}, {parts}, {hidden}], "
            f"extra [{extras}, {hidden}], mask [{batch}, {hidden}] and lengths [{batch}]"
        )
    return CELL_RECURRENCE.expected(inputs, recurrent, state, extra, mask, lengths)


def _of_kind(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    kind = CELL_KINDS[given["kind"]]
    return {
        "kind": _NUMBERS[given["kind"]],
        "gates": kind.gates,
        "numbers": kind.saved,
        "backward": "out" in given,
    }


def _of_matrices(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The gradients of the recurrent matrices and of `extra`."""
    grads, kind, recurrent = values["grad_inputs"], values["kind"], values["recurrent"]
    state, out, saved, mask = values["state"], values["out"], values["kept"], values["mask"]
    seen = _before(state[:, :1], out)
    if mask is not None:
        seen = seen * mask.unsqueeze(1)
    found = {"grad_recurrent": _of_recurrent(grads, seen, saved, len(recurrent), kind)}
    if values["extra"] is not None:
        found["grad_extra"] = _of_extra(grads, state, out, saved, kind)
    return found


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


_forward = NativeOperation(CELL_RECURRENCE, add_sizes=_of_kind)
_backward = NativeOperation(CELL_RECURRENCE_BACKWARD, add_sizes=_of_kind)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="a nonlinear cell", finish=_of_matrices)


def run(
    kind: str,
    inputs: Tensor,
    recurrent: Tensor,
    state: Tensor,
    extra: Tensor | None,
    mask: Tensor | None,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The hidden states and the last parts."""
    given = (inputs, recurrent, state, extra, mask, lengths)
    out, state, _ = operation(*given, kind, needs_saving(*given))
    return out, state


# For one element, packing the matrices costs more than it saves.
register_kernel("cell_recurrence", "cpu", run, shortest=2)
