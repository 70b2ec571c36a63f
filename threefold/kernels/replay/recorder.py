"""calls = what a step does, noted while it runs: native calls and torch operations

A step without gradients is straight-line code, so one run shows all of it. Native calls are
recorded with the addresses they are given; every torch operation between them must have a rule that
translates it into native calls (`lowering.py`), or the step cannot be recorded. Views are addresses
only. Tensors made from no tensor (`arange`) are constants; integers that a step computes are
float64 in its program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from threefold.kernels import library
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.declarations import PROTOTYPES
from threefold.kernels.parameter_cache import caches_below
from threefold.kernels.replay.activity import recording_with
from threefold.kernels.replay.growth import LeafGrowth
from threefold.kernels.replay.listing import (
    CannotRecordError,
    Leaf,
    Listing,
    Operand,
    State,
    Word,
    state_leaves,
)
from threefold.kernels.replay.lowering import FUNCTIONS, RULES
from threefold.kernels.replay.regions import REAL, Regions, layout_of
from threefold.kernels.replay.validity import parameters_and_buffers

# Operations that allocate without writing, and a view whose schema does not say so.
_EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
_VIEWS = ("_unsafe_view",)
# Operations that make constants; what is computed from constants alone is constant too.
_CONSTANTS = ("arange", "linspace", "eye", "triu_indices")


_READS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.item)


class _Reads(TorchFunctionMode):
    """Refuses what would turn a tensor into numbers of Python, which a program could not follow."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _READS and self._recorder.watches and not self._recorder.is_fixed(args[0]):
            raise CannotRecordError(f"{function.__name__} of a tensor that a step computes")
        return function(*args, **(kwargs or {}))


