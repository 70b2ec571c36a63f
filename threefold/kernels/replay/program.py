"""y, state = call_n(… call_1(x, state₋)): the native calls of a step, made by one native call

The step of a stack is a few native calls per layer, and the Python between them takes longer than
they do. `recording.py` records once which call reads and writes what; a `Program` then fills in the
addresses and makes all calls at once. It may run as long as `validity.py` finds nothing changed;
otherwise the step runs as usual.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from threefold.kernels import library
from threefold.kernels.dispatch import PLAIN_TENSOR_TYPES
from threefold.kernels.linear import MAX_ROWS
from threefold.kernels.replay.thread_backoff import ThreadBackoff
from threefold.kernels.replay.validity import Validity

# In the order of native/program.cpp.
OPERATIONS = (
    "linear",
    "linear_narrow",
    "rms_norm_forward",
    "short_convolution_forward",
    "token_shift_forward",
    "selective_scan_forward",
    "decay_recurrence_forward",
    "delta_recurrence_forward",
    "diagonal_recurrence_forward",
    "pointwise",
    "reduce",
    "product",
    "convert",
    "reservoir_forward",
    "linear_codes",
)
_DTYPES = (torch.float32, torch.float64)
# Buffers are aligned to cache lines, in bytes.
_LINE = 64

State = dict[str, Any]
LeafPath = tuple[str, ...]
Leaf = tuple[LeafPath, tuple[int, ...], torch.dtype]


class CannotRecordError(Exception):
    """The step cannot be expressed as a sequence of native calls."""


@dataclass(frozen=True)
class Operand:
    """What a pointer refers to: `offset` bytes into the tensor number `index` of a kind."""

    kind: str
    index: int
    offset: int = 0


THREADS = Operand("threads", 0)
Word = Operand | int


@dataclass
class Listing:
    """A recorded step: its calls, the sizes of its buffers, and the leaves of its state."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    leaves: list[Leaf]  # of the state before the step
    results: list[Leaf] = field(default_factory=list)  # of the state after it
    calls: list[list[Word]] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)
    # Objects whose addresses the calls contain: they must stay alive.
    pinned: list[Any] = field(default_factory=list)

    def call(
        self,
        name: str,
        dtype: torch.dtype,
        pointers: Sequence[Word],
        sizes: Sequence[int],
        numbers: Sequence[float] = (),
    ) -> None:
        """Append a call; the number of threads comes after the other sizes."""
        if name not in OPERATIONS or dtype not in _DTYPES:
            raise CannotRecordError(f"{name} of {dtype}")
        number = 2 * OPERATIONS.index(name) + _DTYPES.index(dtype)
        bits = [int(struct.unpack("q", struct.pack("d", n))[0]) for n in numbers]
        self.calls.append([number, *pointers, *map(int, sizes), THREADS, *bits])


