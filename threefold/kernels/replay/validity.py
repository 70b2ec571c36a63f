"""valid = all that the recorded step read is as it was: modules, tensors, caches.

What is compared at every step costs a few microseconds:

- Dicts have a version that changes with every assignment (CPython up to 3.12). The versions of the
  dicts of all modules, of the objects they hold and of their classes, and the types of modules, are
  words of memory, which the native call compares itself. So an attribute, a part, a hook, a method
  or a class that was replaced is seen. Without versions, the dicts are compared in Python.
- Of every parameter and buffer the address, and by torch's own guard type, dtype, sizes, strides.
- Lists and sets that modules hold are compared by their elements.
- What cached values were computed from has a checksum, compared by the native call, so that edits
  through `.data` or numpy are seen. Weights that a step reads itself may change freely.

A program calls no module, so it does not run while one of them is watched: has a forward hook, was
compiled by `Module.compile`, or has a `forward` of its own.
"""

from __future__ import annotations

import ctypes
import gc
import types
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from threefold.kernels import library
from threefold.kernels.parameter_cache import ParameterCache, caches_below

# Where CPython keeps the version of a dict, and the type of an object, in bytes.
_VERSION_OFFSET, _TYPE_OFFSET = 24, 8
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
# Entries of a module's dict that say nothing about its step.
_IGNORED = (
    "programs",
    "tokenizer",
    "preprocessing",
    "calibration",
    "_backward_hooks",
    "_state_dict_hooks",
)


def _word_at(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _has_dict_versions() -> bool:
    """Whether the version of a dict is where it is expected, and changes with the dict."""
    probe = {"a": 1}
    before = _word_at(id(probe) + _VERSION_OFFSET)
    probe["a"] = 2
    after = _word_at(id(probe) + _VERSION_OFFSET)
    other = {"a": 1}
    return before != after != _word_at(id(other) + _VERSION_OFFSET)


HAS_DICT_VERSIONS = _has_dict_versions()


class Validity:
    """What a program was recorded from, and whether it is unchanged."""

    def __init__(self, owner: nn.Module) -> None:
        self._modules = list(owner.modules())
        self._types = list(map(type, self._modules))
        self._dicts = list(_dicts_below(self._modules))
        self._copies = list(map(dict, self._dicts))
        self._lists = _lists_in(self._dicts)
        self._list_copies = [type(one)(one) for one in self._lists]
        self._tensors = [tensor for _, _, tensor in parameters_and_buffers(owner)]
        self._layouts = list(map(_layout, self._tensors))
        self._addresses = list(map(Tensor.data_ptr, self._tensors))
        self._tensor_guards = _tensor_guards(self._tensors)
        self._hooks = [
            hooks
            for module in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self.guards: array[int] = array("Q")
        self.regions: array[int] = array("Q")
        self._sources = [cache.sources for cache in caches_below(owner)]
        self._note_words()
        self._note_checksums()

    def _note_words(self) -> None:
        self.guards = array("Q")
        if not HAS_DICT_VERSIONS:
            return
        addresses = [id(one) + _VERSION_OFFSET for one in self._dicts]
        addresses += [id(module) + _TYPE_OFFSET for module in self._modules]
        for address in addresses:
            self.guards.extend((address, _word_at(address)))

    def _note_checksums(self) -> None:
        for tensor in (tensor for tensors in self._sources for tensor in tensors):
            storage = tensor.untyped_storage()
            span = storage.data_ptr(), storage.nbytes()
            self.regions.extend((*span, library.checksum(*span)))

    def tensors_hold(self) -> bool:
        """Whether tensors and lists are unchanged: what the native call cannot compare."""
        if list(map(Tensor.data_ptr, self._tensors)) != self._addresses:
            return False
        guards = self._tensor_guards[torch.is_inference_mode_enabled()]
        if not guards.check(*self._tensors):
            if list(map(_layout, self._tensors)) != self._layouts:
                return False
            self._tensor_guards = _tensor_guards(self._tensors)
        if self._lists != self._list_copies:
            return False
        return HAS_DICT_VERSIONS or self.words_hold()

    def words_hold(self) -> bool:
        """Whether dicts and types are unchanged, though something was assigned."""
        if list(map(type, self._modules)) != self._types:
            return False
        if not all(map(_same_entries, self._dicts, self._copies)):
            return False
        self._note_words()
        return True

    def checksums_hold(self) -> bool:
        """Whether what cached values were computed from is unchanged."""
        regions = self.regions
        return all(
            library.checksum(regions[i], regions[i + 1]) == regions[i + 2]
            for i in range(0, len(regions), 3)
        )

    def holds(self) -> bool:
        """Whether nothing that is compared has changed."""
        return self.tensors_hold() and self.words_hold() and self.checksums_hold()


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


def _dicts_below(modules: list[nn.Module]) -> Iterator[dict[Any, Any]]:
    """The dicts of modules, of what they hold, of their classes, and of torch's global hooks."""
    seen: set[int] = set()
    waiting: list[Any] = [*_global_hooks()]
    for module in modules:
        waiting += [module.__dict__, *(gc.get_referents(c.__dict__)[0] for c in _classes(module))]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if not _is_class_dict(one):
            held = [value for name, value in one.items() if name not in _IGNORED]
            waiting += [found for value in held for found in _inner_dicts(value)]


def _classes(module: nn.Module) -> list[type]:
    return [cls for cls in type(module).__mro__ if cls not in (object, nn.Module)]


def _is_class_dict(one: dict[Any, Any]) -> bool:
    return "__module__" in one and "__doc__" in one


def _inner_dicts(value: Any) -> Iterator[dict[Any, Any]]:
    """The dict of a value, if it is a dict or a plain object that is neither module nor tensor."""
    if type(value) is dict or isinstance(value, dict):
        yield value
    elif isinstance(value, ParameterCache) or (
        hasattr(value, "__dict__")
        and not isinstance(
            value,
            (nn.Module, Tensor, type, types.FunctionType, types.MethodType, types.ModuleType),
        )
    ):
        yield value.__dict__


def _lists_in(dicts: list[dict[Any, Any]]) -> list[Any]:
    held = (value for one in dicts if not _is_class_dict(one) for value in one.values())
    return [value for value in held if type(value) in (list, set)]


def _same_entries(one: Mapping[Any, Any], copy: Mapping[Any, Any]) -> bool:
    if one.keys() != copy.keys():
        return False
    return all(
        value is copy[name]
        or name in _IGNORED
        or (_is_plain(value) and _is_plain(copy[name]) and _equal(value, copy[name]))
        for name, value in one.items()
    )


def _is_plain(value: Any) -> bool:
    """Whether a value can be compared: no tuple with a tensor in it, whose `==` is no answer."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _tensor_guards(tensors: list[Tensor]) -> tuple[Any, Any]:
    """torch's guards of tensors, outside and inside of inference mode."""
    make = torch._C._dynamo.guards.TensorGuards
    sizes: dict[str, Any] = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
    with torch.inference_mode(False):
        outside = make(*tensors, **sizes)
    with torch.inference_mode():
        return outside, make(*tensors, **sizes)


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
