"""op(inputs) = native(inputs) where there is a native kernel for them, else reference(inputs)

The only door to the kernels: shapes are checked here, and native or reference is chosen here.
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
from threefold.kernels import library, reference
from threefold.kernels import linear as _linear
from threefold.kernels import reservoir as _reservoir
from threefold.kernels import rms_norm as _rms_norm
from threefold.kernels import selective_scan as _selective_scan
from threefold.kernels import short_convolution as _short_convolution
from threefold.kernels import token_shift as _token_shift
from threefold.kernels.checks import check_lengths as _check_lengths
from threefold.kernels.checks import refuse as _refuse
from threefold.kernels.dispatch import direct as _direct
from threefold.kernels.dispatch import native as _native
from threefold.kernels.filter_ops import cauchy as cauchy
from threefold.kernels.filter_ops import long_convolution as long_convolution
from threefold.kernels.filter_ops import moments as moments
from threefold.kernels.filter_ops import online_filter as online_filter
from threefold.kernels.filter_ops import vandermonde as vandermonde
from threefold.kernels.replay import program as _program

# The operations that have a native kernel.
NATIVE = (
    "short_convolution",
    "linear",
    "rms_norm",
    "token_shift",
    "selective_scan",
    "decay_recurrence",
    "delta_recurrence",
    "cell_recurrence",
    "legs_recurrence",
    "diagonal_recurrence",
    "long_convolution",
    "online_convolution",
    "vandermonde",
    "reservoir",
    "cauchy",
)


def available() -> dict[str, str]:
    """What float32 and float64 on the CPU run for each operation: native or reference."""
    kind = "reference" if library.current().native is None else "native"
    return dict.fromkeys(NATIVE, kind)


def runs_programs(x: Tensor) -> bool:
    """Whether one element x [B, 1, width] may be taken through `kernels/replay/program.py`."""
    return (
        _program.serves(len(x))
        and _native(x)
        and _direct(x)
        and not torch.is_autocast_enabled("cpu")
    )


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Causal convolution of each channel by itself, `y_t = bias + Σ_k weight_k · x_{t−K+1+k}`.

    x `[B, L, D]`, weight `[D, K]` (its last column multiplies the present element), bias `[D]`;
    state `[B, K−1, D]` is the K−1 inputs before x, zeros if None. lengths `[B]` (int64) says how
    many elements of each row are real: the others are not read, and y is 0 there. `silu` applies
    SiLU to y. Gives y `[B, L, D]` and the new state, the last K−1 real inputs.
    """
    expected = _short_convolution.expected(x, weight, bias, state, lengths)
    if expected:
        given = {"x": x, "weight": weight, "bias": bias, "state": state, "lengths": lengths}
        _refuse("short_convolution", expected, given)
    length, taps = x.shape[1], weight.shape[1]
    if not _native(x) or taps > _short_convolution.MOST_TAPS:
        _check_lengths(lengths, length)
        return reference.short_convolution(x, weight, bias, state, lengths, silu=silu)
    run = _short_convolution.operation
    if length == 1 and _direct(x, weight, bias, state, lengths):
        run = _short_convolution.forward
    return run(x, weight, bias, state, lengths, silu)  # type: ignore[no-any-return]


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
    `[B, D, N]`, zeros if None. Δ is delta + delta_bias, then its softplus if asked; `hold` writes
    `(exp(ΔA) − 1)/A · B x` instead of Δ B x. lengths `[B]` (int64) says how many elements of each
    row are real: the others are not read, and y is 0 there. Slices of wider tensors are read as
    they lie. Gives y `[B, L, D]` and the new state. Where there is no native kernel for the inputs
    the answer is `otherwise()`: the definition, in plain torch, belongs to `memory`.
    """
    given = (x, delta, A, B, C, D, gate, delta_bias, state, lengths)
    expected = _selective_scan.expected(*given)
    if expected:
        names = ("x", "delta", "A", "B", "C", "D", "gate", "delta_bias", "state", "lengths")
        _refuse("selective_scan", expected, dict(zip(names, given, strict=True)))
    if not _native(x):
        _check_lengths(lengths, x.shape[1])
        return otherwise()
    if x.shape[1] == 1 and lengths is None and _direct(*given):
        return _selective_scan.step(*given[:-1], softplus, hold)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    y, new_state, _ = _selective_scan.operation(*given, softplus, hold, keep)
    return y, new_state


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = x Wᵀ + bias` along the last axis: x `[…, I]`, weight `[O, I]`, bias `[O]`.

    A few rows without gradients run native: the same bits for a row whatever the others are, and
    bfloat16 weights summed in float32. They go with bfloat16 x, or with float32 x and then y.
    """
    if _direct(x) and x.is_cpu and not torch.is_autocast_enabled("cpu"):
        y = _linear.forward(x, weight, bias)
        if y is not None:
            return y
    expected = _linear.expected(x, weight, bias)
    if expected:
        _refuse("linear", expected, {"x": x, "weight": weight, "bias": bias})
    return reference.linear(x, weight, bias)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float = 1e-5,
    gate_first: bool = False,
) -> Tensor:
    """`y = x / √(mean(x²) + eps) ⊙ weight ⊙ silu(gate)` along the last axis, in x's dtype.

    x and gate `[…, D]`, weight `[D]` or `[G, D]` for x `[…, G, D]`; both optional. `gate_first`
    multiplies x with silu(gate) before it is measured (Mamba-2). Right also where x² overflows.
    """
    expected = _rms_norm.expected(x, weight, gate)
    if expected:
        _refuse("rms_norm", expected, {"x": x, "weight": weight, "gate": gate})
    alike = all(t is None or (t.dtype == x.dtype and t.device == x.device) for t in (weight, gate))
    if not alike or not _native(x):
        return reference.rms_norm(x, weight, gate, eps=eps, gate_first=gate_first)
    run = _rms_norm.forward if _direct(x) else _rms_norm.operation
    y: Tensor = run(x, weight, gate, eps, gate_first)
    return y


