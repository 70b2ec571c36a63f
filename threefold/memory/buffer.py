"""K_t = [K_{t−1}; k_t]: where a history is stored, and how it grows without being copied.

`grow` keeps all elements, `slide` the last ones.  With gradients both return new tensors.  Without
gradients they write after the past in a buffer with spare capacity and copy only when it is full,
so a step costs no copy of the past.  The state is a view of the buffer.  An older state stays valid
because no position is written twice: the buffer records how far each row is filled, and a call that
would write before that mark (a fork) gets a buffer of its own.  For the same reason a window slides
along its buffer and moves to a new one at the end; a ring buffer would overwrite elements that
older states still read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels.dispatch import transforms_active
from threefold.kernels.growing_buffer import (
    claim_buffer,
    claim_window,
    state_view,
)


class Spans(NamedTuple):
    """The positions of one call's elements: row b's go from `starts[b]` to `ends[b]`."""

    starts: list[int]
    ends: list[int]
    position: Tensor  # the starts, int64 [B]
    lengths: Tensor | None  # real elements of each row; None: all

    @property
    def start(self) -> int | None:
        """The start of all rows if they share one, else None."""
        return self.starts[0] if len(set(self.starts)) == 1 else None

    @property
    def end(self) -> int:
        return max(self.ends)

    def indices(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row, index within the call and position of every real element."""
        elements = torch.arange(length, device=self.position.device)
        counts = self.position.new_full(self.position.shape, length)
        counts = counts if self.lengths is None else self.lengths
        row, element = (elements < counts.unsqueeze(1)).nonzero(as_tuple=True)
        return row, element, self.position[row] + element


def spans_of(position: Tensor, longest: int, length: int, lengths: Tensor | None) -> Spans:
    """The positions of `length` elements after `position` [B], or of `lengths[b]` in each row.

    `longest` is the length of the longest row so far. On the meta device, where positions have no
    values, all rows have it.
    """
    starts: list[int] = [longest] * len(position) if position.is_meta else position.tolist()
    if starts and not 0 <= min(starts) <= max(starts) <= longest:
        raise ThreefoldError(
            f"state: position is {starts}, but the history has {longest} elements; expected "
            f"positions from 0 to {longest}"
        )
    if lengths is None:
        return Spans(starts, [start + length for start in starts], position, None)
    ends = [start + count for start, count in zip(starts, lengths.tolist(), strict=True)]
    return Spans(starts, ends, position, lengths)


def grow(past: Tensor, new: Tensor, spans: Spans) -> Tensor:
    """past [B, T, G, size] and new [B, L, G, size] at its positions: [B, longest row, G, size]."""
    new = new.to(past.dtype)
    if needs_gradient(past, new):
        return _joined(past, new, spans)
    if past.shape[1] == 0 and spans.lengths is None:
        return new
    buffer = claim_buffer(past, spans.starts, spans.ends)
    if spans.lengths is None and spans.start is not None:
        buffer.writable[:, spans.start : spans.end] = new
    else:
        row, element, position = spans.indices(new.shape[1])
        buffer.writable[row, position] = new[row, element]
    return state_view(buffer, 0, spans.end)


def slide(past: Tensor, new: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """[past; new] [B, W + L, G, size], and its last W elements (before each row's own end)."""
    new = new.to(past.dtype)
    size, length = past.shape[1], new.shape[1]
    if needs_gradient(past, new) or lengths is not None or length > size:
        context = torch.cat([past, new], 1)
        if lengths is None:
            last = context[:, length:]
            # A view would keep all of a long context alive.
            return context, last if needs_gradient(context) or length <= size else last.clone()
        positions = torch.arange(size, device=new.device) + lengths.unsqueeze(1)
        return context, context[torch.arange(len(new), device=new.device).unsqueeze(1), positions]
    buffer, end = claim_window(past, length)
    buffer.writable[:, end : end + length] = new
    context = buffer.elements[:, end - size : end + length]
    return context, state_view(buffer, end + length - size, end + length)


def needs_gradient(*tensors: Tensor) -> bool:
    """Whether autograd records what is computed from these tensors, or a transform is active."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return True
    return transforms_active()


def _joined(past: Tensor, new: Tensor, spans: Spans) -> Tensor:
    """`grow` as a differentiable function of both."""
    if spans.lengths is None and spans.start is not None:
        return torch.cat([past[:, : spans.start], new], 1)
    missing = max(spans.end - past.shape[1], 0)
    empty = past.new_zeros(len(past), missing, *past.shape[2:])
    row, element, position = spans.indices(new.shape[1])
    longest = torch.cat([past[:, : spans.end], empty], 1)
    return longest.index_put((row, position), new[row, element])
