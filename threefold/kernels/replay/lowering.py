"""torch operation → native calls: the rules by which `recording.py` translates a step

A rule takes the recorder, the result of the operation, and its arguments. It records calls of
native/program_operations.cpp that do the same on the same views, or raises `CannotRecordError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from threefold.kernels.replay.listing import CannotRecordError

if TYPE_CHECKING:
    from threefold.kernels.replay.recorder import Recorder

# An index of the last axis is a call for each row, and a copy for each number.
_MOST_CHOSEN = 16384

# Numbers that are sorted by comparing neighbours.
_MOST_SORTED = 16

# Axes of a call's layout.
AXES = 4

# In the order of native/program_operations.cpp.
FUNCTIONS = (
    *("copy", "affine", "add", "multiply", "divide", "maximum", "minimum", "clamp"),
    *("exp", "expm1", "log", "sin", "cos", "sigmoid", "log_sigmoid", "softplus", "silu", "tanh"),
    *("gelu", "gelu_tanh", "sqrt", "rsqrt", "reciprocal", "abs"),
    *("eq", "ge", "le", "gt", "lt", "where", "fill", "logaddexp"),
)
Rule = Callable[..., None]


def _unary(function: str) -> Rule:
    return lambda recorder, y, x: recorder.pointwise(function, y, x)


def _add(recorder: Recorder, y: Tensor, a: Any, b: Any, *, alpha: float = 1) -> None:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        recorder.pointwise("add", y, a, b, scale=alpha)
    elif isinstance(a, Tensor):
        recorder.pointwise("affine", y, a, scale=1, offset=alpha * b)
    else:
        recorder.pointwise("affine", y, b, scale=alpha, offset=a)


def _sub(recorder: Recorder, y: Tensor, a: Any, b: Any, *, alpha: float = 1) -> None:
    _add(recorder, y, a, b, alpha=-alpha)


def _mul(recorder: Recorder, y: Tensor, a: Any, b: Any) -> None:
    if isinstance(b, Tensor):
        recorder.pointwise("multiply", y, a, b)
    else:
        recorder.pointwise("affine", y, a, scale=b)


def _div(recorder: Recorder, y: Tensor, a: Tensor, b: Any) -> None:
    if isinstance(b, Tensor):
        recorder.pointwise("divide", y, a, b)
    else:
        recorder.pointwise("affine", y, a, scale=1 / b)


def _power(recorder: Recorder, y: Tensor, x: Any, exponent: Any) -> None:
    if exponent != 2 or not isinstance(x, Tensor):
        raise CannotRecordError(f"power {exponent}")
    recorder.pointwise("multiply", y, x, x)


def _clamp(recorder: Recorder, y: Tensor, x: Tensor, min: Any = None, max: Any = None) -> None:
    low, high = (-math.inf if min is None else min), (math.inf if max is None else max)
    recorder.pointwise("clamp", y, x, scale=low, offset=high)


def _softplus(
    recorder: Recorder, y: Tensor, x: Tensor, beta: float = 1, threshold: float = 20
) -> None:
    if beta != 1 or threshold != 20:
        raise CannotRecordError("softplus with another beta or threshold")
    recorder.pointwise("softplus", y, x)


def _gelu(recorder: Recorder, y: Tensor, x: Tensor, *, approximate: str = "none") -> None:
    recorder.pointwise("gelu" if approximate == "none" else "gelu_tanh", y, x)


def _compare(function: str) -> Rule:
    def rule(recorder: Recorder, y: Tensor, x: Tensor, number: Any) -> None:
        if isinstance(number, Tensor):
            raise CannotRecordError(function)
        recorder.pointwise(function, y, x, scale=number)

    return rule


def _masked_fill(recorder: Recorder, y: Tensor, x: Tensor, mask: Tensor, value: Any) -> None:
    number = value
    if not isinstance(value, Tensor):
        number = recorder.new(x, ())
        recorder.pointwise("fill", number, scale=value)
    recorder.pointwise("where", y, mask, number, x)


def _where(recorder: Recorder, y: Tensor, condition: Tensor, *choices: Any) -> None:
    tensors = []
    for choice in choices:
        tensor = choice if isinstance(choice, Tensor) else recorder.new(y, ())
        if tensor is not choice:
            recorder.pointwise("fill", tensor, scale=choice)
        tensors.append(tensor)
    recorder.pointwise("where", y, condition, *tensors)


def _fill(value: float) -> Rule:
    def rule(recorder: Recorder, y: Tensor, *_: Any, **__: Any) -> None:
        recorder.pointwise("fill", y, scale=value)

    return rule


def _full(recorder: Recorder, y: Tensor, _: Any, value: float, **__: Any) -> None:
    recorder.pointwise("fill", y, scale=value)


def _scalar(recorder: Recorder, y: Tensor, value: float, **_: Any) -> None:
    recorder.pointwise("fill", y, scale=value)


def _copy(recorder: Recorder, y: Tensor, *sources: Any, **_: Any) -> None:
    """clone(x) and _to_copy(x) into a new y, copy_(y, x) into an existing one."""
    recorder.copy(
        y, sources[1] if len(sources) > 1 and isinstance(sources[1], Tensor) else sources[0]
    )


def _cat(recorder: Recorder, y: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    begin = 0
    for part in parts:
        if part.numel():
            recorder.copy(y.narrow(dim, begin, part.shape[dim]), part)
            begin += part.shape[dim]


def _stack(recorder: Recorder, y: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    for index, part in enumerate(parts):
        recorder.copy(y.select(dim, index), part)


def _pad(recorder: Recorder, y: Tensor, x: Tensor, pad: Sequence[int], value: float = 0) -> None:
    recorder.pointwise("fill", y, scale=value)
    inner = y
    for index in range(0, len(pad), 2):
        dim = x.dim() - 1 - index // 2
        inner = inner.narrow(dim, pad[index], x.shape[dim])
    recorder.copy(inner, x)


def _reduced(
    recorder: Recorder, y: Tensor, x: Tensor, dims: Any, largest: bool, scale: float
) -> None:
    chosen = {d % x.dim() for d in ([dims] if isinstance(dims, int) else dims or range(x.dim()))}
    kept = [d for d in range(x.dim()) if d not in chosen]
    if len(chosen) != 1 or len(kept) > AXES - 1:
        raise CannotRecordError("a reduction over several axes")
    (along,) = chosen
    sizes = [x.shape[d] for d in kept]
    y = y.reshape(sizes) if y.dim() == x.dim() else y
    pad = [0] * (AXES - 1 - len(kept))
    layout = [*(1 for _ in pad), *sizes, x.shape[along]]
    layout += [*pad, *y.stride(), 0, *pad, *(x.stride(d) for d in kept), x.stride(along)]
    pointers = [
        recorder.address(y, y.dtype),
        recorder.address(x, y.dtype),
        recorder.constant(layout),
    ]
    recorder.listing.call("reduce", y.dtype, pointers, [largest], [scale])


def _sum(recorder: Recorder, y: Tensor, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> None:
    _reduced(recorder, y, x, dim, False, 1.0)


def _mean(recorder: Recorder, y: Tensor, x: Tensor, dim: Any = None, *_: Any, **__: Any) -> None:
    _reduced(recorder, y, x, dim, False, y.numel() / x.numel())


def _amax(recorder: Recorder, y: Tensor, x: Tensor, dim: Any = (), *_: Any) -> None:
    _reduced(recorder, y, x, dim, True, 1.0)


def _softmax(recorder: Recorder, y: Tensor, x: Tensor, dim: int, _: bool) -> None:
    shape = [1 if d == dim % x.dim() else size for d, size in enumerate(x.shape)]
    most, total = recorder.new(x, shape), recorder.new(x, shape)
    _reduced(recorder, most, x, dim, True, 1.0)
    recorder.pointwise("add", y, x, most, scale=-1)
    recorder.pointwise("exp", y, y)
    _reduced(recorder, total, y, dim, False, 1.0)
    recorder.pointwise("divide", y, y, total)


def _layer_norm(
    recorder: Recorder, out: Any, x: Tensor, shape: Any, weight: Any, bias: Any, eps: float
) -> None:
    y, mean, deviation = out
    if len(shape) != 1:
        raise CannotRecordError("a norm over several axes")
    size = x.shape[-1]
    squares = recorder.new(x, x.shape)
    _reduced(recorder, mean, x, -1, False, 1 / size)
    recorder.pointwise("add", y, x, mean, scale=-1)
    recorder.pointwise("multiply", squares, y, y)
    _reduced(recorder, deviation, squares, -1, False, 1 / size)
    recorder.pointwise("affine", deviation, deviation, scale=1, offset=eps)
    recorder.pointwise("rsqrt", deviation, deviation)
    recorder.pointwise("multiply", y, y, deviation)
    if weight is not None:
        recorder.pointwise("multiply", y, y, weight)
    if bias is not None:
        recorder.pointwise("add", y, y, bias, scale=1)


def _bmm(recorder: Recorder, y: Tensor, a: Tensor, b: Tensor) -> None:
    batch, rows, inner = a.shape
    layout = [batch, rows, b.shape[-1], inner, *y.stride(), *a.stride(), *b.stride()]
    addresses = [recorder.address(t, y.dtype) for t in (y, a, b)]
    recorder.listing.call("product", y.dtype, [*addresses, recorder.constant(layout)], [])


def _mm(recorder: Recorder, y: Tensor, a: Tensor, b: Tensor) -> None:
    _bmm(recorder, y[None], a[None], b[None])


def _addmm(recorder: Recorder, y: Tensor, bias: Tensor, a: Tensor, b: Tensor) -> None:
    _mm(recorder, y, a, b)
    recorder.pointwise("add", y, y, bias, scale=1)


def _glu(recorder: Recorder, y: Tensor, x: Tensor, dim: int = -1) -> None:
    first, second = x.chunk(2, dim)
    recorder.pointwise("sigmoid", y, second)
    recorder.pointwise("multiply", y, y, first)


def _embedding(recorder: Recorder, y: Tensor, table: Tensor, index: Tensor, *_: Any) -> None:
    recorder.gather(y, table, index)


def _index(recorder: Recorder, y: Tensor, table: Tensor, indices: Sequence[Tensor | None]) -> None:
    *others, last = indices
    if last is None or last.dtype.itemsize != 8 or any(index is not None for index in others):
        raise CannotRecordError("an index of several axes")
    if not others:
        recorder.gather(y, table, last)
        return
    if len(others) != table.dim() - 1 or last.dim() != 1 or y.numel() > _MOST_CHOSEN:
        raise CannotRecordError("an index of a middle axis")
    entries, chosen = table.reshape(-1, table.shape[-1], 1), y.view(-1, len(last), 1)
    for row in range(len(entries)):
        recorder.gather(chosen[row], entries[row], last)


def _sort(recorder: Recorder, out: Any, x: Tensor, dim: int = -1, descending: bool = False) -> None:
    """Neighbours in turns, which sorts n numbers in n rounds; NaN spreads to all of them."""
    y, order = out
    recorder.forget(order)
    count = x.shape[dim]
    if count > _MOST_SORTED:
        raise CannotRecordError(f"sorting {count} numbers")
    recorder.copy(y, x)
    places = [y.select(dim, i) for i in range(count)]
    first, second = ("maximum", "minimum") if descending else ("minimum", "maximum")
    held = recorder.new(places[0], places[0].shape)
    for turn in range(count):
        for a, b in zip(places[turn % 2 :: 2], places[turn % 2 + 1 :: 2], strict=False):
            recorder.copy(held, a)
            recorder.pointwise(first, a, held, b)
            recorder.pointwise(second, b, held, b)


RULES: Mapping[str, Rule] = {
    "sort": _sort,
    "embedding": _embedding,
    "index": _index,
    **{name: _unary(name) for name in ("exp", "expm1", "log", "sin", "cos", "sigmoid", "silu")},
    **{name: _unary(name) for name in ("tanh", "sqrt", "rsqrt", "reciprocal", "abs")},
    **{name: _compare(name) for name in ("eq", "ge", "le", "gt", "lt")},
    "neg": lambda recorder, y, x: recorder.pointwise("affine", y, x, scale=-1),
    "relu": lambda recorder, y, x: _clamp(recorder, y, x, 0),
    "rsub": lambda recorder, y, x, number: recorder.pointwise(
        "affine", y, x, scale=-1, offset=number
    ),
    "log_sigmoid_forward": lambda recorder, y, x: recorder.pointwise("log_sigmoid", y[0], x),
    "maximum": lambda recorder, y, a, b: recorder.pointwise("maximum", y, a, b),
    "minimum": lambda recorder, y, a, b: recorder.pointwise("minimum", y, a, b),
    "logaddexp": lambda recorder, y, a, b: recorder.pointwise("logaddexp", y, a, b),
    "where": _where,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _power,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "softplus": _softplus,
    "gelu": _gelu,
    "glu": _glu,
    "masked_fill": _masked_fill,
    **{name: _fill(0) for name in ("zeros", "new_zeros", "zeros_like", "zero")},
    **{name: _fill(1) for name in ("ones", "new_ones", "ones_like")},
    **dict.fromkeys(("full", "new_full", "full_like", "fill"), _full),
    "scalar_tensor": _scalar,
    "clone": _copy,
    "_to_copy": _copy,
    "copy": _copy,
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "sum": _sum,
    "mean": _mean,
    "amax": _amax,
    "_softmax": _softmax,
    "native_layer_norm": _layer_norm,
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
}
