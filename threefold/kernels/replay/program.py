"""y, state = call_n(… call_1(x, state₋)): the native calls of a step, all in one crossing

The step of a stack is a few native calls a layer, and the way from one to the next through Python
takes longer than they do. `recording.py` notes once which call reads and writes what; a `Program`
then fills in where things lie and has all calls made at once. It serves as long as nothing that it
was recorded from has changed; whoever runs it has the ordinary way for when it does not.
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
from threefold.kernels.linear import MAX_ROWS, PLAIN_TENSOR_TYPES
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
)
_DTYPES = (torch.float32, torch.float64)
# Buffers begin at cache lines.
_LINE = 64

State = dict[str, Any]
LeafPath = tuple[str, ...]


class CannotRecordError(Exception):
    """A step that is not a sequence of native calls."""


@dataclass(frozen=True)
class Operand:
    """Where a pointer leads: `offset` bytes into what a kind has under an index."""

    kind: str
    index: int
    offset: int = 0


THREADS = Operand("threads", 0)
Word = Operand | int


@dataclass
class Listing:
    """What a step does: its calls, the sizes of its buffers, and the leaves of its state."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    leaves: list[tuple[LeafPath, tuple[int, ...], torch.dtype]]
    calls: list[list[Word]] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)
    # What has to stay where it is as long as the calls are made.
    pinned: list[Any] = field(default_factory=list)

    def call(
        self,
        name: str,
        dtype: torch.dtype,
        pointers: Sequence[Word],
        sizes: Sequence[int],
        numbers: Sequence[float] = (),
    ) -> None:
        """Note a call; the number of threads comes after the other sizes."""
        if name not in OPERATIONS or dtype not in _DTYPES:
            raise CannotRecordError(f"{name} of {dtype}")
        number = 2 * OPERATIONS.index(name) + _DTYPES.index(dtype)
        bits = [int(struct.unpack("q", struct.pack("d", n))[0]) for n in numbers]
        self.calls.append([number, *pointers, *map(int, sizes), THREADS, *bits])


class Frame:
    """The words of a program with a workspace of their own: one run at a time."""

    def __init__(self, words: array[int], buffers: list[tuple[int, int]], numbers: int) -> None:
        self.words = words
        self.threads = 0
        self.workspace = torch.empty(numbers + _LINE, dtype=torch.uint8)
        begin = -(-self.workspace.data_ptr() // _LINE) * _LINE
        for place, offset in buffers:
            words[place] = begin + offset


class Program:
    """What was recorded of `owner`'s step, ready to run."""

    def __init__(self, listing: Listing, owner: nn.Module) -> None:
        self._listing = listing
        self.validity = Validity(owner)
        self._threads = ThreadBackoff()
        self._places: dict[str, list[tuple[int, int, int]]] = {}
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
                        self._places.setdefault(word.kind, []).append((at, word.index, word.offset))
                    words.append(0)
                else:
                    words.append(word)
        return words

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State] | None:
        """One element x [B, 1, width] after `state`; None where the ordinary way must be taken."""
        before = self._leaves_of(state)
        if before is None or x.dtype is not self._listing.dtype or x.shape != self._listing.shape:
            return None
        x = x.contiguous()
        y = x.new_empty(x.shape)
        after = [leaf.new_empty(leaf.shape) for leaf in before]
        frame = self._take_frame()
        words = frame.words
        for kind, tensors in (("x", (x,)), ("y", (y,)), ("before", before), ("after", after)):
            pointers = [tensor.data_ptr() for tensor in tensors]
            for place, index, offset in self._places.get(kind, ()):
                words[place] = pointers[index] + offset
        threads = self._threads.take()
        if threads != frame.threads:
            for place, *_ in self._places["threads"]:
                words[place] = threads
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
        """The state's leaves in the order they were noted, if they are just these."""
        found: list[Tensor] = []
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
            found.append(node.double() if dtype is torch.int64 else node)
        return found if sum(1 for _ in state_leaves(state)) == len(found) else None

    def _tree(self, leaves: list[Tensor]) -> State:
        tree: State = {}
        for (path, _, dtype), leaf in zip(self._listing.leaves, leaves, strict=True):
            node = tree
            for name in path[:-1]:
                node = node.setdefault(name, {})
            node[path[-1]] = leaf.long() if dtype is torch.int64 else leaf
        return tree


def _arrange(listing: Listing) -> tuple[dict[int, int], int]:
    """Where each buffer lies in one workspace; those that are never needed at once may overlap."""
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
    """Whether that many rows are few enough for the products inside."""
    return 0 < rows <= MAX_ROWS
