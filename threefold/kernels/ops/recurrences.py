"""Recurrences: the linear memory, Mamba's scan, diagonal recurrences, nonlinear cells, reservoirs.

Their definitions in plain torch belong to `memory`, which passes them as `otherwise`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import cell_recurrence as _cell_recurrence
from threefold.kernels import decay_recurrence as _decay_recurrence
from threefold.kernels import delta_recurrence as _delta_recurrence
from threefold.kernels import diagonal_recurrence as _diagonal_recurrence
from threefold.kernels import legs_recurrence as _legs_recurrence
from threefold.kernels import reservoir as _reservoir
from threefold.kernels import selective_scan as _selective_scan
from threefold.kernels.checks import check_lengths, refuse
from threefold.kernels.dispatch import has_kernel, may_call_directly


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    softplus: bool = False,
    hold: bool = False,
    state: Tensor | None = None,
    lengths: Tensor | None = None,
    otherwise: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Mamba's scan: `S = exp(ΔA) ⊙ S₋ + Δ B x`, `y = (C·S + D x)·silu(gate)`.

    x, delta, gate `[B, L, D]`, A `[D, N]`, B, C `[B, L, N]`, D and delta_bias `[D]`, state
    `[B, D, N]`, zeros if None. Δ is delta + delta_bias, then its softplus if `softplus`; `hold`
    writes `(exp(ΔA) − 1)/A · B x` instead of Δ B x. lengths `[B]` (int64) is the number of real
    elements in each row: the others are not read, and y is 0 there. Slices of wider tensors are
    read without a copy. Returns y `[B, L, D]` and the new state, or `otherwise()` where there is no
    native kernel for the inputs.
    """
    given = (x, delta, A, B, C, D, gate, delta_bias, state, lengths)
    expected = _selective_scan.expected(*given)
    if expected:
        names = ("x", "delta", "A", "B", "C", "D", "gate", "delta_bias", "state", "lengths")
        refuse("selective_scan", expected, dict(zip(names, given, strict=True)))
    if not has_kernel(x):
        check_lengths(lengths, x.shape[1])
        return otherwise()
    if x.shape[1] == 1 and lengths is None and may_call_directly(*given):
        return _selective_scan.step(*given[:-1], softplus, hold)
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    y, new_state, _ = _selective_scan.operation(*given, softplus, hold, save)
    return y, new_state


def linear_recurrence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor | None,
    *,
    log_decay: Tensor | None = None,
    log_decay_value: Tensor | None = None,
    strength: Tensor | None = None,
    write: Tensor | None = None,
    read: Tensor | None = None,
    bonus: Tensor | None = None,
    lengths: Tensor | None = None,
    check: Callable[[], None] | None = None,
    otherwise: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """The linear memory, by a native kernel where there is one for these arguments.

    Elsewhere `otherwise()` runs, the same in plain torch. Layouts are those of
    `threefold.linear_recurrence`, all of one dtype; write and read are its rank_one. lengths `[B]`
    (int64) is the number of real elements in each row: the others are not read, and the output is
    0 there. `check()` raises if a log-decay is above 0; it runs only where the kernel does not
    check that itself. Returns out `[B, L, H, V]` and the new state `[B, H, K, V]`.
    """
    native = has_kernel(value) and 0 not in value.shape[1:] and 0 not in key.shape[2:]
    decays_only = strength is None and write is None and read is None
    if native and decays_only and (bonus is None or log_decay_value is None):
        decaying = _decay_recurrence.DecayInputs(
            query, key, value, log_decay, log_decay_value, bonus, state, lengths
        )
        return _decay_recurrence.run(decaying, check, direct=_checked_direct(decaying))
    if check is not None:
        check()
    erases = strength is not None or (write is not None and read is not None)
    if native and erases and log_decay_value is None and bonus is None:
        erasing = _delta_recurrence.DeltaInputs(
            query, key, value, log_decay, strength, write, read, state, lengths
        )
        return _delta_recurrence.run(erasing, direct=_checked_direct(erasing))
    return otherwise()


