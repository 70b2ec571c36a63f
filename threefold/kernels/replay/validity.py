"""valid = the modules, tensors and settings are still those that the program was recorded from.

Compared at every step: the tree of modules, the identity and address of each parameter and buffer,
cached values derived from parameters, and, after an attribute of any mixer was set, the attributes
that are a bool, a number, a string or a tuple. Not seen: other attributes, a change of a
module that is not a mixer until one of a mixer follows, and a parameter whose strides change while
its address stays.

A program calls no module, so it does not run while one of them is watched: has a forward hook, was
compiled by `Module.compile`, or has a `forward` of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from threefold.kernels.parameter_cache import caches_below

# Counts assignments to attributes of mixers: attributes are compared only after it has changed.
_attribute_count = 0


def attribute_set() -> None:
    """Tell all programs that an attribute of some mixer was set."""
    global _attribute_count
    _attribute_count += 1


class Validity:
    """What a program was recorded from, and whether it is unchanged."""

    def __init__(self, owner: nn.Module) -> None:
        self._modules = list(owner.modules())
        self._children = [dict(module._modules) for module in self._modules]
        self._tensors = [
            (holder, name, tensor, tensor.data_ptr())
            for holder, name, tensor in parameters_and_buffers(owner)
        ]
        self._derived = [(cache, cache.value, cache.versions) for cache in caches_below(owner)]
        self._hooks = [
            hooks
            for module in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        # A compiled module, or one with its own `forward`, has one more attribute.
        self._own = [module.__dict__ for module in self._modules]
        self._sizes = list(map(len, self._own))
        self._attributes = list(map(_plain_attributes, self._modules))
        self._seen_count = _attribute_count

    def holds(self) -> bool:
        """Whether nothing that is compared has changed."""
        # Dicts with the same modules are equal without a comparison in Python.
        if [module._modules for module in self._modules] != self._children:
            return False
        for holder, name, tensor, pointer in self._tensors:
            if holder.get(name) is not tensor or tensor.data_ptr() != pointer:
                return False
        for cache, value, versions in self._derived:
            if cache.value is not value or cache.versions != versions:
                return False
        if self._seen_count != _attribute_count:
            if self._attributes != list(map(_plain_attributes, self._modules)):
                return False
            self._seen_count = _attribute_count
        return True

    def is_watched(self) -> bool:
        """Whether calls of a module are watched, which a program would pass by."""
        if any(self._hooks) or any(_global_hooks()):
            return True
        sizes = list(map(len, self._own))
        if sizes == self._sizes:
            return False
        watched = any(map(_overrides, self._own))
        if not watched:
            self._sizes = sizes
        return watched


def is_watched(owner: nn.Module) -> bool:
    """Whether calls of `owner` or of a submodule are watched."""
    return any(_global_hooks()) or _has_watched(owner)


def parameters_and_buffers(owner: nn.Module) -> list[tuple[Mapping[str, Any], str, Tensor]]:
    """Every parameter and buffer of `owner` and its submodules, with the dict that holds it."""
    return [
        (holder, name, tensor)
        for module in owner.modules()
        for holder in (module._parameters, module._buffers)
        for name, tensor in holder.items()
        if tensor is not None
    ]


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    return {
        name: value
        for name, value in module.__dict__.items()
        if isinstance(value, (bool, int, float, str, tuple)) and name != "training"
    }


def _has_watched(module: nn.Module) -> bool:
    if module._forward_hooks or module._forward_pre_hooks or _overrides(module.__dict__):
        return True
    # Several times as fast as `modules()`, which matters in a step.
    return any(part is not None and _has_watched(part) for part in module._modules.values())


def _overrides(attributes: Mapping[str, Any]) -> bool:
    """Whether a module is called in another way than its class says."""
    return "forward" in attributes or attributes.get("_compiled_call_impl") is not None


def _global_hooks() -> tuple[Any, Any]:
    module = nn.modules.module
    return module._global_forward_hooks, module._global_forward_pre_hooks