class Frame:
    """A copy of the program's words with its own workspace, for one run at a time."""

    def __init__(self, words: array[int], buffers: list[tuple[int, int]], numbers: int) -> None:
        self.words = words
        self.threads = 0
        self.workspace = torch.empty(numbers + _LINE, dtype=torch.uint8)
        begin = -(-self.workspace.data_ptr() // _LINE) * _LINE
        for index, offset in buffers:
            words[index] = begin + offset


class Program:
    """The recorded step of `owner`, ready to run."""

    def __init__(self, listing: Listing, owner: nn.Module) -> None:
        self._listing = listing
        self.validity = Validity(owner)
        self._threads = ThreadBackoff()
        self._operands: dict[str, list[tuple[int, int, int]]] = {}
        self._buffers: list[tuple[int, int]] = []
        self._words = self._assemble(*_arrange(listing))
        self._frames: list[Frame] = []

    def _assemble(self, offsets: dict[int, int], total: int) -> array[int]:
        self._workspace = total
        words: array[int] = array("q")
        for call in self._listing.calls:
            for word in call:
                if isinstance(word, Operand):
                    at = len(words)
                    if word.kind == "buffer":
                        self._buffers.append((at, offsets[word.index] + word.offset))
                    else:
                        self._operands.setdefault(word.kind, []).append(
                            (at, word.index, word.offset)
                        )
                    words.append(0)
                else:
                    words.append(word)
        return words

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State] | None:
        """Step on x [B, 1, width] after `state`; None if their shapes or dtypes do not fit."""
        before, listing = self._leaves_of(state), self._listing
        if before is None or x.dtype is not listing.dtype or x.shape != listing.shape:
            return None
        x = x.contiguous()
        y = x.new_empty(x.shape)
        after = [torch.empty(shape, dtype=_stored(dtype)) for _, shape, dtype in listing.results]
        frame = self._take_frame()
        words = frame.words
        for kind, tensors in (("x", (x,)), ("y", (y,)), ("before", before), ("after", after)):
            pointers = [tensor.data_ptr() for tensor in tensors]
            for word, index, offset in self._operands.get(kind, ()):
                words[word] = pointers[index] + offset
        threads = self._threads.take()
        if threads != frame.threads:
            for word, *_ in self._operands["threads"]:
                words[word] = threads
            frame.threads = threads
        started = time.perf_counter()
        library.run_program(words)
        self._threads.note(threads, time.perf_counter() - started)
        self._frames.append(frame)
        return y, self._tree(after)

    def _take_frame(self) -> Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return Frame(self._words[:], self._buffers, self._workspace)

    def _leaves_of(self, state: State) -> list[Tensor] | None:
        """The state's leaves in the recorded order; None if they are not the recorded ones."""
        leaves: list[Tensor] = []
        for path, shape, dtype in self._listing.leaves:
            node: Any = state
            for name in path:
                if type(node) is not dict or name not in node:
                    return None
                node = node[name]
            if (
                type(node) not in PLAIN_TENSOR_TYPES
                or node.shape != shape
                or node.dtype is not dtype
                or not node.is_cpu
                or node.is_neg()
            ):
                return None
            node = node if node.is_contiguous() else node.contiguous()
            leaves.append(node.double() if dtype is torch.int64 else node)
        return leaves if sum(1 for _ in state_leaves(state)) == len(leaves) else None

    def _tree(self, leaves: list[Tensor]) -> State:
        tree: State = {}
        for (path, _, dtype), leaf in zip(self._listing.results, leaves, strict=True):
            node = tree
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = leaf.long() if dtype is torch.int64 else leaf
        return tree


def _stored(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a leaf inside a program: integers are float64."""
    return torch.float64 if dtype is torch.int64 else dtype


def _arrange(listing: Listing) -> tuple[dict[int, int], int]:
    """The offset of each buffer in one workspace, and its size; unused buffers are reused."""
    lives: dict[int, tuple[int, int]] = {}
    for time_, call in enumerate(listing.calls):
        for word in call:
            if isinstance(word, Operand) and word.kind == "buffer":
                lives[word.index] = lives.get(word.index, (time_, time_))[0], time_
    offsets: dict[int, int] = {}
    alive: list[tuple[int, int, int]] = []
    total = 0
    for index, (born, dies) in sorted(lives.items(), key=lambda life: life[1]):
        alive = sorted(item for item in alive if item[2] >= born)
        size = -(-listing.buffers[index] // _LINE) * _LINE
        at = 0
        for begin, end, _ in alive:
            if begin - at >= size:
                break
            at = max(at, end)
        offsets[index] = at
        alive.append((at, at + size, dies))
        total = max(total, at + size)
    return offsets, total


def state_leaves(state: Mapping[str, Any], path: LeafPath = ()) -> Iterator[tuple[LeafPath, Any]]:
    """The leaves of a state with their paths."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from state_leaves(value, (*path, name))
        else:
            yield (*path, name), value


def few_enough_rows(rows: int) -> bool:
    """Whether the native product serves this many rows."""
    return 0 < rows <= MAX_ROWS
