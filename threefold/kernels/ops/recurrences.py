"""Recurrences: the linear memory, Mamba's scan, diagonal recurrences, nonlinear cells, reservoirs.

Their definitions in plain torch belong to `memory`, which runs them where an operation returns
None: no kernel serves the device, dtype, form or options.  Only spiking neurons have no memory of
their own there: their definition is in `kernels/spiking_reservoir.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import cell_recurrence as _cell_recurrence
from threefold.kernels import diagonal_recurrence as _diagonal_recurrence
from threefold.kernels import legs_recurrence as _legs_recurrence
from threefold.kernels import reservoir as _reservoir
from threefold.kernels import selective_scan as _selective_scan
from threefold.kernels import spiking_reservoir as _spiking_reservoir
from threefold.kernels.checks import check_lengths, refuse
from threefold.kernels.decay_recurrence import DecayInputs
from threefold.kernels.delta_recurrence import DeltaInputs
from threefold.kernels.dispatch import kernel_for


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
    form: str = "chunk",
) -> tuple[Tensor, Tensor] | None:
    """Mamba's scan: `S = exp(ΔA) ⊙ S₋ + Δ B x`, `y = (C·S + D x)·silu(gate)`.

    x, delta, gate `[B, L, D]`, A `[D, N]`, B, C `[B, L, N]`, D and delta_bias `[D]`, state
    `[B, D, N]`, zeros if None. Δ is delta + delta_bias, then its softplus if `softplus`; `hold`
    writes `(exp(ΔA) − 1)/A · B x` instead of Δ B x. lengths `[B]` (int64) is the number of real
    elements in each row: the others are not read, and y is 0 there. Slices of wider tensors are
    read without a copy. Returns y `[B, L, D]` and the new state, or None where no kernel serves.
    """
    run = kernel_for("selective_scan", x, form=form)
    if run is None:
        check_lengths(lengths, x.shape[1])
        return None
    inputs = (x, delta, A, B, C, D, gate, delta_bias, state)
    expected = _selective_scan.expected(*inputs, lengths)
    if expected:
        names = ("x", "delta", "A", "B", "C", "D", "gate", "delta_bias", "state", "lengths")
        refuse("selective_scan", expected, dict(zip(names, (*inputs, lengths), strict=True)))
    return run(inputs, lengths, softplus, hold)  # type: ignore[no-any-return]


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
    form: str = "chunk",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor] | None:
    """The linear memory, by a kernel; None where none serves these arguments.

    Layouts are those of `threefold.linear_recurrence`, all of one dtype; write and read are its
    rank_one. lengths `[B]` (int64) is the number of real elements in each row: the others are not
    read, and the output is 0 there. `check()` raises if a log-decay is above 0; it runs where the
    kernel does not check that itself. Returns out `[B, L, H, V]` and the new state `[B, H, K, V]`.
    """
    if 0 in value.shape[1:] or 0 in key.shape[2:]:
        return None
    decays_only = strength is None and write is None and read is None
    if decays_only and (bonus is None or log_decay_value is None):
        run = kernel_for("decay_recurrence", value, form=form, chunk=chunk)
        decaying = DecayInputs(query, key, value, log_decay, log_decay_value, bonus, state, lengths)
        return None if run is None else run(_checked(decaying), check)
    erases = strength is not None or (write is not None and read is not None)
    if not erases or log_decay_value is not None or bonus is not None:
        return None
    run = kernel_for("delta_recurrence", value, form=form, chunk=chunk)
    if run is None:
        return None
    if check is not None:
        check()
    erasing = DeltaInputs(query, key, value, log_decay, strength, write, read, state, lengths)
    return run(_checked(erasing))  # type: ignore[no-any-return]


def _checked(inputs: Any) -> Any:
    """The inputs of a linear recurrence, if their shapes fit each other."""
    expected = inputs.expected()
    if expected:
        refuse("linear_recurrence", expected, inputs._asdict())
    return inputs


def cell_recurrence(
    kind: str,
    inputs: Tensor,
    recurrent: Tensor,
    extra: Tensor | None,
    mask: Tensor | None,
    *,
    parts: tuple[Tensor, ...],
    lengths: Tensor | None,
    form: str = "chunk",
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The loop of a nonlinear cell, by a kernel; None where none serves it: `memory/cell.py`.

    kind: the kernel's name of the cell; empty if it has none. inputs `[B, L, G, H]`, recurrent
    `[N, G·S, S]`, extra `[E, H]`, mask and each part `[B, H]`. lengths `[B]` (int64) is the number
    of real elements in each row: the others are not read, and the output is 0 there. Returns the
    hidden states `[B, L, H]` and the last parts.
    """
    run = kernel_for("cell_recurrence", inputs, form=form) if kind else None
    if run is None:
        return None
    given = (inputs, recurrent, torch.stack(parts, 1), extra, mask, lengths)
    expected = _cell_recurrence.expected(kind, *given)
    if expected:
        names = ("inputs", "recurrent", "state", "extra", "mask", "lengths")
        refuse(kind, expected, dict(zip(names, given, strict=True)))
    out, state = run(kind, *given)
    return out, state.unbind(1)


