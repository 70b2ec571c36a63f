"""A buffer with spare room in which a history grows, and its fill marks.

A leaf of a state is a view of the buffer, and an attribute of the leaf leads to it. A call that
would write before a mark (a fork) gets a buffer of its own, so older states keep their meaning.
Leaves share memory with later ones, so editing one in place would change them too: torch counts
such edits, and a buffer that was edited is refused.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError

# The attribute by which a leaf of a state knows its buffer; copies of the leaf do not have it.
BUFFER = "_threefold_buffer"
_CLAIM = Lock()
# A new buffer has spare capacity for half its length, and for at least this many elements.
SPARE = 64


class NotCopied:
    """What a leaf of a state knows besides its values; copies and pickles of the leaf lose it."""

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    """What is left of a `NotCopied` in a copy or a pickle."""


class GrowingBuffer(NotCopied):
    """Storage [B, heads, capacity, size], so that each head is contiguous, and its fill marks."""

    filled: list[int]  # how far each row is written

    def __init__(self, past: Tensor, length: int, capacity: int) -> None:
        rows, _, heads, size = past.shape
        self.storage = past.new_zeros(rows, heads, capacity, size)
        # Views of the storage: [B, capacity, heads, size], and [B, capacity, size] for each head.
        self.elements = self.storage.transpose(1, 2)
        self.heads = self.storage.unbind(1)
        # The same memory, written without counting it as an edit of a leaf.
        self.writable = self.storage.data.transpose(1, 2)
        self.filled = [length] * rows
        self.writable[:, :length] = past[:, :length]
        # Tensors of inference mode have no count.
        self._edits = None if self.storage.is_inference() else self.storage._version

    def check_edits(self) -> None:
        """Raise an error if a leaf that is a view of this buffer was edited in place."""
        if self._edits is not None and self.storage._version != self._edits:
            raise ThreefoldError(
                "state: a history was edited in place, which changes all states that share its "
                "memory; edit a clone instead: state[...] = leaf.clone(), then edit that"
            )

    @property
    def room(self) -> int:
        """The number of elements for which there is room."""
        return self.storage.shape[2]

    def give_back(self, claimed: list[int], used: list[int]) -> None:
        """Free the positions after `used` that were claimed and not written."""
        with _CLAIM:
            if self.filled == claimed:
                self.filled = used

    def claim(self, starts: list[int], ends: list[int]) -> bool:
        """Reserve positions starts[b] … ends[b] of each row; False if they cannot be written."""
        self.check_edits()
        if self.storage.is_inference() and not torch.is_inference_mode_enabled():
            return False
        with _CLAIM:
            if starts == self.filled and max(ends, default=0) <= self.storage.shape[2]:
                self.filled = list(ends)
                return True
            written = [row for row in range(len(ends)) if ends[row] > starts[row]]
            if len(ends) != len(self.filled) or max(ends, default=0) > self.storage.shape[2]:
                return False
            if any(starts[row] < self.filled[row] for row in written):
                return False
            for row in written:
                self.filled[row] = ends[row]
        return True


def claim_buffer(past: Tensor, starts: list[int], ends: list[int]) -> GrowingBuffer:
    """A buffer that holds the past and in which these positions are reserved for the caller."""
    buffer: GrowingBuffer | None = getattr(past, BUFFER, None)
    if buffer is None or not buffer.claim(starts, ends):
        end = max(ends)
        buffer = GrowingBuffer(past, min(past.shape[1], end), end + max(SPARE, end // 2))
        buffer.filled = list(ends)
    return buffer


def claim_window(past: Tensor, length: int) -> tuple[GrowingBuffer, int]:
    """A buffer that holds a window, with room for `length` elements after its end; that end."""
    rows, size = past.shape[:2]
    buffer: GrowingBuffer | None = getattr(past, BUFFER, None)
    end: int = getattr(past, BUFFER + "_end", 0)
    if buffer is None or not buffer.claim([end] * rows, [end + length] * rows):
        end = size
        buffer = GrowingBuffer(past, size, 2 * size + length + SPARE)
        buffer.filled = [end + length] * rows
    return buffer, end


def state_view(buffer: GrowingBuffer, begin: int, end: int) -> Tensor:
    """The leaf of a state: a view of positions begin … end that knows its buffer."""
    view = buffer.elements.narrow(1, begin, end - begin)
    setattr(view, BUFFER, buffer)
    setattr(view, BUFFER + "_end", end)
    return view
