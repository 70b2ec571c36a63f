"""Truncated back-propagation through time: a stream in pieces, the state carried, the graph cut.

        row 0   a b c d e f | g h i j        | a document starts
        row 1   k l m n o p   q r s t
        pieces  [a b c d] [e f] [g h i j]    length 4: cut where any row starts a document

Gradients flow within a piece; what was before arrives as numbers (Williams & Peng 1990).
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
    """One piece of the streams and what the model made of it."""

    batch: Batch
    outputs: Tensor
    state: State  # after the piece, still with its graph


def cut(
    inputs: Tensor, targets: Tensor, length: int, starts: Tensor | None = None
) -> Iterator[Batch]:
    """Pieces of at most `length` elements of streams [B, L, …], in order.

    `starts` bool [B, L] marks the first elements of documents; a piece ends before each of them, so
    that a state can be emptied there.  Without it every row goes on with what was before it.
    """
    rows, total = inputs.shape[:2]
    if targets.shape[:2] != inputs.shape[:2] or length < 1:
        raise ThreefoldError(
            f"cut: inputs {tuple(inputs.shape)}, targets {tuple(targets.shape)}, length {length}; "
            "expected the same batch and length of both, and pieces of at least 1 element"
        )
    if starts is None:
        starts = torch.zeros(rows, total, dtype=torch.bool, device=inputs.device)
    elif starts.dtype != torch.bool or starts.shape != inputs.shape[:2]:
        raise ThreefoldError(
            f"cut: starts is {tuple(starts.shape)} {starts.dtype}, expected {(rows, total)} bool"
        )
    borders = [*starts.any(0).nonzero().flatten().tolist(), total]
    begin = 0
    while begin < total:
        border = next(place for place in borders if place > begin)
        end = min(begin + length, border)
        yield Batch(inputs[:, begin:end], targets[:, begin:end], starts[:, begin])
        begin = end


def carry_on(state: State, starts: Tensor) -> State:
    """The state for the next piece: cut from the graph, empty in the rows that start anew."""
    return states.reset(states.detach(state), starts)


def truncated(
    model: nn.Module, batches: Iterable[Batch], state: State | None = None
) -> Iterator[Segment]:
    """Run a model or a mixer piece after piece; the caller does what it likes with each output.

    for piece in truncated(model, cut(inputs, targets, 64)):
        loss(piece.outputs, piece.batch.targets).backward()
    """
    for batch in batches:
        before = None if state is None else carry_on(state, batch.starts)
        outputs, state = model(batch.inputs, before)
        yield Segment(batch, outputs, state)
