"""op(inputs) = native(inputs) where there is a native kernel for them, else reference(inputs)

The only door to the kernels: shapes are checked here, and native or reference is chosen here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import delta_recurrence as _delta_recurrence
from threefold.kernels import library, reference
from threefold.kernels import short_convolution as _short_convolution

# The operations that have a native kernel.
NATIVE = ("short_convolution", "delta_recurrence")


def available() -> dict[str, str]:
    """What float32 and float64 on the CPU run for each operation: native or reference."""
    kind = "reference" if library.current().native is None else "native"
    return dict.fromkeys(NATIVE, kind)


# Under torch.compile the answer is a constant of the graph.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _loaded() -> bool:
    return library.current().native is not None


def _native(x: Tensor) -> bool:
    """Whether a native kernel can take x: the one place where that is decided."""
    return x.device.type == "cpu" and x.dtype in library.SUFFIXES and _loaded()


def _direct(*tensors: Tensor | None) -> bool:
    """Whether the kernel may be called without torch's dispatcher, which takes longer than a step.

    Only for plain tensors: subclasses, transforms and compilation need the dispatcher.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
        and all(x is None or (type(x) is Tensor and not x.is_neg()) for x in tensors)
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
    expected = _expected_by_short_convolution(x, weight, bias, state, lengths)
    if expected:
        given = {"x": x, "weight": weight, "bias": bias, "state": state, "lengths": lengths}
        _refuse("short_convolution", expected, given)
    length, taps = x.shape[1], weight.shape[1]
    if not _native(x) or taps > _short_convolution.MOST_TAPS:
        _check_lengths(lengths, length)
        return reference.short_convolution(x, weight, bias, state, lengths, silu=silu)
    run = _short_convolution.operation
    if length == 1 and _direct(x):
        run = _short_convolution.forward
    return run(x, weight, bias, state, lengths, silu)  # type: ignore[no-any-return]


def _expected_by_short_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor | None, lengths: Tensor | None
) -> str | None:
    """What is wrong, said as what was expected; None if nothing is."""
    if x.ndim != 3 or weight.ndim != 2 or 0 in x.shape[1:] or 0 in weight.shape:
        return "x [B, L, D] and weight [D, K], none empty"
    batch, _, channels = x.shape
    filters, taps = weight.shape
    if not (
        filters == channels
        and (bias is None or bias.shape == (channels,))
        and (state is None or state.shape == (batch, taps - 1, channels))
        and (lengths is None or lengths.shape == (batch,))
    ):
        return (
            f"weight [{channels}, K], bias [{channels}], state [{batch}, {taps - 1}, {channels}] "
            f"and lengths [{batch}], the last three optional"
        )
    dtype, device = x.dtype, x.device
    if not dtype.is_floating_point:
        return "floating-point numbers"
    for tensor in (weight, bias, state):
        if tensor is not None and (tensor.dtype != dtype or tensor.device != device):
            return f"all of {dtype} on {device}, as x"
    if lengths is not None and (lengths.dtype != torch.int64 or lengths.device != device):
        return f"lengths of torch.int64 on {device}"
    return None


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
    otherwise: Callable[[], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """The linear memory, by a native kernel where there is one for these arguments.

    Elsewhere `otherwise()` is what runs, the same in plain torch. Layouts are those of
    `threefold.linear_recurrence`, all of one dtype; write and read are its rank_one. lengths `[B]`
    (int64) says how many elements of each row are real: the others are not read, and the output is
    0 there. Gives out `[B, L, H, V]` and the new state `[B, H, K, V]`.
    """
    if not _native(value) or 0 in value.shape[1:] or 0 in key.shape[2:]:
        return otherwise()
    erases = strength is not None or (write is not None and read is not None)
    if erases and log_decay_value is None and bonus is None:
        return _erase(
            _delta_recurrence.Inputs(
                query, key, value, log_decay, strength, write, read, state, lengths
            )
        )
    return otherwise()


def _erase(inputs: _delta_recurrence.Inputs) -> tuple[Tensor, Tensor]:
    expected = _expected_by_erasing(inputs)
    if expected:
        _refuse("linear_recurrence", expected, inputs._asdict())
    batch, length, heads, _ = inputs.value.shape
    log_decay = inputs.log_decay
    if log_decay is not None and log_decay.dim() == 1:
        inputs = inputs._replace(log_decay=log_decay.expand(batch, length, heads))
    if length == 1 and _direct(*inputs):
        out, state, *_ = _delta_recurrence.forward(*inputs, False)
    else:
        wanted = any(x is not None and x.requires_grad for x in inputs)
        out, state, *_ = _delta_recurrence.operation(*inputs, torch.is_grad_enabled() and wanted)
    return out, state


def _expected_by_erasing(inputs: _delta_recurrence.Inputs) -> str | None:
    """What is wrong, said as what was expected; None if nothing is."""
    query, key, value, log_decay, strength, write, read, state, lengths = inputs
    batch, length, heads, values = value.shape
    groups, keys = query.shape[2:]
    if groups == 0 or heads % groups or (strength is None) == (write is None):
        return "heads of query that divide those of value, and either strength or write and read"
    timed, sized = (batch, length, heads), (batch, length, heads, keys)
    for name, tensor, *shapes in (
        ("query", query, (batch, length, groups, keys)),
        ("key", key, query.shape),
        ("log_decay", log_decay, (heads,), timed, sized),
        ("strength", strength, timed),
        ("write", write, sized),
        ("read", read, sized),
        ("state", state, (batch, heads, keys, values)),
    ):
        if tensor is None:
            continue
        if tensor.shape not in shapes:
            return f"{name} {' or '.join(str(list(shape)) for shape in shapes)}"
        if tensor.dtype != value.dtype or tensor.device != value.device:
            return f"all of {value.dtype} on {value.device}, as value"
    if lengths is not None and (lengths.shape, lengths.dtype) != ((batch,), torch.int64):
        return f"lengths [{batch}] of torch.int64"
    return None


def _check_lengths(lengths: Tensor | None, length: int) -> None:
    """Refuse lengths outside 0 … L; the native kernels do it themselves."""
    if lengths is None or torch.compiler.is_compiling():
        return
    if bool(((lengths < 0) | (lengths > length)).any()):
        raise ThreefoldError(f"lengths must be within 0 … {length}, given {lengths.tolist()}")


def _refuse(name: str, expected: str, given: Mapping[str, Tensor | None]) -> NoReturn:
    described = ", ".join(
        f"{key} {list(tensor.shape)} {tensor.dtype} on {tensor.device}"
        for key, tensor in given.items()
        if tensor is not None
    )
    raise ThreefoldError(f"{name}: expected {expected}; given {described}")
