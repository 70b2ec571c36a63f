"""A recorded step as a list of native calls, and where its buffers lie."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from threefold.kernels.replay.growth import LeafGrowth

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
    "gather",
    "from_integers",
    "to_integers",
    "history_step",
    "online_convolution",
    "cell_recurrence_forward",
    "legs_recurrence_forward",
    "gather_narrow",
    "swiglu_forward",
)
_DTYPES = (torch.float32, torch.float64)
# Buffers are aligned to cache lines, in bytes.
LINE = 64

State = dict[str, Any]
LeafPath = tuple[str, ...]


class CannotRecordError(Exception):
    """The step cannot be expressed as a sequence of native calls."""


class CannotRecordYetError(CannotRecordError):
    """A later step may be recorded."""


@dataclass(frozen=True)
class Leaf:
    """A leaf of a state: its place, shape and dtype, and how it grows, if it does."""

    path: LeafPath
    shape: tuple[int, ...]  # of a history, only the number of rows counts, and what follows axis 1
    dtype: torch.dtype
    growth: LeafGrowth | None = None
    source: int = -1  # of a result that grew: the leaf before the step


@dataclass(frozen=True)
class Operand:
    """What a word refers to: `offset` bytes into the tensor number `index` of a kind.

    Of a leaf that grows, `storage` is where its buffer begins, `starts` where the new element of
    each row goes, and `room` (a number) how many elements the buffer has.
    """

    kind: str
    index: int
    offset: int = 0


THREADS = Operand("threads", 0)
Word = Operand | int


@dataclass
class Listing:
    """A recorded step: its calls, the sizes of its buffers, and the leaves of its state."""

    x: tuple[tuple[int, ...], torch.dtype]
    leaves: list[Leaf]  # of the state before the step
    y: tuple[tuple[int, ...], torch.dtype] = ((), torch.float32)
    results: list[Leaf] = field(default_factory=list)  # of the state after it
    calls: list[list[Word]] = field(default_factory=list)
    buffers: dict[int, int] = field(default_factory=dict)
    weights: int = 0  # in all products
    # Objects whose addresses the calls contain: they must stay alive.
    pinned: list[Any] = field(default_factory=list)

    def call(
        self,
        name: str,
        dtype: torch.dtype,
        pointers: Sequence[Word],
        sizes: Sequence[Word],
        numbers: Sequence[float] = (),
    ) -> None:
        """Append a call; the number of threads comes after the other sizes."""
        if name not in OPERATIONS or dtype not in _DTYPES:
            raise CannotRecordError(f"{name} of {dtype}")
        if not all(isinstance(n, (bool, int, float)) for n in numbers):
            raise CannotRecordError(f"{name} with {numbers}, expected plain numbers")
        if not all(isinstance(n, (bool, int, Operand)) for n in sizes):
            raise CannotRecordError(f"{name} with the sizes {sizes}, expected integers")
        if name.startswith("linear"):
            self.weights += int(sizes[1]) * int(sizes[2])  # type: ignore[arg-type]
        number = 2 * OPERATIONS.index(name) + _DTYPES.index(dtype)
        bits = [int(struct.unpack("q", struct.pack("d", n))[0]) for n in numbers]
        sizes = [int(n) if isinstance(n, bool) else n for n in sizes]
        self.calls.append([number, *pointers, *sizes, THREADS, *bits])


def arrange(listing: Listing) -> tuple[dict[int, int], int]:
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
        size = -(-listing.buffers[index] // LINE) * LINE
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
