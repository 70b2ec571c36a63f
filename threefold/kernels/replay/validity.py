"""valid = the modules, tensors and settings are still those that the program was recorded from.

Compared at every step: the tree of modules, the identity and address of each parameter and buffer,
cached values derived from parameters, and, after an attribute of any mixer was set, the attributes
that are a bool, a number, a string or a tuple. Not seen: other attributes, a change of a
module that is not a mixer until one of a mixer follows, a replaced `forward`, and a parameter whose
strides change while its address stays.
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
        self._modules = [(module, dict(module._modules)) for module in owner.modules()]
        self._tensors = [
            (holder, name, tensor, tensor.data_ptr())
            for holder, name, tensor in parameters_and_buffers(owner)
        ]
        self._derived = [(cache, cache.value, cache.versions) for cache in caches_below(owner)]
        self._hooks = [
            hooks
            for module, _ in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._attributes = [_plain_attributes(module) for module, _ in self._modules]
        self._seen_count = _attribute_count

    def holds(self) -> bool:
        """Whether nothing that is compared has changed."""
        for module, children in self._modules:
            now = module._modules
            if len(now) != len(children) or any(now.get(n) is not children[n] for n in children):
                return False
        for holder, name, tensor, pointer in self._tensors:
            if holder.get(name) is not tensor or tensor.data_ptr() != pointer:
                return False
        for cache, value, versions in self._derived:
            if cache.value is not value or cache.versions != versions:
                return False
        if self._seen_count != _attribute_count:
            if self._attributes != [_plain_attributes(module) for module, _ in self._modules]:
                return False
            self._seen_count = _attribute_count
        return True

    def has_hooks(self) -> bool:
        """Whether a forward hook is registered: a program calls no module, so it would not run."""
        return any(self._hooks) or any(_global_hooks())


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


def _global_hooks() -> tuple[Any, Any]:
    module = nn.modules.module
    return module._global_forward_hooks, module._global_forward_pre_hooks