def _checked_direct(inputs: _decay_recurrence.DecayInputs | _delta_recurrence.DeltaInputs) -> bool:
    """Check the shapes of the inputs; whether the kernel may be called without the dispatcher."""
    expected = inputs.expected()
    if expected:
        refuse("linear_recurrence", expected, inputs._asdict())
    return inputs.value.shape[1] == 1 and may_call_directly(*inputs)


def cell_recurrence(
    kind: str,
    inputs: Tensor,
    recurrent: Tensor,
    extra: Tensor | None,
    mask: Tensor | None,
    *,
    parts: tuple[Tensor, ...],
    lengths: Tensor | None,
    otherwise: Callable[[], tuple[Tensor, tuple[Tensor, ...]]],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loop of a nonlinear cell, by a native kernel where there is one: `memory/cell.py`.

    inputs `[B, L, G, H]`, recurrent `[N, G·S, S]`, extra `[E, H]`, mask and each part `[B, H]`.
    lengths `[B]` (int64) is the number of real elements in each row: the others are not read, and
    the output is 0 there. Returns the hidden states `[B, L, H]` and the last parts.
    """
    # For one element, packing the matrices costs more than it saves.
    if not has_kernel(inputs) or inputs.shape[1] == 1:
        return otherwise()
    state = torch.stack(parts, 1)
    given = (inputs, recurrent, state, extra, mask, lengths)
    expected = _cell_recurrence.expected(kind, *given)
    if expected:
        names = ("inputs", "recurrent", "state", "extra", "mask", "lengths")
        refuse(kind, expected, dict(zip(names, given, strict=True)))
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    out, state, _ = _cell_recurrence.operation(*given, kind, save)
    return out, state.unbind(1)


def legs_recurrence(
    *given: Any, otherwise: Callable[[], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gated units coupled with LegS's projections, as in `memory/coupled.py`.

    Takes inputs, matrix, say, state [h; c], position and lengths, with the shapes of
    native/operations.h. Returns all h, the last h and the last c.
    """
    if not has_kernel(given[0]) or given[0].shape[1] == 1:
        return otherwise()
    expected = _legs_recurrence.expected(*given)
    if expected:
        names = ("inputs", "matrix", "say", "state", "position", "lengths")
        refuse("legs_recurrence", expected, dict(zip(names, given, strict=True)))
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    out, state, _ = _legs_recurrence.operation(*given, save)
    hidden = given[0].shape[3]
    return out[..., :hidden], state[:, :hidden], state[:, hidden:]


def diagonal_recurrence(
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    lengths: Tensor | None,
    *,
    otherwise: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """`h = decay ⊙ h₋ + write` in each channel; shapes as in `memory/linear/diagonal.py`.

    Returns all h, 0 after the end of a row, and the last, or `otherwise()` where there is no native
    kernel for the inputs.
    """
    if not has_kernel(write):
        return otherwise()
    expected = _diagonal_recurrence.expected(decay, write, state, lengths)
    if expected:
        given = {"decay": decay, "write": write, "state": state, "lengths": lengths}
        refuse("diagonal_recurrence", expected, given)
    run = _diagonal_recurrence.operation
    if write.shape[1] == 1 and may_call_directly(decay, write, state, lengths):
        run = _diagonal_recurrence.forward
    return run(decay, write, state, lengths)  # type: ignore[no-any-return]


def reservoir(
    drive: Tensor,
    weight: _reservoir.Sparse,
    state: Tensor,
    lengths: Tensor | None,
    *,
    activation: str,
    leak: float,
    otherwise: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """A leaky sparse reservoir with fixed weights; shapes as in `memory/reservoir.py`."""
    # The kernel has no gradient with respect to the weights; plain torch has.
    if not has_kernel(drive) or (torch.is_grad_enabled() and weight.values.requires_grad):
        return otherwise()
    expected = _reservoir.expected(drive, weight, state, lengths)
    if expected:
        given = {"drive": drive, "weight": weight.values, "state": state, "lengths": lengths}
        refuse("reservoir", expected, given)
    save = torch.is_grad_enabled() and (drive.requires_grad or state.requires_grad)
    run = _reservoir.forward if may_call_directly(drive, *weight, state) else _reservoir.operation
    out, state, _ = run(drive, *weight, state, lengths, activation, leak, save)
    return out, state
