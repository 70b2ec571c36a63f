"""h_t = (1−α) h_{t−1} + α φ(x_t + W h_{t−1}): a fixed sparse reservoir as a torch operation.

W is not learned, so only the drive x and the state have gradients; Wᵀ is stored with W for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels.declaration import Sizes
from threefold.kernels.declarations import RESERVOIR, RESERVOIR_BACKWARD
from threefold.kernels.dispatch import may_call_directly, needs_saving, register_kernel
from threefold.kernels.registration import NativeOperation, derive

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


def expected(drive: Tensor, weight: Sparse, state: Tensor, lengths: Tensor | None) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    return RESERVOIR.expected(drive, *weight, state, lengths)


def _activation(given: Mapping[str, Any], sizes: Sizes) -> Mapping[str, Any]:
    return {"activation": ACTIVATIONS.index(given["activation"])}


def _transposed(values: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """Wᵀ, which the backward pass reads in place of W."""
    turned = values["values"][values["back"]]
    return {"values": turned, "columns": values["back_columns"], "starts": values["back_starts"]}


_forward = NativeOperation(RESERVOIR, add_sizes=_activation)
_backward = NativeOperation(RESERVOIR_BACKWARD, add_sizes=_activation)
operation, backward = _forward.dispatched, _backward.dispatched
derive(
    _forward,
    _backward,
    use="a reservoir",
    keeps=("back", "back_columns", "back_starts"),
    prepare=_transposed,
)


def run(
    drive: Tensor,
    weight: Sparse,
    state: Tensor,
    lengths: Tensor | None,
    activation: str,
    leak: float,
) -> tuple[Tensor, Tensor]:
    """All states and the last."""
    call = _forward.call if may_call_directly(drive, *weight, state) else operation
    save = needs_saving(drive, state)
    out, state, _ = call(drive, *weight, state, lengths, activation, leak, save)
    return out, state


register_kernel("reservoir", "cpu", run)
