"""value = f(parameters):  computed once, and cached while no parameter changes.

A change is detected by a parameter's address, by torch's version counter of in-place updates, and,
because fused optimisers, `parameter.data` and numpy do not advance the counter, by a checksum of
its numbers (on the CPU). A value that needs gradients is computed at each call,
and so is one under transforms (torch.func, forward-mode derivatives), whose tensors have no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from threefold.kernels import library
from threefold.kernels.autocast import autocast_device
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.dispatch import transforms_active

Value = TypeVar("Value")

_steps = 0  # of all optimisers


def optimiser_stepped(*_: Any) -> None:
    """Tell caches that parameters may have changed; torch's optimisers call this by themselves."""
    global _steps
    _steps += 1


register_optimizer_step_post_hook(optimiser_stepped)


class ParameterCache(Generic[Value]):
    """One cached value of a module; a copy of the module computes its own.

    A recorded step finds the cache by the attribute's name: it must be called `derived`.
    """

    def __init__(self) -> None:
        # Key, value, parameters: one tuple, so that threads which share the module see all or none.
        self._known: tuple[Any, Value, Sequence[Tensor]] | None = None

    def of(self, parameters: Sequence[Tensor], make: Callable[[], Value], *more: Any) -> Value:
        """The value of `make()`, recomputed if the parameters or `more` changed.

        It is computed without autocast, so that it does not depend on who asks first.
        """
        device = autocast_device(parameters)
        if device is not None:
            with torch.autocast(device, enabled=False):
                return self.of(parameters, make, *more)
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        if needed or torch.compiler.is_compiling() or transforms_active():
            return make()
        key = (more, _versions(parameters))
        known = self._known
        if known is None or known[0] != key:
            # Tensors made in inference mode could not be used outside of it.
            with torch.inference_mode(False), torch.no_grad():
                self._known = known = (key, make(), parameters)
        return known[1]

    def forget(self) -> None:
        """Drop the value, so that the next call computes it again."""
        self._known = None

    @property
    def value(self) -> Value | None:
        """The cached value; None if there is none."""
        return None if self._known is None else self._known[1]

    @property
    def sources(self) -> Sequence[Tensor]:
        """The parameters that the value was computed from."""
        return () if self._known is None else self._known[2]

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the value."""
        return _tensors(self.value)

    def __deepcopy__(self, memo: Any) -> ParameterCache[Value]:
        return ParameterCache()

    def __reduce__(self) -> Any:
        return ParameterCache, ()


def caches_below(owner: nn.Module) -> list[ParameterCache[Any]]:
    """The caches of `owner` and its submodules."""
    attributes = (module.__dict__.get("derived") for module in owner.modules())
    return [cache for cache in attributes if isinstance(cache, ParameterCache)]


def _versions(parameters: Sequence[Tensor]) -> list[Any]:
    return [_steps, *map(_version, parameters)]


def _version(parameter: Tensor) -> tuple[Any, ...]:
    # Inference tensors have no version counter.
    count = 0 if parameter.is_inference() else parameter._version
    plain = parameter.is_cpu and type(parameter) in PLAIN_TENSOR_TYPES
    total = library.checksum_of(parameter) if plain else 0
    return parameter.data_ptr(), parameter.dtype, parameter.shape, parameter.stride(), count, total


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif is_dataclass(value):
        yield from _tensors(tuple(vars(value).values()))
