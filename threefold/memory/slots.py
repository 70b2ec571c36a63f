"""Slots: rows of a joined state that are replaced one at a time, without copying the others.

Leaves of a fixed size are overwritten in place.  A history is written into the buffer in which the
others grow; only if that has no room for the new row, all of it moves to a larger one.
"""

from __future__ import annotations

from torch import Tensor

from threefold.kernels.growing_buffer import BUFFER, SPARE, GrowingBuffer, state_view
from threefold.memory.state import HISTORY, POSITION, State


def place(state: State, slot: int, row: State) -> State:
    """The state with the only row of `row` in a slot; `state` must not be used afterwards."""
    return _replace(state, slot, row)


def clear(state: State, slot: int) -> State:
    """The state with an empty row in a slot; `state` must not be used afterwards."""
    return _replace(state, slot, None)


def _replace(state: State, slot: int, row: State | None) -> State:
    result: State = {}
    grown = HISTORY & state.keys() if POSITION in state else frozenset()
    for name in sorted(state, key=POSITION.__eq__):  # the positions are needed until the end
        value, new = state[name], None if row is None else row[name]
        if isinstance(value, dict):
            result[name] = _replace(value, slot, new)
        elif name in grown:
            length = 0 if row is None else int(row[POSITION])
            result[name] = _replace_history(value, slot, new, length, state[POSITION].tolist())
        else:
            result[name] = _replace_row(value, slot, new)
    return {name: result[name] for name in state}


def _replace_row(leaf: Tensor, slot: int, new: Tensor | None) -> Tensor:
    if leaf.stride(0) == 0 and len(leaf) > 1:  # the same memory for all rows
        leaf = leaf.clone()
    # Not counted as an edit: no other state shares this memory.
    leaf.data[slot] = 0 if new is None else new[0]
    return leaf


def _replace_history(
    leaf: Tensor, slot: int, new: Tensor | None, length: int, positions: list[int]
) -> Tensor:
    buffer: GrowingBuffer | None = getattr(leaf, BUFFER, None)
    if buffer is None or buffer.room < length or len(buffer.filled) != len(leaf):
        longest = max(leaf.shape[1], length)
        buffer = GrowingBuffer(leaf, leaf.shape[1], longest + max(SPARE, longest // 2))
        buffer.filled = positions
    if new is not None:
        buffer.writable[slot, :length] = new[0, :length]
    buffer.filled[slot] = length
    positions[slot] = length
    return state_view(buffer, 0, max(positions))
