"""A device for tests: its tensors compute on the CPU, but never together with a tensor of the CPU.

It behaves as an accelerator does: a tensor comes to it only by `to(device)` or `device=…`, numbers
of it are read with `item`, and an operation on its tensors refuses a tensor of another device,
unless that is a single number. Use it inside `with other_device():`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda", 0)  # the name; this torch has no CUDA
NAMES = (DEVICE, torch.device(DEVICE.type), DEVICE.type, str(DEVICE))
INSIDE = torch.device("meta")
# What Python reads of a tensor, although torch itself takes it for one without values.
ATTRIBUTES: dict[Any, Any] = {
    Tensor.device.__get__: DEVICE,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
}
# Copies between devices, which are what moves a tensor.
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class StrayTensorError(RuntimeError):
    """An operation met tensors of two devices."""


class OtherTensor(Tensor):
    """A tensor of the other device, around one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherTensor:
        made: OtherTensor = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device="meta",  # inside torch; Python is told another one, see `ATTRIBUTES`
        )
        made.inner = inner.detach()
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OtherTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.ops.aten._to_copy.default:
            return _copy(*args, **kwargs)
        if function not in COPIES:
            _refuse_strays(function, (args, kwargs))
        _at_home(kwargs)
        result = function(*_map(_inner, args), **_map(_inner, kwargs))
        # An operation in place returns the tensor that it was given.
        known = {id(leaf.inner): leaf for leaf in _tensors((args, kwargs)) if _is_other(leaf)}
        return _map(lambda t: known[id(t)] if id(t) in known else _wrap(t), result)


def _copy(x: Tensor, *, device: Any = None, **more: Any) -> Tensor:
    """A copy to this device, or to the CPU."""
    inner = x.inner if isinstance(x, OtherTensor) else x
    copied = torch.ops.aten._to_copy.default(inner, **{**more, "device": "cpu"})
    stays = isinstance(x, OtherTensor) if device in (None, INSIDE) else device in NAMES
    return _wrap(copied) if stays else copied


def _inner(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, OtherTensor) else x


def _wrap(x: Tensor) -> Tensor:
    # The bits for conjugates and negatives belong to the wrapper, which does not have them.
    return x if isinstance(x, OtherTensor) else OtherTensor(x.resolve_conj().resolve_neg())


def _is_other(x: Tensor) -> bool:
    return isinstance(x, OtherTensor)


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The function of every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _map(function, value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_map(function, value) for value in tree])
    return tree


def _tensors(tree: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _map(lambda tensor: found.append(tensor) or tensor, tree)  # type: ignore[func-returns-value]
    return found


def _refuse_strays(function: Any, tree: Any) -> None:
    for leaf in _tensors(tree):
        if not isinstance(leaf, OtherTensor) and leaf.dim():
            raise StrayTensorError(
                f"{function}: a tensor {tuple(leaf.shape)} {leaf.dtype} of {leaf.device} beside "
                f"tensors of {DEVICE}"
            )


def _at_home(kwargs: dict[str, Any]) -> None:
    if kwargs.get("device") in (*NAMES, INSIDE):
        kwargs["device"] = torch.device("cpu")


class _Moves(TorchFunctionMode):
    """`to(device)` and `device=…`: torch would look for the device's own library."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in ATTRIBUTES and isinstance(args[0], OtherTensor):
            return ATTRIBUTES[function]
        if function is Tensor.to and (kwargs.get("device") in NAMES or _names_it(args[1:])):
            return _moved(*args, **kwargs)
        if kwargs.get("device") in NAMES:
            kwargs["device"] = torch.device("cpu")
            return _map(_wrap, function(*_map(_inner, args), **kwargs))
        if function is Tensor.tolist and isinstance(args[0], OtherTensor):
            return args[0].inner.tolist()
        return function(*args, **kwargs)


class _Made(TorchDispatchMode):
    """Tensors that torch makes itself beside those of the device, such as the 0 of a `where`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the compiler is imported

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == INSIDE and not any(map(_is_other, _tensors(args))):
            kwargs["device"] = torch.device("cpu")
            return _map(_wrap, function(*args, **kwargs))
        return function(*args, **kwargs)


def _names_it(args: Any) -> bool:
    return any(
        a in NAMES if not isinstance(a, Tensor) else isinstance(a, OtherTensor) for a in args
    )


def _moved(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    dtypes = [a for a in (*args, kwargs.get("dtype")) if isinstance(a, torch.dtype)]
    dtypes += [a.dtype for a in args if isinstance(a, Tensor)]
    converted = x.to(dtypes[0]) if dtypes else x
    return converted if isinstance(converted, OtherTensor) else _Move.apply(converted)


class _Move(torch.autograd.Function):
    """The differentiable copy to the device."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return OtherTensor(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Tensor:
        return grad.inner if isinstance(grad, OtherTensor) else grad


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Make the device available."""
    with _Moves(), _Made():
        yield DEVICE


def move_there(module: nn.Module) -> None:
    """What `module.to(device)` does on a real device: weights that are shared stay shared."""
    moved: dict[int, Tensor] = {}
    for part in module.modules():
        for store in (part._parameters, part._buffers):
            for name, tensor in store.items():
                if tensor is not None:
                    store[name] = moved.setdefault(id(tensor), _moved_weight(tensor))


def _moved_weight(tensor: Tensor) -> Tensor:
    there = OtherTensor(tensor.detach().clone())
    return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there


def lives_there(module: nn.Module) -> bool:
    """Whether all weights and buffers of a module are on the device."""
    tensors = (*module.parameters(), *module.buffers())
    return all(isinstance(tensor, OtherTensor) for tensor in tensors)
