"""Autocast: which dtype the operations of this package compute in where torch chooses it.

As torch's own operations do, one that has several inputs brings them to the widest of their dtypes,
and a recurrence, whose rounding errors add up, runs in float32. States keep the dtype of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def under_autocast(x: Tensor) -> bool:
    """Whether autocast is enabled on the device of x."""
    # Every operation asks, so the common answer comes without the name of the device.
    if not torch._C._is_any_autocast_enabled():
        return False
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def promote(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The inputs of one operation, under autocast all of the widest dtype among them."""
    given = (x, *others)
    if not under_autocast(x):
        return given
    wide = x.dtype
    for other in others:
        wide = wide if other is None else torch.promote_types(wide, other.dtype)
    return tuple(None if each is None else each.to(wide) for each in given)


def full_precision(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Run a function without autocast, on inputs of float32 at least, as `torch.amp.custom_fwd`."""

    @wraps(function)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        device = autocast_device((*args, *kwargs.values()))
        if device is None:
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            widened = {name: _widen(value) for name, value in kwargs.items()}
            return cast(_Result, cast(Any, function)(*map(_widen, args), **widened))

    return run


def autocast_device(values: Iterable[Any]) -> str | None:
    """The kind of device on which autocast is enabled for these tensors; None if it is not."""
    for value in values:
        if isinstance(value, tuple):
            value = next((part for part in value if isinstance(part, Tensor)), None)
        if isinstance(value, Tensor):
            return value.device.type if under_autocast(value) else None
    return None


def _widen(value: Any) -> Any:
    """Floating-point tensors narrower than float32 in float32, also inside a tuple."""
    if isinstance(value, Tensor):
        narrow = value.is_floating_point() and value.dtype.itemsize < torch.float32.itemsize
        return value.float() if narrow else value
    if isinstance(value, tuple):
        parts = [_widen(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
