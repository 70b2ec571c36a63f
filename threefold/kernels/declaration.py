"""name(x[batch,length] bias?[length] silu:bool) -> y[=x]: what an operation reads and returns, once

A declaration is parsed into arguments and results. From it follow the schema for torch, the check
of inputs with its message, and the shapes of results. `declarations.py` is the list.

An argument is `name[sizes]`, with `?` if it may be None and with alternatives as `[a|a,b]`. A size
is a name, a number, or `2*name+1`; `*` stands for any axes before the others, `=x` for the shape of
x, or for one that the operation's module adds. Sizes that are named batch, rows or stored may be 0.
Behind the brackets, `int64` is another dtype than the first tensor's. A plain argument is
`name:bool`, int, float, str or dtype. A result with `@name` is empty unless that flag is set or
that tensor is given.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.checks import PLAIN_TENSOR_TYPES, expected_kind

_ARGUMENT = re.compile(
    r"(?P<name>\w+)(?P<optional>\??)(\[(?P<shapes>[^\]]*)\](?P<dtype>\w*)(@(?P<when>\w+))?|:(?P<plain>\w+))"
)
_SIZE = re.compile(r"((?P<factor>\d+)\*)?(?P<name>[a-zA-Z]\w*)(?P<offset>[+-]\d+)?|(?P<number>\d+)")
_PLAIN = {"bool": "bool", "int": "int", "float": "float", "str": "str", "dtype": "ScalarType"}
_MAY_BE_ZERO = ("batch", "rows", "stored")
# Shapes that an operation remembers, so that it checks and counts them once.
MOST_SHAPES = 1024

Sizes = dict[str, Any]  # plain or symbolic integers


@dataclass(frozen=True)
class Size:
    """One axis: factor · sizes[name] + offset, or the number `offset` where there is no name."""

    name: str | None
    factor: int
    offset: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """The size that a text describes."""
        found = _SIZE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a size")
        if found["number"]:
            return cls(None, 1, int(found["number"]))
        return cls(found["name"], int(found["factor"] or 1), int(found["offset"] or 0))

    def of(self, sizes: Sizes) -> Any:
        """Its number."""
        return self.offset if self.name is None else self.factor * sizes[self.name] + self.offset

    def shown(self, sizes: Sizes) -> str:
        """Its number if it is known, else as it is written."""
        if self.name is None or self.name in sizes:
            return str(self.of(sizes))
        factor = f"{self.factor}·" if self.factor != 1 else ""
        return f"{factor}{self.name}" + (f"{self.offset:+}" if self.offset else "")

    def fits(self, number: Any, sizes: Sizes) -> bool:
        """Whether an axis may have this many places; a size that is new gets its number."""
        if self.name is not None and self.name not in sizes:
            if (number - self.offset) % self.factor:
                return False
            sizes[self.name] = (number - self.offset) // self.factor
            return bool(sizes[self.name] > 0 or self.name in _MAY_BE_ZERO)
        return bool(number == self.of(sizes))


@dataclass(frozen=True)
class TensorShape:
    """The axes of a tensor; those of another tensor; or any axes, then these."""

    like: str | None = None
    any_before: bool = False
    axes: tuple[Size, ...] = ()

    @classmethod
    def parse(cls, text: str) -> TensorShape:
        """The shape that a text describes."""
        if text.startswith("="):
            return cls(like=text[1:])
        parts = [part for part in text.split(",") if part]
        free = parts[:1] == ["*"]
        return cls(None, free, tuple(map(Size.parse, parts[free:])))

    def of(self, sizes: Sizes, given: Mapping[str, Any]) -> Any:
        """The shape as numbers."""
        if self.like is not None:
            return sizes[self.like] if self.like in sizes else given[self.like].shape
        return tuple(axis.of(sizes) for axis in self.axes)

    def fits(self, tensor: Tensor, sizes: Sizes, given: Mapping[str, Any]) -> bool:
        """Whether a tensor has this shape; sizes that were not known get their numbers."""
        if self.like is not None:
            return bool(tensor.shape == given[self.like].shape)
        before = tensor.dim() - len(self.axes)
        if before < 0 or (before and not self.any_before):
            return False
        return all(
            axis.fits(number, sizes)
            for axis, number in zip(self.axes, tensor.shape[before:], strict=True)
        )

    def shown(self, sizes: Sizes, given: Mapping[str, Any]) -> str:
        """The shape for a message, with the numbers that are known."""
        if self.like is not None:
            return str(list(given[self.like].shape))
        axes = ["…"] * self.any_before + [axis.shown(sizes) for axis in self.axes]
        return f"[{', '.join(axes)}]"


@dataclass(frozen=True)
class Argument:
    """An argument or a result: a tensor with its shapes, or a plain value."""

    name: str
    plain: str | None
    optional: bool
    shapes: tuple[TensorShape, ...]
    dtype: torch.dtype | None
    when: str | None

    @classmethod
    def parse(cls, text: str) -> Argument:
        """The argument that a text describes."""
        found = _ARGUMENT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not an argument")
        shapes = tuple(map(TensorShape.parse, (found["shapes"] or "").split("|")))
        dtype = getattr(torch, found["dtype"]) if found["dtype"] else None
        return cls(
            found["name"], found["plain"], bool(found["optional"]), shapes, dtype, found["when"]
        )

    @property
    def schema(self) -> str:
        """As torch writes it."""
        if self.plain:
            return f"{_PLAIN[self.plain]} {self.name}"
        return f"Tensor{'?' * self.optional} {self.name}"

    def shown(self, sizes: Sizes, given: Mapping[str, Any]) -> str:
        """Name and shapes for a message."""
        shapes = " or ".join(shape.shown(sizes, given) for shape in self.shapes)
        return f"{self.name} {shapes}"

    def fits(self, tensor: Tensor, sizes: Sizes, given: Mapping[str, Any]) -> bool:
        """Whether a tensor has one of the shapes; the sizes of the first that fits are kept."""
        for shape in self.shapes:
            tried = dict(sizes)
            if shape.fits(tensor, tried, given):
                sizes.update(tried)
                return True
        return False


@dataclass(frozen=True)
class Prototype:
    """A C function: the names of its arguments, in their order; `?` marks what may be null."""

    name: str
    outputs: tuple[str, ...]  # and its workspace
    inputs: tuple[str, ...]
    integers: tuple[str, ...]  # the number of threads comes behind them
    numbers: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Prototype:
        """The prototype that `name: outputs | inputs | integers | numbers` describes."""
        name, rest = line.split(":")
        groups = [tuple(group.split()) for group in rest.split("|")]
        groups += [()] * (4 - len(groups))
        return cls(name, groups[0], groups[1], groups[2], groups[3])

    @property
    def pointers(self) -> int:
        """The number of its pointers."""
        return len(self.outputs) + len(self.inputs)

    @property
    def types(self) -> list[type]:
        """The types of its arguments for ctypes."""
        integers = [ctypes.c_int64] * (len(self.integers) + 1)
        return [ctypes.c_void_p] * self.pointers + integers + [ctypes.c_double] * len(self.numbers)


class Declaration:
    """An operation's name, arguments and results, and the integers that its C function gets.

    `sizes` and `workspace` name sizes, flags and what a kernel's module adds to them, in the order
    in which the C function gets them, and the one that says how large its workspace must be.
    `unread`: inputs that only the backward pass needs, so that the C function does not get them.
    """

    def __init__(
        self,
        text: str,
        *,
        sizes: str,
        workspace: str | None = None,
        function: str | None = None,
        unread: str = "",
    ) -> None:
        self.name, rest = " ".join(text.split()).split("(", 1)
        inputs, results = rest.split(") ->")
        self.inputs = tuple(map(Argument.parse, inputs.split()))
        self.results = tuple(map(Argument.parse, results.split()))
        self.names = tuple(argument.name for argument in self.inputs)
        self.tensors = tuple(argument for argument in self.inputs if not argument.plain)
        self.read = tuple(one for one in self.tensors if one.name not in unread.split())
        self.integers = tuple(sizes.split())
        self.workspace = None if workspace is None else tuple(workspace.split())
        self.numbers = tuple(a.name for a in self.inputs if a.plain == "float")
        self._same_dtype = tuple(i for i, a in enumerate(self.tensors) if a.dtype is None)
        others = [(i, a) for i, a in enumerate(self.tensors) if a.dtype and a.name != "lengths"]
        self._other_dtypes = tuple((i, a.name, a.dtype) for i, a in others)
        self._lengths = next((i for i, a in enumerate(self.tensors) if a.name == "lengths"), None)
        self._fitting: dict[tuple[Any, ...], bool] = {}
        backward = self.name.endswith("_backward")
        self.function = function or (self.name if backward else f"{self.name}_forward")

    @property
    def workspace_function(self) -> str:
        """The name of the C function that knows the size of the workspace."""
        return f"{self.name.removesuffix('_backward')}_workspace"

    @property
    def prototype(self) -> Prototype:
        """The C function."""
        outputs = [result.name + "?" * (result.when is not None) for result in self.results]
        if self.workspace is not None:
            outputs.append("workspace")
        inputs = tuple(argument.name + "?" * argument.optional for argument in self.read)
        return Prototype(self.function, tuple(outputs), inputs, self.integers, self.numbers)

    @cached_property
    def schema(self) -> str:
        """The operation as torch.library writes it."""
        inputs = ", ".join(argument.schema for argument in self.inputs)
        kinds = ", ".join(["Tensor"] * len(self.results))
        return f"{self.name}({inputs}) -> {kinds if len(self.results) == 1 else f'({kinds})'}"

    def given(self, values: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.names, values, strict=True))

    def sizes(self, given: Mapping[str, Any]) -> Sizes:
        """The numbers of all sizes, for inputs that fit."""
        sizes: Sizes = {}
        for argument in self.tensors:
            if given[argument.name] is not None:
                argument.fits(given[argument.name], sizes, given)
        return sizes

    def expected(self, *tensors: Tensor | None) -> str | None:
        """The shape, dtype or device that was expected; None if all inputs fit."""
        if torch.compiler.is_compiling() or type(tensors[0]) not in PLAIN_TENSOR_TYPES:
            wrong = self._wrong_shape(tensors)  # sizes may be symbolic
        else:
            shapes = tuple(None if x is None else x.shape for x in tensors)
            wrong = None if shapes in self._fitting else self._wrong_shape(tensors)
            if wrong is None:
                remember(self._fitting, shapes, True)
        if wrong is not None:
            return wrong
        same: list[Any] = [tensors[i] for i in self._same_dtype]
        lengths = None if self._lengths is None else tensors[self._lengths]
        for i, name, dtype in self._other_dtypes:
            tensor = tensors[i]
            if tensor is not None and (tensor.dtype, tensor.device) != (dtype, same[0].device):
                return f"{name} of {dtype} on {same[0].device}"
        return expected_kind(same[0], tuple(same[1:]), lengths)

    def _wrong_shape(self, tensors: Sequence[Tensor | None]) -> str | None:
        given = dict(zip((argument.name for argument in self.tensors), tensors, strict=True))
        sizes: Sizes = {}
        for argument in self.tensors:
            tensor = given[argument.name]
            if tensor is None and not argument.optional:
                return f"{argument.name}, which is not optional"
            known = dict(sizes)
            if tensor is not None and not argument.fits(tensor, sizes, given):
                others = ", ".join(each.shown(known, given) for each in self.tensors)
                return f"{others}, none empty"
        return None

    def result_shapes(self, given: Mapping[str, Any], sizes: Sizes) -> list[Any]:
        """The shapes of the results."""
        shapes = []
        for result in self.results:
            condition = True if result.when is None else given[result.when]
            empty = condition is None or condition is False
            shapes.append((0,) if empty else result.shapes[0].of(sizes, given))
        return shapes


def remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value, and not more than `MOST_SHAPES` of them."""
    if len(known) >= MOST_SHAPES:
        known.clear()
    known[key] = value
