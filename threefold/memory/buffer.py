"""K_t = [K_{t−1}; k_t]: where a history is kept, and how it goes on without being copied.

`grow` keeps everything, `slide` the last ones.  With gradients both make new tensors.  Without,
they write behind the past in a buffer with room to spare, and copy only when it is full: a step
costs no copy of the past.  The state is a view of the buffer, so an older state keeps its meaning
as long as nobody writes twice to one place; the buffer remembers how far each row is filled, and
whoever would write before that mark (a fork) gets a buffer of its own.  For the same reason a
window slides along its buffer and moves to a new one at the end; a ring would overwrite what older
states still see.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

# The attribute of a leaf that knows its buffer; copies of the leaf do not have it.
_ROOM = "_threefold_room"
_CLAIM = Lock()
# A new buffer has room for half as much again, and for this many elements at least.
_SPARE = 64


class Room:
    """A buffer [B, heads, capacity, size], in which attention reads runs, and its marks."""

    def __init__(self, past: Tensor, length: int, capacity: int) -> None:
        rows, _, heads, size = past.shape
        self.buffer = past.new_zeros(rows, heads, capacity, size)
        # The buffer as [B, capacity, heads, size], and as [B, capacity, size] for each head.
        self.places = self.buffer.transpose(1, 2)
        self.heads = self.buffer.unbind(1)
        self.filled = [length] * rows
        self.places[:, :length] = past[:, :length]

    def claim(self, starts: list[int], ends: list[int]) -> bool:
        """Whether these places are free and writable; from now on they are taken."""
        if self.buffer.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with _CLAIM:
            if starts == self.filled and max(ends, default=0) <= self.buffer.shape[2]:
                self.filled = list(ends)
                return True
            written = [row for row in range(len(ends)) if ends[row] > starts[row]]
            if len(ends) != len(self.filled) or max(ends, default=0) > self.buffer.shape[2]:
                return False
            if any(starts[row] < self.filled[row] for row in written):
                return False
            for row in written:
                self.filled[row] = ends[row]
        return True


class Places(NamedTuple):
    """Where the elements of one call go: row b's from `starts[b]` to `ends[b]`."""

    starts: list[int]
    ends: list[int]
    position: Tensor  # the starts, int64 [B]
    lengths: Tensor | None  # real elements of each row; None: all

    @property
    def start(self) -> int | None:
        """The start of all rows, if they have one in common."""
        return self.starts[0] if len(set(self.starts)) == 1 else None

    @property
    def end(self) -> int:
        return max(self.ends)

    def spread(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, elements and places of all real elements."""
        elements = torch.arange(length, device=self.position.device)
        counts = self.position.new_full(self.position.shape, length)
        counts = counts if self.lengths is None else self.lengths
        row, element = (elements < counts.unsqueeze(1)).nonzero(as_tuple=True)
        return row, element, self.position[row] + element


def places_of(position: Tensor, length: int, lengths: Tensor | None) -> Places:
    """The places of `length` elements after `position` [B], or of each row's own `lengths`."""
    starts: list[int] = position.tolist()
    if lengths is None:
        return Places(starts, [start + length for start in starts], position, None)
    ends = [start + count for start, count in zip(starts, lengths.tolist(), strict=True)]
    return Places(starts, ends, position, lengths)


def grow(past: Tensor, new: Tensor, places: Places) -> Tensor:
    """past [B, T, G, size] and new [B, L, G, size] at their places: [B, longest row, G, size]."""
    if needs_gradient(past, new):
        return _joined(past, new, places)
    if past.shape[1] == 0 and places.lengths is None:
        return new
    room = claimed(past, places)
    if places.lengths is None and places.start is not None:
        room.places[:, places.start : places.end] = new
    else:
        row, element, place = places.spread(new.shape[1])
        room.places[row, place] = new[row, element]
    return leaf(room, 0, places.end)


def claimed(past: Tensor, places: Places) -> Room:
    """A room that holds the past, whose places are ours to write."""
    room: Room | None = getattr(past, _ROOM, None)
    if room is None or not room.claim(places.starts, places.ends):
        capacity = places.end + max(_SPARE, places.end // 2)
        room = Room(past, min(past.shape[1], places.end), capacity)
        room.filled = list(places.ends)
    return room


def slide(past: Tensor, new: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """[past; new] [B, W + L, G, size], and its last W elements (of each row's own end)."""
    size, length = past.shape[1], new.shape[1]
    if needs_gradient(past, new) or lengths is not None or length > size:
        context = torch.cat([past, new], 1)
        if lengths is None:
            last = context[:, length:]
            # Not a view that would keep a long piece alive.
            return context, last if needs_gradient(context) or length <= size else last.clone()
        places = torch.arange(size, device=new.device) + lengths.unsqueeze(1)
        return context, context[torch.arange(len(new), device=new.device).unsqueeze(1), places]
    room, end = getattr(past, _ROOM, None), getattr(past, _ROOM + "_end", 0)
    rows = len(new)
    if room is None or not room.claim([end] * rows, [end + length] * rows):
        end = size
        room = Room(past, size, 2 * size + _SPARE)
        room.filled = [end + length] * rows
    room.places[:, end : end + length] = new
    context = room.places[:, end - size : end + length]
    return context, leaf(room, end + length - size, end + length)


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether what is made of these tensors is part of a graph."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def leaf(room: Room, begin: int, end: int) -> Tensor:
    """The view of a room's places that a state has."""
    view = room.places.narrow(1, begin, end - begin)
    setattr(view, _ROOM, room)
    setattr(view, _ROOM + "_end", end)
    return view


def _joined(past: Tensor, new: Tensor, places: Places) -> Tensor:
    """`grow` as a differentiable function of both."""
    if places.lengths is None and places.start is not None:
        return torch.cat([past[:, : places.start], new], 1)
    missing = max(places.end - past.shape[1], 0)
    room = past.new_zeros(len(past), missing, *past.shape[2:])
    row, element, place = places.spread(new.shape[1])
    whole = torch.cat([past[:, : places.end], room], 1)
    return whole.index_put((row, place), new[row, element])
