"""History:  K_t = [K_{t−1}; k_t],  V_t = [V_{t−1}; v_t],  o_t = attention(q_t, K_t, V_t).

The past as it was: all of it (`Everything`), or the last W elements (`Window`).  `Whole` looks at a
sequence from both sides and carries nothing.  All three are run alike by a mixer.
step    one query against the cache
chunk   blocks of queries against the cache, so that no mask has more than a block of rows
parallel  one attention call
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.memory.attention import Bias, attend, restrict, visible
from threefold.memory.buffer import Places, grow, places_of, slide
from threefold.memory.forms import plan_block
from threefold.memory.state import State


class Read(NamedTuple):
    """One call of a mixer: query [B, L, H, K], key and value [B, L, G, size], and how to read."""

    query: Tensor
    key: Tensor
    value: Tensor
    form: str
    lengths: Tensor | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    # [B, L, H, W]: added to the scores of the elements 0 … W − 1 before a query (windows only)
    by_distance: Tensor | None = None


class History(Protocol):
    """What a mixer asks of the past."""

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""

    def run(self, read: Read, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""


class Everything:
    """Each element reads all that came before it, and itself; the state grows."""

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        return {"keys": (length, groups, size), "values": (length, groups, size), "position": ()}

    def run(self, read: Read, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""
        length = read.query.shape[1]
        places = places_of(state["position"], length, read.lengths)
        keys = grow(state["keys"], read.key, places)
        values = grow(state["values"], read.value, places)
        out = attend_past(read, keys, values, places)
        ends = state["position"] + (length if read.lengths is None else read.lengths)
        return out, {"keys": keys, "values": values, "position": ends}


def attend_past(read: Read, keys: Tensor, values: Tensor, places: Places) -> Tensor:
    """Query i of row b reads places 0 … starts[b] + i."""
    length = read.query.shape[1]
    if keys.shape[1] == 0:  # rows of padding on an empty past
        return read.query.new_zeros(*read.query.shape[:3], values.shape[-1])
    if places.start is not None and read.bias is None:
        if length == 1:
            return attend(read.query, keys, values, dropout=read.dropout)
        if places.start == 0:
            return attend(read.query, keys, values, causal=True, dropout=read.dropout)
    start = places.position.unsqueeze(1) if places.start is None else places.position[:1]
    outputs, begin, furthest = [], 0, max(places.starts)
    for query in torch.split(read.query, plan_block(length, read.form), 1):
        end = begin + query.shape[1]
        sources = min(furthest + end, keys.shape[1])
        here = start + torch.arange(begin, end, device=query.device)
        distance = here.unsqueeze(-1) - torch.arange(sources, device=query.device)
        mask = visible(distance >= 0, distance, read.bias, query.dtype)
        outputs.append(
            attend(query, keys[:, :sources], values[:, :sources], mask=mask, dropout=read.dropout)
        )
        begin = end
    return torch.cat(outputs, 1)


class Window:
    """Each element reads the last `size` elements, itself included; the state is size − 1 of them.

    The state has its full size from the beginning, its elements at the end.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        leaf = (self.size - 1, groups, size)
        return {"window": {"keys": leaf, "values": leaf}, "position": ()}

    def run(self, read: Read, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""
        window, position = state["window"], state["position"]
        keys, next_keys = slide(window["keys"], read.key, read.lengths)
        values, next_values = slide(window["values"], read.value, read.lengths)
        out = attend_window(read, keys, values, self.size, position)
        count = read.query.shape[1] if read.lengths is None else read.lengths
        after = {"window": {"keys": next_keys, "values": next_values}, "position": position + count}
        return out, after


def attend_window(read: Read, keys: Tensor, values: Tensor, size: int, position: Tensor) -> Tensor:
    """Query i reads the places i … i + size − 1 of keys [B, size − 1 + L, G, K].

    Queries are taken in blocks as long as the window, each with the keys it may read: twice the
    window, so time and memory grow with L · size.
    """
    length = read.query.shape[1]
    block = min(max(size, 32), length)
    count = -(-length // block)
    device = keys.device
    columns = torch.arange(size - 1 + block, device=device)
    distance = torch.arange(size - 1, size - 1 + block, device=device).unsqueeze(1) - columns
    seen = (distance >= 0) & (distance < size)
    # Places before the first element of a row are empty; they are all in the first block.
    blank = size - 1 - position.clamp(max=size - 1)
    first = seen if not blank.any() else seen & (columns >= blank.view(-1, 1, 1))
    if length == 1 and first is seen and read.bias is None and read.by_distance is None:
        return attend(read.query, keys, values, dropout=read.dropout)
    queries = blocks(read.query, block, block, count)
    sources = [blocks(x, size - 1 + block, block, count) for x in (keys, values)]
    added = None if read.by_distance is None else blocks(read.by_distance, block, block, count)
    parts = [(first, slice(0, count))]
    if first is not seen and count > 1:
        parts = [(first, slice(0, 1)), (seen, slice(1, count))]
    outputs = []
    for shown, part in parts:
        flat = (x[:, part].flatten(0, 1) for x in (queries, *sources))
        mask = visible(shown, distance, read.bias, read.query.dtype)
        if added is not None:
            mask = restrict(spread(added[:, part].flatten(0, 1), distance), mask)
        out = attend(*flat, mask=mask, dropout=read.dropout)
        outputs.append(torch.unflatten(out, 0, (len(keys), -1)))
    return torch.cat(outputs, 1).flatten(1, 2)[:, :length]


def spread(by_distance: Tensor, distance: Tensor) -> Tensor:
    """[B, C, H, W] by distance to [B, H, C, S] by place, where `distance` [C, S] is in range."""
    places = distance.clamp(0, by_distance.shape[-1] - 1)
    scores = by_distance.transpose(1, 2)
    return scores.gather(-1, places.expand(*scores.shape[:2], -1, -1))


def blocks(x: Tensor, width: int, stride: int, count: int) -> Tensor:
    """x [B, S, heads, size] as `count` overlapping blocks [B, count, width, heads, size]."""
    missing = (count - 1) * stride + width - x.shape[1]
    x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing > 0 else x
    return x.unfold(1, width, stride)[:, :count].movedim(-1, 2)


class Whole:
    """Each element reads the whole sequence, or those less than `size` away, on both sides."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """Nothing is carried."""
        return {}

    def run(self, read: Read, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and no state."""
        if self.size is None:
            return attend_whole(read), {}
        return attend_band(read, self.size), {}


def attend_whole(read: Read) -> Tensor:
    """Every query reads every real element."""
    length, device = read.query.shape[1], read.query.device
    places = torch.arange(length, device=device)
    seen = None if read.lengths is None else before_end(places, read.lengths)
    if read.bias is None:
        mask = None if seen is None else seen[:, None, None]
        return attend(read.query, read.key, read.value, mask=mask, dropout=read.dropout)
    outputs, begin = [], 0
    # A bias has a value for each pair: it is made for one block of queries at a time.
    for query in torch.split(read.query, plan_block(length, "chunk"), 1):
        distance = places[begin : begin + query.shape[1]].unsqueeze(1) - places
        begin += query.shape[1]
        shown = distance >= -length if seen is None else seen.unsqueeze(1)
        mask = visible(shown, distance, read.bias, query.dtype)
        outputs.append(attend(query, read.key, read.value, mask=mask, dropout=read.dropout))
    return torch.cat(outputs, 1)


def attend_band(read: Read, size: int) -> Tensor:
    """Query i reads the elements j with |i − j| < size, in blocks as `attend_window`."""
    rows, length = read.query.shape[:2]
    device = read.query.device
    block = min(max(size, 32), length)
    count, span = -(-length // block), block + 2 * (size - 1)
    columns = torch.arange(span, device=device)
    distance = torch.arange(size - 1, size - 1 + block, device=device).unsqueeze(1) - columns
    lengths = read.lengths if read.lengths is not None else torch.tensor([length], device=device)
    places = columns - (size - 1) + block * torch.arange(count, device=device).unsqueeze(1)
    real = (places >= 0) & (places < lengths.clamp(min=1).view(-1, 1, 1))
    seen = (distance.abs() < size) & real.unsqueeze(-2)
    # A query of padding may look at nothing; it gets the middle column, and its output is dropped.
    seen = seen | ((distance == 0) & ~seen.any(-1, keepdim=True))
    mask = visible(
        seen.expand(rows, -1, -1, -1).flatten(0, 1), distance, read.bias, read.query.dtype
    )
    padded = (F.pad(x, (0, 0, 0, 0, size - 1, 0)) for x in (read.key, read.value))
    sources = (blocks(x, span, block, count).flatten(0, 1) for x in padded)
    queries = blocks(read.query, block, block, count).flatten(0, 1)
    out = attend(queries, *sources, mask=mask, dropout=read.dropout)
    return torch.unflatten(out, 0, (rows, count)).flatten(1, 2)[:, :length]


def before_end(places: Tensor, lengths: Tensor) -> Tensor:
    """Which of the places [L] are real, row by row [B, L]; in an empty row the first is."""
    return places < lengths.clamp(min=1).unsqueeze(1)
