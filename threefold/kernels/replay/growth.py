"""How a leaf of a state grows in a program: room for its new elements, and the leaf after them.

A history has its elements from position 0 on and grows by one at each step; a window has a fixed
length and moves along its buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from threefold.kernels.growing_buffer import (
    GrowingBuffer,
    claim_buffer,
    claim_window,
    state_view,
)


@dataclass
class Grown:
    """Room for `steps` elements after those of a leaf, claimed for one run."""

    buffer: GrowingBuffer
    starts: list[int]  # where the first new element of each row goes
    steps: int
    window: int | None  # elements of the leaf; None: all

    @property
    def address(self) -> int:
        return self.buffer.storage.data_ptr()

    @property
    def room(self) -> int:
        return self.buffer.room

    def words(self, index: int) -> dict[str, dict[int, int]]:
        """What a program must know of the leaf number `index`, by kind of operand."""
        return {"storage": {index: self.address}, "room": {index: self.room}}

    def give_back(self, done: int) -> None:
        """Free the room of steps that were not made."""
        if done < self.steps:
            ends = [start + self.steps for start in self.starts]
            self.buffer.give_back(ends, [start + done for start in self.starts])

    def leaf(self, done: int) -> Tensor:
        """The leaf after `done` steps."""
        end = max(self.starts) + done
        return state_view(self.buffer, 0 if self.window is None else end - self.window, end)


@dataclass(frozen=True)
class LeafGrowth:
    """How a leaf grows; `position`: the index of the leaf that counts a history's elements."""

    position: int | None
    # Whether every state of the right shape will do; else some steps must run the ordinary way.
    from_anywhere = True

    def claim(self, leaf: Tensor, before: Sequence[Any], steps: int) -> Grown | None:
        """Claim room for this many steps; None if the position does not fit the history."""
        if self.position is None:
            buffer, end = claim_window(leaf, steps)
            return Grown(buffer, [end] * len(leaf), steps, leaf.shape[1])
        starts: list[int] = before[self.position].tolist()
        if not 0 <= min(starts) <= max(starts) <= leaf.shape[1]:
            return None
        buffer = claim_buffer(leaf, starts, [start + steps for start in starts])
        return Grown(buffer, starts, steps, None)
