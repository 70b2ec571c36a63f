"""Truncated back-propagation through time: segments of a stream, carried state, detached graph.

        row 0     a b c d e f | g h i j        | a document starts
        row 1     k l m n o p   q r s t
        segments  [a b c d] [e f] [g h i j]    length 4, cut where any row starts a document

Gradients flow within a segment; the state from before it is a constant (Williams & Peng 1990).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State


class Segment(NamedTuple):
    """A segment of the streams, with the outputs of the model."""

    batch: Batch
    outputs: Tensor
    state: State  # after the segment, still attached to its graph


def cut_segments(
    inputs: Tensor, targets: Tensor, length: int, starts: Tensor | None = None
) -> Iterator[Batch]:
    """Cut streams [B, L, …] into segments of at most `length` elements, in order.

    `starts` bool [B, L] marks the first elements of documents; a segment ends before each of them,
    so that the state can be reset there.  Without it every row is one document.
    """
    rows, total = inputs.shape[:2]
    if targets.shape[:2] != inputs.shape[:2] or length < 1:
        raise ThreefoldError(
            f"cut_segments: inputs {tuple(inputs.shape)}, targets {tuple(targets.shape)}, "
            f"length {length}; expected inputs and targets of the same batch size and length, and "
            "length at least 1"
        )
    if starts is None:
        starts = torch.zeros(rows, total, dtype=torch.bool, device=inputs.device)
    elif starts.dtype != torch.bool or starts.shape != inputs.shape[:2]:
        raise ThreefoldError(
            f"cut_segments: starts is {tuple(starts.shape)} {starts.dtype}, "
            f"expected {(rows, total)} bool"
        )
    borders = [*starts.any(0).nonzero().flatten().tolist(), total]
    begin = 0
    while begin < total:
        border = next(position for position in borders if position > begin)
        end = min(begin + length, border)
        yield Batch(inputs[:, begin:end], targets[:, begin:end], starts[:, begin])
        begin = end


def carry_state(state: State, starts: Tensor) -> State:
    """The state for the next segment: detached, and reset in rows where a document starts."""
    return states.reset(states.detach(state), starts)


def truncated_bptt(
    model: nn.Module, batches: Iterable[Batch], state: State | None = None
) -> Iterator[Segment]:
    """Run a model or a mixer segment by segment; the caller computes the loss of each.

    for segment in truncated_bptt(model, cut_segments(inputs, targets, 64)):
        loss(segment.outputs, segment.batch.targets).backward()
    """
    for batch in batches:
        before = None if state is None else carry_state(state, batch.starts)
        outputs, state = model(batch.inputs, before)
        yield Segment(batch, outputs, state)
