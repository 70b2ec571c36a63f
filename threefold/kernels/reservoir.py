"""h_t = (1−α) h_{t−1} + α φ(x_t + W h_{t−1}): a fixed sparse reservoir as a torch operation.

W is not learned, so only the drive x and the state have gradients; Wᵀ is stored with W for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

_Optional = Tensor | None

# In the order of native/cell_kinds.h.
ACTIVATIONS = ("tanh", "relu", "sigmoid", "identity")


class Sparse(NamedTuple):
    """A square sparse matrix in CSR form, with the indices of its transpose."""

    values: Tensor  # [E]
    columns: Tensor  # [E] int32
    starts: Tensor  # [H+1] int64: row r is starts[r] … starts[r+1] − 1
    back: Tensor  # [E] int64: values[back] are the values of the transpose, by rows
    back_columns: Tensor
    back_starts: Tensor

    @property
    def rows(self) -> Tensor:
        """The row of each value, [E]."""
        counts = self.starts[1:] - self.starts[:-1]
        rows = torch.arange(len(counts), device=counts.device)
        return rows.repeat_interleave(counts, output_size=len(self.columns))


def sparse(dense: Tensor) -> Sparse:
    """A square matrix in sparse form."""
    rows, columns = dense.nonzero(as_tuple=True)
    back = torch.argsort(columns, stable=True)
    return Sparse(
        dense[rows, columns],
        columns.int(),
        _starts(rows, len(dense)),
        back,
        rows[back].int(),
        _starts(columns, len(dense)),
    )


def _starts(index: Tensor, size: int) -> Tensor:
    counts = torch.bincount(index, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def expected(drive: Tensor, weight: Sparse, state: Tensor, lengths: _Optional) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if drive.ndim != 3 or 0 in drive.shape[1:]:
        return "drive [B, L, H], none empty"
    batch, _, units = drive.shape
    if not (
        weight.starts.shape == weight.back_starts.shape == (units + 1,)
        and state.shape == (batch, units)
        and (lengths is None or lengths.shape == (batch,))
    ):
        return f"a weight of {units} rows, state [{batch}, {units}] and lengths [{batch}]"
    return expected_kind(drive, (weight.values, state), lengths)


def forward(
    drive: Tensor,
    values: Tensor,
    columns: Tensor,
    starts: Tensor,
    back: Tensor,
    back_columns: Tensor,
    back_starts: Tensor,
    state: Tensor,
    lengths: _Optional,
    activation: str,
    leak: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Call the kernel; the last output is what the backward pass needs, empty without `save`."""
    out, new_state, saved = _forward_shapes(drive, save)
    library.call(
        "reservoir_forward",
        [out, new_state, saved if save else None],
        [drive, values, columns, starts, state, lengths],
        [*drive.shape, ACTIVATIONS.index(activation)],
        [leak],
    )
    return out, new_state, saved


def _forward_shapes(drive: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, units = drive.shape
    saved = drive.new_empty(drive.shape if rest[-1] else 0)
    return drive.new_empty(drive.shape), drive.new_empty(batch, units), saved


def _backward(
    grad_out: _Optional,
    grad_new_state: _Optional,
    saved: Tensor,
    values: Tensor,
    columns: Tensor,
    starts: Tensor,
    lengths: _Optional,
    activation: str,
    leak: float,
) -> tuple[Tensor, Tensor]:
    grad_drive, grad_state = _backward_shapes(grad_out, grad_new_state, saved)
    library.call(
        "reservoir_backward",
        [grad_drive, grad_state],
        [grad_out, grad_new_state, saved, values, columns, starts, lengths],
        [*saved.shape, ACTIVATIONS.index(activation)],
        [leak],
    )
    return grad_drive, grad_state


def _backward_shapes(
    grad_out: _Optional, grad_new_state: _Optional, saved: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    return saved.new_empty(saved.shape), saved.new_empty(saved.shape[0], saved.shape[2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, values, _, _, back, columns, starts, _, lengths, ctx.activation, ctx.leak, ctx.saved = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[2])
    # What was not saved is recomputed from all inputs.
    again = () if ctx.saved else inputs[:-3]
    ctx.save_for_backward(output[2], values[back], columns, starts, lengths, *again)


def _differentiate(
    ctx: Any, grad_out: _Optional, grad_new_state: _Optional, _: _Optional
) -> tuple[_Optional, ...]:
    saved, values, columns, starts, lengths, *again = ctx.saved_tensors
    if not ctx.saved:
        saved = operation(*again, ctx.activation, ctx.leak, True)[2]
    grad_drive, grad_state = backward(
        grad_out, grad_new_state, saved, values, columns, starts, lengths, ctx.activation, ctx.leak
    )
    return grad_drive, *[None] * 6, grad_state, *[None] * 4


operation = define(
    "reservoir(Tensor drive, Tensor values, Tensor columns, Tensor starts, Tensor back,"
    " Tensor back_columns, Tensor back_starts, Tensor state, Tensor? lengths, str activation,"
    " float leak, bool save) -> (Tensor, Tensor, Tensor)",
    native=forward,
    shapes=_forward_shapes,
)
backward = define(
    "reservoir_backward(Tensor? grad_out, Tensor? grad_new_state, Tensor saved, Tensor values,"
    " Tensor columns, Tensor starts, Tensor? lengths, str activation, float leak)"
    " -> (Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("reservoir", save=_save, backward=_differentiate)
differentiate_once("reservoir_backward", use="a reservoir")


def run(
    drive: Tensor,
    weight: Sparse,
    state: Tensor,
    lengths: _Optional,
    activation: str,
    leak: float,
) -> tuple[Tensor, Tensor]:
    """All states and the last."""
    call = forward if may_call_directly(drive, *weight, state) else operation
    save = needs_saving(drive, state)
    out, state, _ = call(drive, *weight, state, lengths, activation, leak, save)
    return out, state


register_kernel("reservoir", "cpu", run)
