"""value = f(parameters):  made once, and kept while no parameter changes.

Changes are seen by torch's count of updates in place, by where a parameter lies, and by the steps
of optimisers, the fused ones of which count nothing. An edit of `parameter.data` is not seen: after
one call `train()`, `eval()` or `load_state_dict()`, or edit under `torch.no_grad()` instead. What
needs gradients is made for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

Value = TypeVar("Value")

_steps = 0  # of any optimiser


def optimiser_stepped(*_: Any) -> None:
    """Say that parameters may have changed uncounted; torch's optimisers do so by themselves."""
    global _steps
    _steps += 1


register_optimizer_step_post_hook(optimiser_stepped)


class ParameterCache(Generic[Value]):
    """One value of a module; a copy of the module makes its own."""

    def __init__(self) -> None:
        # Set at once, for threads that share the module: key, value, and what it was made from.
        self._known: tuple[Any, Value, Sequence[Tensor]] | None = None

    def of(self, parameters: Sequence[Tensor], make: Callable[[], Value], *more: Any) -> Value:
        """What `make` makes of the parameters, and of whatever `more` says."""
        if torch.compiler.is_compiling() or (
            torch.is_grad_enabled() and any(p.requires_grad for p in parameters)
        ):
            return make()
        key = (more, _versions(parameters))
        known = self._known
        if known is None or known[0] != key:
            # What is made in inference mode could not be used outside of it.
            with torch.inference_mode(False), torch.no_grad():
                self._known = known = (key, make(), parameters)
        return known[1]

    def forget(self) -> None:
        """Have it made again at the next call."""
        self._known = None

    @property
    def value(self) -> Value | None:
        """What is kept; None if nothing is."""
        return None if self._known is None else self._known[1]

    @property
    def versions(self) -> list[Any]:
        """Where its parameters lie, and how often they were changed."""
        return [] if self._known is None else _versions(self._known[2])

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the value."""
        return _tensors(self.value)

    def __deepcopy__(self, memo: Any) -> ParameterCache[Value]:
        return ParameterCache()

    def __reduce__(self) -> Any:
        return ParameterCache, ()


def caches_below(owner: nn.Module) -> list[ParameterCache[Any]]:
    """What the modules below `owner` keep."""
    found = (module.__dict__.get("derived") for module in owner.modules())
    return [one for one in found if isinstance(one, ParameterCache)]


def _versions(parameters: Sequence[Tensor]) -> list[Any]:
    # Inference tensors count nothing.
    return [_steps] + [
        (p.data_ptr(), p.dtype, 0 if p.is_inference() else p._version) for p in parameters
    ]


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
