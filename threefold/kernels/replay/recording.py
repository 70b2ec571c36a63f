"""calls = what a step does to its tensors, seen from below: native calls, torch's between them

A step without gradients is straight-line code, so seeing it once is knowing it. Native calls are
noted by the addresses they are given; every torch operation between them must have a rule that
says it as native calls (`rules.py`), or the step cannot be recorded. Views are addresses only. What
is made of no tensor (`arange`) is made once; whole numbers that a step computes are float64 in its
program. What is recorded is run once against what was seen before anybody relies on it.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from threefold.kernels import library
from threefold.kernels.parameter_cache import caches_below
from threefold.kernels.replay.lowering import AXES, FUNCTIONS, RULES
from threefold.kernels.replay.program import (
    CannotRecordError,
    Listing,
    Operand,
    Program,
    State,
    Word,
    state_leaves,
)
from threefold.kernels.replay.validity import parameters_and_buffers

Step = Callable[[Tensor, State], tuple[Tensor, State]]

_REAL = (torch.float32, torch.float64)
# How far a program may be from what it was recorded from, relative to the largest number.
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-9}

# Room without numbers, and a view that its schema does not call one.
_EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
_VIEWS = ("_unsafe_view",)
# Numbers that depend on nothing: made once, and what is made of them alone.
_MADE = ("arange", "linspace", "eye")

_active = local()


def recording() -> bool:
    """Whether this thread is recording a step, in which no other may be recorded or run."""
    return getattr(_active, "recorder", None) is not None


def record(owner: nn.Module, step: Step, x: Tensor, state: State) -> Program:
    """The step of `owner` as a program; `CannotRecordError` where it is more than native calls."""
    # In inference mode torch takes operations apart elsewhere, out of the recorder's sight.
    with torch.inference_mode(False), torch.no_grad():
        state = _copied(state)
        x = x.clone(memory_format=torch.contiguous_format)
        recorder = Recorder(owner, x, state)
        with recorder.watching():
            y, after = step(x, state)
        recorder.finish(y, after)
        program = Program(recorder.listing, owner)
        again = program.run(x, state)
    if again is None or not _same((y, after), again):
        raise CannotRecordError(f"what was recorded of {type(owner).__name__} gives other numbers")
    return program


@dataclass(frozen=True)
class Region:
    """Memory that calls may name: `end − begin` bytes, known to the program as `place`."""

    begin: int
    end: int
    place: Operand | None  # None for what stays where it is
    base: int  # where that is
    turned: bool  # whole numbers or truths, which are numbers in the program

    def at(self, offset: int) -> Word:
        if self.place is None:
            return self.base + offset
        return Operand(self.place.kind, self.place.index, offset)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what happens between `watching` and its end."""

    def __init__(self, owner: nn.Module, x: Tensor, state: State) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        leaves = list(state_leaves(state))
        for path, leaf in leaves:
            if leaf.dtype not in (*_REAL, torch.int64):
                raise CannotRecordError(f"the state has {'.'.join(path)} of {leaf.dtype}")
        noted = [(path, tuple(leaf.shape), leaf.dtype) for path, leaf in leaves]
        self.listing = Listing(x.dtype, tuple(x.shape), noted)
        self._alive: list[Any] = []
        self._begins: list[int] = []
        self._regions: dict[int, Region] = {}
        self._fixed: set[int] = set()  # storages of what is made of no tensor
        # Truths are kept as numbers of the dtype that was compared.
        self._truths: dict[int, torch.dtype] = {}
        for *_, tensor in parameters_and_buffers(owner):
            self._know(tensor, None)
        for module in owner.modules():
            prepare: Any = getattr(module, "prepare_step", None)
            if prepare is not None:
                prepare()
        for tensor in (t for one in caches_below(owner) for t in one.tensors()):
            self._know(tensor, None)
            self.listing.pinned.append(tensor)
        self._know(x, Operand("x", 0))
        for index, (_, leaf) in enumerate(leaves):
            self._know(leaf, Operand("before", index))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See native calls and torch operations of this thread."""
        native = library.current().native
        assert native is not None
        functions = {key: self._noted(*key, function) for key, function in native.functions.items()}
        with library.calling(functions), self:
            _active.recorder = self
            try:
                yield
            finally:
                _active.recorder = None

    def _noted(self, name: str, dtype: torch.dtype, function: library.Function) -> library.Function:
        if name.endswith("_workspace"):  # asks for a size, and writes nothing
            return function
        pointers = library.SIGNATURES[name].pointers
        numbers = library.SIGNATURES[name].numbers

        def call(*arguments: Any) -> int:
            sizes = arguments[pointers : len(arguments) - numbers - 1]
            words = [self._address(argument) for argument in arguments[:pointers]]
            self.listing.call(name, dtype, words, sizes, arguments[len(arguments) - numbers :])
            return function(*arguments)

        return call

    def _address(self, argument: Any) -> Word:
        if not argument:
            return 0
        if isinstance(argument, ctypes.Array):
            self.listing.pinned.append(argument)
            return ctypes.addressof(argument)
        region = self._find(argument)
        if region.turned:
            raise CannotRecordError("a native call reads what is whole numbers elsewhere")
        return region.at(argument - region.begin)

    def _know(self, tensor: Tensor, place: Operand | None, base: int | None = None) -> None:
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        if begin and begin not in self._regions:
            insort(self._begins, begin)
            turned = tensor.dtype not in _REAL and (place is not None or base is not None)
            base = begin if base is None else base
            self._regions[begin] = Region(begin, begin + storage.nbytes(), place, base, turned)

    def _fix(self, tensor: Tensor) -> None:
        """Keep what is the same in every step; whole numbers and truths as float64."""
        numbers = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        begin = tensor.untyped_storage().data_ptr()
        if tensor.dtype not in _REAL:
            numbers = numbers.double()
            self._truths[begin] = torch.float64
        self.listing.pinned.append(numbers)
        self._know(tensor, None, numbers.data_ptr())
        self._fixed.add(begin)

    def _is_fixed(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._fixed

    def _find(self, address: int) -> Region:
        index = bisect_right(self._begins, address) - 1
        region = self._regions[self._begins[index]] if index >= 0 else None
        if region is None or address >= region.end:
            raise CannotRecordError("a call reads memory that is not a weight, a state or computed")
        return region

    def _made(self, tensor: Tensor) -> None:
        """A tensor of its own is a buffer of the program; truths are kept there as numbers."""
        begin, index = tensor.untyped_storage().data_ptr(), len(self.listing.buffers)
        if begin and begin not in self._regions:
            self._know(tensor, Operand("buffer", index))
            size = tensor.untyped_storage().nbytes()
            self.listing.buffers[index] = size * (8 if tensor.dtype is torch.bool else 1)

    def dtype(self, tensor: Tensor) -> torch.dtype:
        """What a tensor's numbers are in the program."""
        if tensor.dtype is torch.bool:
            return self._truths.get(tensor.untyped_storage().data_ptr(), torch.bool)
        return torch.float64 if tensor.dtype is torch.int64 else tensor.dtype

    def place(self, tensor: Tensor, dtype: torch.dtype) -> Word:
        """Where a tensor's first number is, for a call of that dtype."""
        if self.dtype(tensor) is not dtype:
            raise CannotRecordError(f"{tensor.dtype} among {dtype}")
        region = self._find(tensor.untyped_storage().data_ptr())
        if tensor.dtype not in _REAL and not region.turned:
            raise CannotRecordError(f"{tensor.dtype} that the layer holds")
        return region.at(int(tensor.storage_offset()) * dtype.itemsize)

    def constant(self, numbers: Sequence[int]) -> int:
        """The address of whole numbers that a call reads."""
        held = array("q", numbers)
        self.listing.pinned.append(held)
        return held.buffer_info()[0]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if function._schema.is_mutable and given and self._is_fixed(given[0]):
            raise CannotRecordError(f"{function} of what was made of no tensor")
        if not function.is_view and (name in _MADE if not given else self._folds(function, given)):
            out = function(*args, **kwargs)
            self._alive.append(out)
            self._fix(out)
            return out
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        is_view = function.is_view or name in _VIEWS
        if rule is None and not is_view and name not in _EMPTY:
            with self:
                whole = function.decompose(*args, **kwargs)
            if whole is NotImplemented:
                raise CannotRecordError(str(function))
            return whole
        out = function(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self._alive += made
        if rule is None:
            if not is_view:
                for tensor in made:
                    self._made(tensor)
            return out
        for tensor in made:
            self._made(tensor)
        rule(self, out, *args, **kwargs)
        return out

    def _folds(self, function: Any, given: list[Tensor]) -> bool:
        """Whether it makes one tensor, always the same, of what is fixed."""
        returned = function._schema.returns
        alone = len(returned) == 1 and str(returned[0].type) == "Tensor"
        chance = torch.Tag.nondeterministic_seeded in function.tags
        made = function.overloadpacket.__name__ not in _EMPTY  # room is for others to write to
        plain = alone and made and not chance and not function._schema.is_mutable
        return plain and all(map(self._is_fixed, given))

    def pointwise(
        self,
        function: str,
        y: Tensor,
        *inputs: Tensor,
        scale: float = 0.0,
        offset: float = 0.0,
    ) -> None:
        """y = f(inputs), repeated to y's shape."""
        dtype = self.dtype(y)
        if y.dtype is torch.bool:
            dtype = self._truths[y.untyped_storage().data_ptr()] = self.dtype(inputs[0])
        alike = [x if self.dtype(x) is dtype else self.converted(x, dtype) for x in inputs]
        spread = [x.expand(y.shape) if x.shape != y.shape else x for x in alike]
        layout = _layout(y.shape, [y.stride(), *(x.stride() for x in spread)], 4)
        places = [self.place(x, dtype) for x in (y, *spread)]
        places += [0] * (4 - len(places))
        pointers = [*places, self.constant(layout)]
        self.listing.call(
            "pointwise", dtype, pointers, [FUNCTIONS.index(function)], [scale, offset]
        )

    def converted(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x in another precision."""
        y = self.new(x, x.shape, dtype)
        self.convert(y, x)
        return y

    def convert(self, y: Tensor, x: Tensor) -> None:
        """y = x in another precision."""
        dtype = self.dtype(y)
        if {self.dtype(x), dtype} != set(_REAL):
            raise CannotRecordError(f"{x.dtype} as {y.dtype}")
        layout = _layout(y.shape, [y.stride(), x.expand(y.shape).stride()], 2)
        pointers = [self.place(y, dtype), self.place(x, self.dtype(x)), self.constant(layout)]
        self.listing.call("convert", dtype, pointers, [])

    def copy(self, y: Tensor, x: Tensor) -> None:
        """y = x."""
        if y.dtype is torch.int64 and x.is_floating_point():
            raise CannotRecordError("numbers cut off to whole ones")
        if self.dtype(x) is self.dtype(y):
            self.pointwise("copy", y, x)
        else:
            self.convert(y, x)

    def new(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """A buffer for what a rule needs in between."""
        made = like.new_empty(shape, dtype=dtype)
        self._alive.append(made)
        self._made(made)
        return made

    def finish(self, y: Tensor, after: State) -> None:
        """Have the last calls write where the program's outputs are, or copy them there."""
        wanted = dict(state_leaves(after))
        if list(wanted) != [path for path, *_ in self.listing.leaves]:
            raise CannotRecordError("the state has other leaves after the step")
        outputs = [(y, Operand("y", 0))]
        outputs += [(leaf, Operand("after", i)) for i, leaf in enumerate(wanted.values())]
        renamed: dict[int, Operand] = {}
        for tensor, place in outputs:
            if not tensor.numel():
                continue
            shape, dtype = self._expected(place)
            if tuple(tensor.shape) != shape or tensor.dtype is not dtype:
                raise CannotRecordError("a leaf of the state changes its shape")
            source = self._find(tensor.untyped_storage().data_ptr())
            whole = tensor.is_contiguous() and source.end - source.begin == tensor.nbytes
            known = source.place
            if whole and known and known.kind == "buffer" and known.index not in renamed:
                renamed[known.index] = place
            else:
                self._copy_out(tensor, place)
        for call in self.listing.calls:
            for at, word in enumerate(call):
                if isinstance(word, Operand) and word.kind == "buffer" and word.index in renamed:
                    target = renamed[word.index]
                    call[at] = Operand(target.kind, target.index, word.offset)

    def _expected(self, place: Operand) -> tuple[tuple[int, ...], torch.dtype]:
        if place.kind == "y":
            return self.listing.shape, self.listing.dtype
        _, shape, dtype = self.listing.leaves[place.index]
        return shape, dtype

    def _copy_out(self, tensor: Tensor, place: Operand) -> None:
        target = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._alive.append(target)
        self._know(target, place)
        self.copy(target, tensor)


def _layout(shape: Sequence[int], strides: Sequence[Sequence[int]], arrays: int) -> list[int]:
    """Sizes and strides with as few axes as do, filled up to four in front."""
    axes: list[tuple[int, list[int]]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if axes and all(a == b * size for a, b in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    if len(axes) > AXES:
        raise CannotRecordError(f"more than {AXES} axes")
    axes = [(1, [0] * len(strides))] * (AXES - len(axes)) + axes
    columns = [[steps[i] for _, steps in axes] for i in range(len(strides))]
    columns += [[0] * AXES] * (arrays - len(strides))
    return [size for size, _ in axes] + [step for column in columns for step in column]


def _copied(state: State) -> State:
    return {
        name: _copied(value)
        if isinstance(value, dict)
        else value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
    }


def _same(seen: tuple[Tensor, State], run: tuple[Tensor, State]) -> bool:
    pairs = [(seen[0], run[0])]
    other = dict(state_leaves(run[1]))
    pairs += [(leaf, other[path]) for path, leaf in state_leaves(seen[1])]
    return all(_near(a, b) for a, b in pairs)


def _near(expected: Tensor, given: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    if not torch.equal(expected.isnan(), given.isnan()):
        return False
    expected, given = expected.nan_to_num(), given.nan_to_num()
    scale = float(expected.abs().amax()) if expected.numel() else 0.0
    most = float((expected - given).abs().amax()) if expected.numel() else 0.0
    return most <= _CLOSE[expected.dtype] * max(scale, 1e-30)