def legs_recurrence(*given: Any, form: str = "chunk") -> tuple[Tensor, Tensor, Tensor] | None:
    """Gated units coupled with LegS's projections; None where no kernel serves.

    Takes inputs, matrix, say, state [h; c], position and lengths, with the shapes of
    native/operations.h (`memory/coupled.py`). Returns all h, the last h and the last c.
    """
    run = kernel_for("legs_recurrence", given[0], form=form)
    if run is None:
        return None
    expected = _legs_recurrence.expected(*given)
    if expected:
        names = ("inputs", "matrix", "say", "state", "position", "lengths")
        refuse("legs_recurrence", expected, dict(zip(names, given, strict=True)))
    out, state = run(*given)
    hidden = given[0].shape[3]
    return out[..., :hidden], state[:, :hidden], state[:, hidden:]


def diagonal_recurrence(
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    lengths: Tensor | None,
    *,
    form: str = "chunk",
) -> tuple[Tensor, Tensor] | None:
    """`h = decay ⊙ h₋ + write` in each channel; shapes as in `memory/linear/diagonal.py`.

    Returns all h, 0 after the end of a row, and the last, or None where no kernel serves.
    """
    run = kernel_for("diagonal_recurrence", write, form=form)
    if run is None:
        return None
    expected = _diagonal_recurrence.expected(decay, write, state, lengths)
    if expected:
        given = {"decay": decay, "write": write, "state": state, "lengths": lengths}
        refuse("diagonal_recurrence", expected, given)
    return run(decay, write, state, lengths)  # type: ignore[no-any-return]


def reservoir(
    drive: Tensor,
    weight: _reservoir.Sparse,
    state: Tensor,
    lengths: Tensor | None,
    *,
    activation: str,
    leak: float,
    form: str = "chunk",
) -> tuple[Tensor, Tensor] | None:
    """A leaky sparse reservoir with fixed weights; None where no kernel serves.

    Shapes as in `memory/reservoir.py`.
    """
    run = kernel_for("reservoir", drive, form=form)
    # The kernel has no gradient with respect to the weights; plain torch has.
    if run is None or (torch.is_grad_enabled() and weight.values.requires_grad):
        return None
    expected = _reservoir.expected(drive, weight, state, lengths)
    if expected:
        given = {"drive": drive, "weight": weight.values, "state": state, "lengths": lengths}
        refuse("reservoir", expected, given)
    return run(drive, weight, state, lengths, activation, leak)  # type: ignore[no-any-return]


def spiking_reservoir(
    drive: Tensor,
    wiring: _spiking_reservoir.SpikingWiring,
    state: _spiking_reservoir.SpikingState,
    constants: _spiking_reservoir.SpikingConstants,
    *,
    synaptic: bool = False,
    dynamic: bool = False,
) -> tuple[Tensor, Tensor, _spiking_reservoir.SpikingState]:
    """Traces (filtered spikes) and spikes of integrate-and-fire neurons, and the state after them.

    drive [B, L, N] is a current, or with `synaptic` is added to the excitatory synaptic current;
    `dynamic`: the efficacy of a synapse follows the spikes before.  There are no gradients.
    """
    expected = _spiking_reservoir.expected(drive, wiring, state, dynamic)
    if expected:
        given = {"drive": drive, "weights": wiring.weights, "delays": wiring.delays, **state}
        refuse("spiking_reservoir", expected, given)
    plain = _spiking_reservoir.plain_spiking_reservoir
    run = kernel_for("spiking_reservoir", drive) or plain
    return run(drive, wiring, state, constants, synaptic, dynamic)
