"""y, state = call_n(… call_1(x, state₋)): the native calls of a step, all in one crossing

The step of a stack is a few native calls a layer, and the way from one to the next through Python
takes longer than they do. A `Writer` notes once which call reads and writes what; a `Program` then
fills in where things lie and has all calls made at once. It serves as long as nothing that it was
written from has changed; whoever runs it has the ordinary way for when it does not.
"""

from __future__ import annotations

import math
import struct
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.linear import MOST_ROWS, PLAIN

# In the order of native/program.cpp.
OPERATIONS = ("add", "rms_norm_forward", "mamba_step")

Path = tuple[str, ...]
State = dict[str, Any]


class CannotWriteError(Exception):
    """A layer whose step is not a sequence of native calls, or not with such parameters."""


@dataclass(frozen=True)
class Operand:
    """Where a number of a call's arguments comes from: a kind of place and which one of it."""

    kind: str
    index: int


@dataclass
class Writer:
    """Notes the calls of a step for a number of rows of one dtype."""

    rows: int
    dtype: torch.dtype
    words: list[Operand | int] = field(default_factory=list)
    parameters: list[tuple[Mapping[str, Tensor | None], str, Tensor]] = field(default_factory=list)
    leaves: list[tuple[Path, tuple[int, ...]]] = field(default_factory=list)
    workspace: int = 0

    def parameter(self, module: nn.Module, name: str, shape: tuple[int, ...]) -> Operand:
        """A parameter of one of our modules; it must have that shape, and the program's dtype."""
        tensor = module._parameters.get(name)
        ours = type(module).__module__.partition(".")[0] == "threefold"
        if tensor is None or tensor.shape != shape or not (ours and self._plain(tensor)):
            raise CannotWriteError(f"{type(module).__name__}.{name}")
        self.parameters.append((module._parameters, name, tensor))
        return Operand("parameter", len(self.parameters) - 1)

    def leaf(self, path: Path, *shape: int) -> tuple[Operand, Operand]:
        """A leaf of the state, without the batch: before the step, and after it."""
        self.leaves.append((path, (self.rows, *shape)))
        index = len(self.leaves) - 1
        return Operand("before", index), Operand("after", index)

    def buffer(self, numbers: int) -> Operand:
        """Room for that many numbers, as long as the step lasts."""
        begin = self.workspace
        # Each begins at a cache line.
        self.workspace += -(-numbers // 16) * 16
        return Operand("buffer", begin)

    def call(self, name: str, *arguments: Operand | int | float) -> None:
        """A call of a native operation; the number of threads comes after the other integers."""
        signature = library.SIGNATURES[name]
        pointers, integers = arguments[: signature.pointers], arguments[signature.pointers :]
        if len(integers) != signature.integers - 1 + signature.numbers:
            raise ThreefoldError(f"{name}: {len(arguments)} arguments do not fit {signature}")
        sizes, numbers = integers[: signature.integers - 1], integers[signature.integers - 1 :]
        self.words += [OPERATIONS.index(name), *pointers, *sizes]  # type: ignore[list-item]
        self.words += [Operand("threads", 0), *(_bits(float(n)) for n in numbers)]  # type: ignore[arg-type]

    def _plain(self, tensor: Tensor) -> bool:
        return (
            type(tensor) in PLAIN
            and tensor.dtype is self.dtype
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not tensor.is_neg()
        )


def _bits(number: float) -> int:
    return int(struct.unpack("q", struct.pack("d", number))[0])


class Threads:
    """All threads; one for a while, after a run in which they kept each other waiting.

    A step is a hundred products, and after each the threads meet. Where another process holds a
    core, each meeting takes as long as that is given it: twenty times the work itself. The bits of
    a step are the same for any number of threads.
    """

    FIRST, LAST = 16, 1024
    TOO_LONG = 4

    def __init__(self) -> None:
        self.best = math.inf
        self.alone = 0
        self.next = self.FIRST

    def take(self) -> int:
        """How many to use for the next run."""
        if self.alone:
            self.alone -= 1
            return 1
        return torch.get_num_threads()

    def note(self, threads: int, seconds: float) -> None:
        """What a run with that many took."""
        if threads == 1:
            return
        if seconds > self.TOO_LONG * self.best:
            self.alone, self.next = self.next, min(2 * self.next, self.LAST)
            return
        self.best, self.next = min(self.best, seconds), self.FIRST


INPUT, _OUTPUT = Operand("input", 0), Operand("output", 0)


class Program:
    """What a `Writer` noted of `owner`, ready to run; `y` is where the last call writes."""

    def __init__(self, writer: Writer, y: Operand, owner: nn.Module) -> None:
        self._writer = writer
        self._threads = Threads()
        self._modules = [(module, dict(module._modules)) for module in owner.modules()]
        noted = {id(tensor) for *_, tensor in writer.parameters}
        for name, parameter in owner.named_parameters():
            if id(parameter) not in noted:
                raise CannotWriteError(f"no call reads {name}")
        words = [_OUTPUT if word == y else word for word in writer.words]
        self._pointers = [tensor.data_ptr() for *_, tensor in writer.parameters]
        self._hooks = [
            hooks
            for module, _ in self._modules
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._code = array("q", (word if isinstance(word, int) else 0 for word in words))
        self._places: dict[str, list[tuple[int, int]]] = {}
        for place, word in enumerate(words):
            if isinstance(word, Operand):
                self._places.setdefault(word.kind, []).append((place, word.index))
        for place, index in self._places.get("parameter", ()):
            self._code[place] = self._pointers[index]

    @property
    def watched(self) -> bool:
        """Whether a hook waits for a module to be called, which a program never does."""
        return any(self._hooks) or any(_global_hooks())

    @property
    def valid(self) -> bool:
        """Whether the layers are still those that it was written from."""
        for module, parts in self._modules:
            now = module._modules
            if len(now) != len(parts) or any(now.get(name) is not parts[name] for name in parts):
                return False
        for (holder, name, tensor), pointer in zip(
            self._writer.parameters, self._pointers, strict=True
        ):
            if holder.get(name) is not tensor or tensor.data_ptr() != pointer:
                return False
        return True

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State] | None:
        """One element x [B, 1, width] after `state`; None where the ordinary way must be taken."""
        before = self._leaves_of(state)
        if before is None or x.dtype is not self._writer.dtype or not x.is_contiguous():
            return None
        y = x.new_empty(x.shape)
        after = [leaf.new_empty(leaf.shape) for leaf in before]
        workspace = x.new_empty(self._writer.workspace)
        code = self._code[:]
        self._fill(code, "input", [x])
        self._fill(code, "output", [y])
        self._fill(code, "before", before)
        self._fill(code, "after", after)
        begin, size, threads = workspace.data_ptr(), x.element_size(), self._threads.take()
        for place, offset in self._places.get("buffer", ()):
            code[place] = begin + offset * size
        for place, _ in self._places["threads"]:
            code[place] = threads
        started = time.perf_counter()
        library.run_program(x.dtype, code)
        self._threads.note(threads, time.perf_counter() - started)
        return y, self._tree(after)

    def _fill(self, code: array[int], kind: str, tensors: list[Tensor]) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors]
        for place, index in self._places.get(kind, ()):
            code[place] = pointers[index]

    def _leaves_of(self, state: State) -> list[Tensor] | None:
        """The state's leaves in the order they were noted, if they are just these."""
        found: list[Tensor] = []
        dtype = self._writer.dtype
        for path, shape in self._writer.leaves:
            node: Any = state
            for name in path:
                if type(node) is not dict or name not in node:
                    return None
                node = node[name]
            if (
                type(node) not in PLAIN
                or node.shape != shape
                or node.dtype is not dtype
                or not node.is_contiguous()
                or not node.is_cpu
                or node.is_neg()
            ):
                return None
            found.append(node)
        return found if sum(1 for _ in _values(state)) == len(found) else None

    def _tree(self, leaves: list[Tensor]) -> State:
        tree: State = {}
        for (path, _), leaf in zip(self._writer.leaves, leaves, strict=True):
            node = tree
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = leaf
        return tree


def _values(state: Mapping[str, Any]) -> Iterator[Any]:
    for value in state.values():
        if isinstance(value, dict):
            yield from _values(value)
        else:
            yield value


def _global_hooks() -> tuple[Any, Any]:
    module = nn.modules.module
    return module._global_forward_hooks, module._global_forward_pre_hooks


def serves(rows: int) -> bool:
    """Whether that many rows are few enough for the products inside."""
    return 0 < rows <= MOST_ROWS
