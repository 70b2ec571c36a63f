"""History:  K_t = [K_{t−1}; k_t],  V_t = [V_{t−1}; v_t],  o_t = attention(q_t, K_t, V_t).

The past elements themselves: all of them (`FullHistory`), or the last W (`SlidingWindow`).
`NonCausal` reads a sequence in both directions and carries no state.  A mixer runs all three the
same way.
step    one query against the cache
chunk   blocks of queries against the cache, so that no mask has more rows than a block
parallel  one attention call
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.kernels import ops
from threefold.kernels.dispatch import kernels_loaded
from threefold.kernels.replay.activity import recording
from threefold.memory.attention import Bias, attend, restrict, visibility_mask
from threefold.memory.buffer import Spans, grow, slide, spans_of
from threefold.memory.forms import plan_query_block
from threefold.memory.state import State


class AttentionInputs(NamedTuple):
    """One call of a mixer: query [B, L, H, K], key and value [B, L, G, size], and options."""

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
    """How a mixer stores and reads the past."""

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""

    def run(self, inputs: AttentionInputs, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""


class FullHistory:
    """Each element reads itself and all elements before it; the state grows."""

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        return {"keys": (length, groups, size), "values": (length, groups, size), "position": ()}

    def run(self, inputs: AttentionInputs, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""
        stepped = step_natively(inputs, state, state["position"])
        if stepped is not None:
            out, keys, values = stepped
            return out, {"keys": keys, "values": values, "position": state["position"] + 1}
        length = inputs.query.shape[1]
        spans = spans_of(state["position"], state["keys"].shape[1], length, inputs.lengths)
        keys = grow(state["keys"], inputs.key, spans)
        values = grow(state["values"], inputs.value, spans)
        out = attend_past(inputs, keys, values, spans)
        ends = state["position"] + (length if inputs.lengths is None else inputs.lengths)
        return out, {"keys": keys, "values": values, "position": ends}


def step_natively(
    inputs: AttentionInputs, past: State, position: Tensor, window: int | None = None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """One element on the kernel: its output, and keys and values after it; None: as defined."""
    query, bias = inputs.query, inputs.bias
    if inputs.form != "step" or query.shape[1] != 1 or inputs.lengths is not None:
        return None
    if inputs.dropout or torch.is_grad_enabled() or not kernels_loaded():
        return None
    added, slopes = inputs.by_distance, None
    if added is not None:
        added = added.squeeze(1)
    if bias is not None and bias.slopes is not None:
        slopes = bias.slopes().to(query.dtype)
    elif bias is not None:
        reach = bias.constant_from if window is None else window - 1
        if reach is None or added is not None:
            return None
        distance = torch.arange(reach + 1, device=query.device).unsqueeze(0)
        added = bias(distance).squeeze(-2).unsqueeze(0).to(query.dtype)
    if window is None and not recording():
        spans_of(position, past["keys"].shape[1], 1, None)  # checks the positions
    given = query, inputs.key, inputs.value, past["keys"], past["values"], position
    return ops.history_step(*given, window=window, bias=added, slopes=slopes)


def attend_past(inputs: AttentionInputs, keys: Tensor, values: Tensor, spans: Spans) -> Tensor:
    """Query i of row b reads positions 0 … starts[b] + i."""
    length = inputs.query.shape[1]
    if keys.shape[1] == 0:  # all rows are padding, and the past is empty
        return inputs.query.new_zeros(*inputs.query.shape[:3], values.shape[-1])
    if spans.start is not None and inputs.bias is None:
        if length == 1:
            return attend(inputs.query, keys, values, dropout=inputs.dropout)
        if spans.start == 0:
            return attend(inputs.query, keys, values, causal=True, dropout=inputs.dropout)
    start = spans.position.unsqueeze(1) if spans.start is None else spans.position[:1]
    outputs, begin, furthest = [], 0, max(spans.starts)
    for query in torch.split(inputs.query, plan_query_block(length, inputs.form), 1):
        end = begin + query.shape[1]
        sources = min(furthest + end, keys.shape[1])
        here = start + torch.arange(begin, end, device=query.device)
        distance = here.unsqueeze(-1) - torch.arange(sources, device=query.device)
        mask = visibility_mask(distance >= 0, distance, inputs.bias, query.dtype)
        outputs.append(
            attend(query, keys[:, :sources], values[:, :sources], mask=mask, dropout=inputs.dropout)
        )
        begin = end
    return torch.cat(outputs, 1)


class SlidingWindow:
    """Each element reads the last `size` elements, itself included; the state is size − 1 of them.

    The state has its full size from the beginning, its elements at the end.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        leaf = (self.size - 1, groups, size)
        return {"window": {"keys": leaf, "values": leaf}, "position": ()}

    def run(self, inputs: AttentionInputs, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and the state after them."""
        window, position = state["window"], state["position"]
        stepped = step_natively(inputs, window, position, self.size)
        if stepped is not None:
            out, keys, values = stepped
            return out, {"window": {"keys": keys, "values": values}, "position": position + 1}
        keys, next_keys = slide(window["keys"], inputs.key, inputs.lengths)
        values, next_values = slide(window["values"], inputs.value, inputs.lengths)
        out = attend_window(inputs, keys, values, self.size, position)
        count = inputs.query.shape[1] if inputs.lengths is None else inputs.lengths
        after = {"window": {"keys": next_keys, "values": next_values}, "position": position + count}
        return out, after


def attend_window(
    inputs: AttentionInputs, keys: Tensor, values: Tensor, size: int, position: Tensor
) -> Tensor:
    """Query i reads the positions i … i + size − 1 of keys [B, size − 1 + L, G, K].

    Queries are taken in blocks as long as the window, each with the keys it may read: twice
    the window, so time and memory grow with L · size.
    """
    length = inputs.query.shape[1]
    block = min(max(size, 32), length)
    count = -(-length // block)
    device = keys.device
    columns = torch.arange(size - 1 + block, device=device)
    distance = torch.arange(size - 1, size - 1 + block, device=device).unsqueeze(1) - columns
    seen = (distance >= 0) & (distance < size)
    # Positions before the first element of a row are empty; they are all in the first block.
    blank = size - 1 - position.clamp(max=size - 1)
    # The meta device has no values, so there may be some.
    full = not blank.is_meta and not blank.any()
    first = seen if full else seen & (columns >= blank.view(-1, 1, 1))
    if length == 1 and first is seen and inputs.bias is None and inputs.by_distance is None:
        return attend(inputs.query, keys, values, dropout=inputs.dropout)
    queries = overlapping_blocks(inputs.query, block, block, count)
    sources = [overlapping_blocks(x, size - 1 + block, block, count) for x in (keys, values)]
    added = (
        None
        if inputs.by_distance is None
        else overlapping_blocks(inputs.by_distance, block, block, count)
    )
    parts = [(first, slice(0, count))]
    if first is not seen and count > 1:
        parts = [(first, slice(0, 1)), (seen, slice(1, count))]
    outputs = []
    for shown, part in parts:
        flat = (x[:, part].flatten(0, 1) for x in (queries, *sources))
        mask = visibility_mask(shown, distance, inputs.bias, inputs.query.dtype)
        if added is not None:
            mask = restrict(gather_by_distance(added[:, part].flatten(0, 1), distance), mask)
        out = attend(*flat, mask=mask, dropout=inputs.dropout)
        outputs.append(torch.unflatten(out, 0, (len(keys), -1)))
    return torch.cat(outputs, 1).flatten(1, 2)[:, :length]


def gather_by_distance(by_distance: Tensor, distance: Tensor) -> Tensor:
    """Scores by distance [B, C, H, W] as scores by key [B, H, C, S], for `distance` [C, S]."""
    index = distance.clamp(0, by_distance.shape[-1] - 1)
    scores = by_distance.transpose(1, 2)
    return scores.gather(-1, index.expand(*scores.shape[:2], -1, -1))


def overlapping_blocks(x: Tensor, width: int, stride: int, count: int) -> Tensor:
    """x [B, S, heads, size] as `count` overlapping blocks [B, count, width, heads, size]."""
    missing = (count - 1) * stride + width - x.shape[1]
    x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing > 0 else x
    return x.unfold(1, width, stride)[:, :count].movedim(-1, 2)


class NonCausal:
    """Each element reads the whole sequence, or all elements less than `size` away."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def shapes(self, length: int, groups: int, size: int) -> Mapping[str, Any]:
        """No state is carried."""
        return {}

    def run(self, inputs: AttentionInputs, state: State) -> tuple[Tensor, State]:
        """Outputs [B, L, H, size], and no state."""
        if self.size is None:
            return attend_everywhere(inputs), {}
        return attend_band(inputs, self.size), {}


def attend_everywhere(inputs: AttentionInputs) -> Tensor:
    """Every query reads every real element."""
    length, device = inputs.query.shape[1], inputs.query.device
    positions = torch.arange(length, device=device)
    seen = None if inputs.lengths is None else before_end(positions, inputs.lengths)
    if inputs.bias is None:
        mask = None if seen is None else seen[:, None, None]
        return attend(inputs.query, inputs.key, inputs.value, mask=mask, dropout=inputs.dropout)
    outputs, begin = [], 0
    # A bias has a value for each pair, so it is computed for one block of queries at a time.
    for query in torch.split(inputs.query, plan_query_block(length, "chunk"), 1):
        distance = positions[begin : begin + query.shape[1]].unsqueeze(1) - positions
        begin += query.shape[1]
        shown = distance >= -length if seen is None else seen.unsqueeze(1)
        mask = visibility_mask(shown, distance, inputs.bias, query.dtype)
        outputs.append(attend(query, inputs.key, inputs.value, mask=mask, dropout=inputs.dropout))
    return torch.cat(outputs, 1)


def attend_band(inputs: AttentionInputs, size: int, shared: int = 0) -> Tensor:
    """Query i reads the elements j with |i − j| < size, in blocks as in `attend_window`.

    All queries also read the first `shared` elements; then there must be no bias.
    """
    rows, length = inputs.query.shape[:2]
    device = inputs.query.device
    block = min(max(size, 32), length)
    count, span = -(-length // block), block + 2 * (size - 1)
    columns = torch.arange(span, device=device)
    distance = torch.arange(size - 1, size - 1 + block, device=device).unsqueeze(1) - columns
    lengths = (
        inputs.lengths if inputs.lengths is not None else torch.tensor([length], device=device)
    )
    positions = columns - (size - 1) + block * torch.arange(count, device=device).unsqueeze(1)
    ends = lengths.clamp(min=1).view(-1, 1, 1)
    real = (positions >= min(shared, length)) & (positions < ends)
    seen = (distance.abs() < size) & real.unsqueeze(-2)
    # A padding query may read nothing; it reads the middle column, and its output is dropped.
    seen = seen | ((distance == 0) & ~seen.any(-1, keepdim=True))
    if shared:
        first = (torch.arange(min(shared, length), device=device) < ends).unsqueeze(-2)
        first = first.expand(len(lengths), count, block, -1)
        seen = torch.cat([first, seen.expand(len(lengths), -1, -1, -1)], -1)
    mask = visibility_mask(
        seen.expand(rows, -1, -1, -1).flatten(0, 1), distance, inputs.bias, inputs.query.dtype
    )
    sources = []
    for x in (inputs.key, inputs.value):
        blocks = overlapping_blocks(F.pad(x, (0, 0, 0, 0, size - 1, 0)), span, block, count)
        common = x[:, None, :shared].expand(-1, count, -1, -1, -1)
        sources.append(
            torch.cat([common, blocks], 2).flatten(0, 1) if shared else blocks.flatten(0, 1)
        )
    queries = overlapping_blocks(inputs.query, block, block, count).flatten(0, 1)
    out = attend(queries, *sources, mask=mask, dropout=inputs.dropout)
    return torch.unflatten(out, 0, (rows, count)).flatten(1, 2)[:, :length]


def before_end(positions: Tensor, lengths: Tensor) -> Tensor:
    """Which of the positions [L] are real in each row, [B, L]; in an empty row the first counts."""
    return positions < lengths.clamp(min=1).unsqueeze(1)