def token_shift(
    x: Tensor, shares: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """N mixtures of each element and the one before it, `y_n = x + (x₋ − x) ⊙ share_n`.

    x `[B, L, D]`, shares `[N, D]`, state `[B, D]` the element before x (zeros if None), lengths
    `[B]` as in `short_convolution`. Gives y `[N, B, L, D]` and the last real element.
    """
    expected = _token_shift.expected(x, shares, state, lengths)
    if expected:
        given = {"x": x, "shares": shares, "state": state, "lengths": lengths}
        _refuse("token_shift", expected, given)
    if not _native(x):
        _check_lengths(lengths, x.shape[1])
        return reference.token_shift(x, shares, state, lengths)
    run = _token_shift.forward if _direct(x) else _token_shift.operation
    mixtures, last = run(x, shares, state, lengths)
    return mixtures, last


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

    Elsewhere `otherwise()` is what runs, the same in plain torch. Layouts are those of
    `threefold.linear_recurrence`, all of one dtype; write and read are its rank_one. lengths `[B]`
    (int64) says how many elements of each row are real: the others are not read, and the output is
    0 there. `check()` raises if a log-decay is above 0; it runs only where no kernel sees that
    itself. Gives out `[B, L, H, V]` and the new state `[B, H, K, V]`.
    """
    native = _native(value) and 0 not in value.shape[1:] and 0 not in key.shape[2:]
    decays_only = strength is None and write is None and read is None
    if native and decays_only and (bonus is None or log_decay_value is None):
        decaying = _decay_recurrence.DecayInputs(
            query, key, value, log_decay, log_decay_value, bonus, state, lengths
        )
        expected = decaying.expected()
        if expected:
            _refuse("linear_recurrence", expected, decaying._asdict())
        direct = value.shape[1] == 1 and _direct(*decaying)
        return _decay_recurrence.run(decaying, check, direct=direct)
    if check is not None:
        check()
    erases = strength is not None or (write is not None and read is not None)
    if native and erases and log_decay_value is None and bonus is None:
        erasing = _delta_recurrence.DeltaInputs(
            query, key, value, log_decay, strength, write, read, state, lengths
        )
        expected = erasing.expected()
        if expected:
            _refuse("linear_recurrence", expected, erasing._asdict())
        direct = value.shape[1] == 1 and _direct(*erasing)
        return _delta_recurrence.run(erasing, direct=direct)
    return otherwise()


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
    lengths `[B]` (int64) says how many elements of each row are real: the others are not read, and
    the output is 0 there. Gives the hidden states `[B, L, H]` and the parts after the last element.
    """
    # One element is not worth the packing of the matrices.
    if not _native(inputs) or inputs.shape[1] == 1:
        return otherwise()
    state = torch.stack(parts, 1)
    given = (inputs, recurrent, state, extra, mask, lengths)
    expected = _cell_recurrence.expected(kind, *given)
    if expected:
        names = ("inputs", "recurrent", "state", "extra", "mask", "lengths")
        _refuse(kind, expected, dict(zip(names, given, strict=True)))
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    out, state, _ = _cell_recurrence.operation(*given, kind, keep)
    return out, state.unbind(1)


def legs_recurrence(
    *given: Any, otherwise: Callable[[], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gated units beside LegS's projections: `memory/coupled.py`; native/operations.h has shapes.

    Given inputs, matrix, say, state [h; c], position and lengths: all h, the last h, the last c.
    """
    if not _native(given[0]) or given[0].shape[1] == 1:
        return otherwise()
    expected = _legs_recurrence.expected(*given)
    if expected:
        names = ("inputs", "matrix", "say", "state", "position", "lengths")
        _refuse("legs_recurrence", expected, dict(zip(names, given, strict=True)))
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    out, state, _ = _legs_recurrence.operation(*given, keep)
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
    """`h = decay ⊙ h₋ + write`, every channel by itself; `memory/linear/diagonal.py` has shapes.

    Gives all h, 0 behind the end of a row, and the last. Where there is no native kernel for the
    inputs the answer is `otherwise()`.
    """
    if not _native(write):
        return otherwise()
    expected = _diagonal_recurrence.expected(decay, write, state, lengths)
    if expected:
        given = {"decay": decay, "write": write, "state": state, "lengths": lengths}
        _refuse("diagonal_recurrence", expected, given)
    run = _diagonal_recurrence.operation
    if write.shape[1] == 1 and _direct(decay, write, state, lengths):
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
    """A leaky sparse reservoir, not learned: `memory/reservoir.py` has the shapes."""
    # A gradient of the weights is the reference's; the kernel has none.
    if not _native(drive) or (torch.is_grad_enabled() and weight.values.requires_grad):
        return otherwise()
    expected = _reservoir.expected(drive, weight, state, lengths)
    if expected:
        given = {"drive": drive, "weight": weight.values, "state": state, "lengths": lengths}
        _refuse("reservoir", expected, given)
    keep = torch.is_grad_enabled() and (drive.requires_grad or state.requires_grad)
    run = _reservoir.forward if _direct(drive, *weight, state) else _reservoir.operation
    out, state, _ = run(drive, *weight, state, lengths, activation, leak, keep)
    return out, state