class Recorder(Regions, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records native calls and torch operations inside `with watching()`."""

    def __init__(self, owner: nn.Module, x: Tensor, state: State) -> None:
        leaves = list(state_leaves(state))
        for path, leaf in leaves:
            if leaf.dtype not in (*REAL, torch.int64):
                raise CannotRecordError(f"the state's leaf {'.'.join(path)} is {leaf.dtype}")
        shapes = [Leaf(path, tuple(leaf.shape), leaf.dtype) for path, leaf in leaves]
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        Regions.__init__(self, Listing((tuple(x.shape), x.dtype), shapes))
        self._leaves = [leaf for _, leaf in leaves]
        # Leaves that grew, by the tensor after the step.
        self._grown: dict[int, int] = {}
        self.watches = True
        for _, name, tensor in parameters_and_buffers(owner):
            if type(tensor) not in PLAIN_TENSOR_TYPES:  # quantised or sharded: has no one address
                raise CannotRecordError(f"{name} is a {type(tensor).__name__}")
            self._add_region(tensor, None)
        for module in owner.modules():
            prepare: Any = getattr(module, "prepare_step", None)
            if prepare is not None:
                prepare()
        for tensor in (t for one in caches_below(owner) for t in one.tensors()):
            self._add_region(tensor, None)
            self.listing.pinned.append(tensor)
        self._add_input(x, Operand("x", 0))
        for index, leaf in enumerate(self._leaves):
            self._add_input(leaf, Operand("before", index))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the native calls and torch operations of this thread."""
        native = library.current().native
        assert native is not None
        functions = {
            key: self._recorded(*key, function) for key, function in native.functions.items()
        }
        with library.calling(functions), self, _Reads(self), recording_with(self):
            yield

    @contextmanager
    def not_watching(self) -> Iterator[None]:
        """Run something without recording it."""
        before, self.watches = self.watches, False
        try:
            with library.calling(None), _disable_current_modes():
                yield
        finally:
            self.watches = before

    def _recorded(
        self, name: str, dtype: torch.dtype, function: library.Function
    ) -> library.Function:
        if name.endswith(("_workspace", "_parts")):  # asks for a number, and writes nothing
            return function
        pointers, numbers = PROTOTYPES[name].pointers, len(PROTOTYPES[name].numbers)

        def call(*arguments: Any) -> int:
            sizes = arguments[pointers : len(arguments) - numbers - 1]
            words = [self._argument(argument) for argument in arguments[:pointers]]
            self.listing.call(name, dtype, words, sizes, arguments[len(arguments) - numbers :])
            return function(*arguments)

        return call

    def _argument(self, argument: Any) -> Word:
        if not argument:
            return 0
        if isinstance(argument, ctypes.Array):
            self.listing.pinned.append(argument)
            return ctypes.addressof(argument)
        region = self._find(argument)
        if region.converted and argument in self._integers:
            return self._integers[argument]
        if region.converted:
            raise CannotRecordError("a native call reads integers")
        return region.at(argument - region.begin)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if name == "lift_fresh":  # a literal
            self._alive.append(args[0])
            self._add_constant(args[0])
            return args[0]
        if function._schema.is_mutable and given and self._is_constant(given[0]):
            raise CannotRecordError(f"{function} changes a constant in place")
        if not function.is_view and (
            name in _CONSTANTS if not given else self._folds(function, given)
        ):
            out = function(*args, **kwargs)
            self._alive.append(out)
            self._add_constant(out)
            return out
        rule = RULES.get(name) or RULES.get(name.removesuffix("_"))
        is_view = function.is_view or name in _VIEWS
        if rule is None and not is_view and name not in _EMPTY:
            with self:
                decomposed = function.decompose(*args, **kwargs)
            if decomposed is NotImplemented:
                raise CannotRecordError(str(function))
            return decomposed
        out = function(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self._alive += results
        if rule is None:
            if not is_view:
                for tensor in results:
                    self._add_buffer(tensor)
            return out
        for tensor in results:
            self._add_buffer(tensor)
        try:
            rule(self, out, *args, **kwargs)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise CannotRecordError(f"{function}: {error}") from error
        return out

    def _folds(self, function: Any, given: list[Tensor]) -> bool:
        """Whether the operation makes one tensor from constants alone, the same at every step."""
        returned = function._schema.returns
        alone = len(returned) == 1 and str(returned[0].type) == "Tensor"
        random = torch.Tag.nondeterministic_seeded in function.tags
        writes = function.overloadpacket.__name__ not in _EMPTY
        plain = alone and writes and not random and not function._schema.is_mutable
        return plain and all(map(self._is_constant, given))

    def pointwise(
        self,
        function: str,
        y: Tensor,
        *inputs: Tensor,
        scale: float = 0.0,
        offset: float = 0.0,
    ) -> None:
        """y = f(inputs), with the inputs broadcast to y's shape."""
        dtype = self.dtype(y)
        if y.dtype is torch.bool:
            dtype = self.dtype(inputs[0]) if inputs else torch.float64
            self._bool_dtypes[y.untyped_storage().data_ptr()] = dtype
        alike = [x if self.dtype(x) is dtype else self.converted(x, dtype) for x in inputs]
        spread = [x.expand(y.shape) if x.shape != y.shape else x for x in alike]
        layout = layout_of(y.shape, [y.stride(), *(x.stride() for x in spread)], 4)
        addresses = [self.address(x, dtype) for x in (y, *spread)]
        addresses += [0] * (4 - len(addresses))
        pointers = [*addresses, self.constant(layout)]
        self.listing.call(
            "pointwise", dtype, pointers, [FUNCTIONS.index(function)], [scale, offset]
        )

    def converted(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x in another dtype."""
        y = self.new(x, x.shape, dtype)
        self.convert(y, x)
        return y

    def convert(self, y: Tensor, x: Tensor) -> None:
        """y = x in another dtype."""
        dtype = self.dtype(y)
        if {self.dtype(x), dtype} != set(REAL):
            raise CannotRecordError(f"a conversion from {x.dtype} to {y.dtype}")
        layout = layout_of(y.shape, [y.stride(), x.expand(y.shape).stride()], 2)
        pointers = [self.address(y, dtype), self.address(x, self.dtype(x)), self.constant(layout)]
        self.listing.call("convert", dtype, pointers, [])

    def copy(self, y: Tensor, x: Tensor) -> None:
        """y = x."""
        if y.dtype is torch.int64 and x.is_floating_point():
            raise CannotRecordError("a conversion from floating point to integers")
        if self.dtype(x) is self.dtype(y):
            self.pointwise("copy", y, x)
        else:
            self.convert(y, x)

    def new(self, like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
        """A buffer for an intermediate result of a rule."""
        buffer = like.new_empty(shape, dtype=dtype)
        self._alive.append(buffer)
        self._add_buffer(buffer)
        return buffer

    def gather(self, y: Tensor, table: Tensor, index: Tensor) -> None:
        """y = rows of a table [entries, …] by their numbers."""
        width = y.numel() // max(index.numel(), 1)
        if not (table.is_contiguous() and index.is_contiguous() and y.is_contiguous()):
            raise CannotRecordError("a table or an index that is not contiguous")
        pointers = [
            self.address(y, y.dtype),
            self.address(table, y.dtype),
            self.address(index, torch.float64),
        ]
        self.listing.call("gather", y.dtype, pointers, [index.numel(), width, len(table)])

    def add_result(self, tensor: Tensor) -> None:
        """A tensor that a call writes, made while not watching."""
        self._alive.append(tensor)
        self._add_buffer(tensor)

    def grow(self, leaf: Tensor, after: Tensor, growth: LeafGrowth) -> int:
        """Note that a leaf grows to `after`; returns its number."""
        index = self.leaf_of(leaf)
        if index in self._grown.values():
            raise CannotRecordError("a history that grows twice in one step")
        self.listing.leaves[index] = replace(self.listing.leaves[index], growth=growth)
        self._alive.append(after)
        self._grown[id(after)] = index
        return index

    def gather_narrow(self, y: Tensor, table: Tensor, scale: Tensor | None, index: Tensor) -> None:
        """y = rows of a table of bfloat16, or of 8-bit codes with a scale for each row."""
        self.add_result(y)
        region = self._find(table.untyped_storage().data_ptr())
        if region.operand is not None or not table.is_contiguous():
            raise CannotRecordError("a narrow table that is not a weight")
        pointers = [
            self.address(y, y.dtype),
            region.at(int(table.storage_offset()) * table.element_size()),
            0 if scale is None else self.address(scale, y.dtype),
            self.address(index.contiguous(), torch.float64),
        ]
        sizes = [index.numel(), table.shape[1], len(table)]
        self.listing.call("gather_narrow", y.dtype, pointers, sizes)

    def leaf_of(self, tensor: Tensor) -> int:
        """The number of the state's leaf that a tensor is."""
        for index, leaf in enumerate(self._leaves):
            if leaf is tensor:
                return index
        raise CannotRecordError("a history that is not a leaf of the state")

    def finish(self, y: Tensor, after: State) -> None:
        """Make the last calls write into the program's outputs, or copy the results there."""
        before = {leaf.path: leaf for leaf in self.listing.leaves}
        results = list(state_leaves(after))
        for path, leaf in results:
            source = self._grown.get(id(leaf), -1)
            kept = before.get(path)
            # Leaves on one side only are handed from layer to layer, and not carried.
            if source < 0 and kept and (kept.shape, kept.dtype) != (tuple(leaf.shape), leaf.dtype):
                raise CannotRecordError("a leaf of the state changes its shape or dtype")
            if source >= 0 and (kept is None or self.listing.leaves[source].path != path):
                raise CannotRecordError("a history moves to another leaf")
            made = Leaf(path, tuple(leaf.shape), leaf.dtype, source=source)
            self.listing.results.append(made)
        self.listing.y = tuple(y.shape), y.dtype
        outputs = [(y, Operand("y", 0))]
        outputs += [
            (leaf, Operand("after", i))
            for i, (_, leaf) in enumerate(results)
            if id(leaf) not in self._grown
        ]
        renamed: dict[int, Operand] = {}
        for tensor, operand in outputs:
            if tensor.numel():
                self._output(tensor, operand, renamed)
        for call in self.listing.calls:
            for at, word in enumerate(call):
                if isinstance(word, Operand) and word.kind == "buffer" and word.index in renamed:
                    target = renamed[word.index]
                    call[at] = Operand(target.kind, target.index, word.offset)

    def _output(self, tensor: Tensor, operand: Operand, renamed: dict[int, Operand]) -> None:
        if tensor.dtype not in (*REAL, torch.int64):
            raise CannotRecordError(f"a result is {tensor.dtype}")
        if tensor.dtype is torch.int64:
            self._integers_out(tensor, operand)
            return
        source = self._find(tensor.untyped_storage().data_ptr())
        complete = tensor.is_contiguous() and source.end - source.begin == tensor.nbytes
        known = source.operand
        if complete and known and known.kind == "buffer" and known.index not in renamed:
            renamed[known.index] = operand
            return
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        self._alive.append(target)
        self._add_region(target, operand)
        self.copy(target, tensor)

    def _integers_out(self, tensor: Tensor, operand: Operand) -> None:
        source = tensor
        if not tensor.is_contiguous():
            source = self.new(tensor, tensor.shape)
            self.copy(source, tensor)
        pointers = [operand, self.address(source, torch.float64)]
        self.listing.call("to_integers", torch.float64, pointers, [tensor.numel()])
