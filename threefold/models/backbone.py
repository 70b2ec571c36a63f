"""h = stack(embedding(x)): one stream of tokens or of vectors, read by a stack of any mixers.

What every model of one stream has in common: inputs and their checks, padding, the stack, its last
norm, and the state.  Padding is taken out once: the layers inside see rows that start at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack, non_causal_entry
from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.padding import PaddedRows, zero_padding
from threefold.layers.positions import advance_position
from threefold.memory import state as states
from threefold.memory.state import POSITION, Shapes, State
from threefold.models.embedding import Embedding, Projection
from threefold.models.initialisation import begin
from threefold.models.input_checks import check_range, check_tokens, check_vectors
from threefold.models.model import Model
from threefold.models.spec import Spec


class Reading(NamedTuple):
    """What the stack made of a piece."""

    outputs: Tensor  # [B, L, width], before the last norm; each row from 0 on
    rows: PaddedRows | None  # where the elements stood; None without a mask
    before: State  # what the model itself carried before the piece
    after: State  # the state after it, but for what the kind of model adds

    @property
    def lengths(self) -> Tensor | None:
        """Elements of each row; None: all of L."""
        return None if self.rows is None else self.rows.lengths


class Body(Model):
    """Embedding (of vectors: a projection), stack and norm, without a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.check_options()
        dropout = spec.option("dropout")
        check_dropout(self.name, dropout=dropout)
        size, segments = self.input_size, spec.option("segments", 0)
        if size < 0 or segments < 0:
            raise ThreefoldError(
                f"{self.name}: input_size is {size}, segments {segments}; expected 1 or more, or 0 "
                "for tokens and for no segments"
            )
        self.embedding = self._embedding()
        self.segments = nn.Embedding(segments, spec.width) if segments else None
        self.stack = Stack(
            spec.width,
            spec.depth,
            self._entries(),
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=dropout,
        )
        self.norm = self.stack.final_norm()
        # As GPT-2 and Mamba do; mixers have already drawn their own published beginnings.
        for module in (self.embedding, self.segments):
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        begin(self.stack, spec.depth, spec.option("initial"))

    def check_options(self) -> None:
        """Refuse options of the kind that make no model."""

    @property
    def input_size(self) -> int:
        """Numbers of one element; 0 for tokens."""
        size: int = self.spec.option("input_size", 0)
        return size

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that every mixer of the stack has."""
        return self.stack.forms

    @property
    def causal(self) -> bool:
        """Whether no output depends on later elements, so that there is a state."""
        return self.stack.causal

    def beside(self) -> Shapes:
        """Leaves of the state beside the stack's, without the batch."""
        return {POSITION: ()} if self.embedding.counts else {}

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        carried = self.stack.empty_state(batch_size)
        return {**self._empty_beside(batch_size), **carried}

    def state_size(self, length: int) -> int:
        """Bytes that the state of one row takes after `length` elements."""
        stack = self.stack.state_size(length)
        return stack + states.count_bytes(self.beside(), self.embedding.weight.dtype)

    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""
        carried, _ = self._divide(state, rows)
        self.stack.check_state(carried, rows)

    def read(
        self,
        inputs: Tensor,
        state: State | None,
        form: str,
        mask: Tensor | None,
        segments: Tensor | None = None,
    ) -> Reading:
        """Tokens [B, L] or vectors [B, L, input_size], aligned, embedded and run by the stack."""
        aligned, rows = self._align(inputs, mask)
        carried, before = self._divide(state, len(inputs))
        lengths = None if rows is None else rows.lengths
        added = self._segments(inputs, segments, mask, rows)
        start = before.get(POSITION)
        x = zero_padding(self.embedding(aligned, start, lengths, added), lengths)
        outputs, after = self.stack.run(x, carried, form, lengths, self.name)
        if start is not None and self.causal:
            after = {POSITION: advance_position(start, inputs.shape[1], lengths), **after}
        return Reading(outputs, rows, before, after)

    def transfer(self, other: Body) -> None:
        """Take over what another model has learnt: embedding, segments, stack and norm."""
        for name in ("embedding", "segments", "stack", "norm"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None):
                raise ThreefoldError(f"{self.name}: only one of the models has {name}")
            if mine is not None:
                copy_weights(mine, theirs, f"{self.name}, {name}")

    def _embedding(self) -> Embedding | Projection:
        size = self.input_size
        return Projection(self.spec, size) if size else Embedding(self.spec)

    def _entries(self) -> list[Entry]:
        entries = list(self.spec.entries)
        return (
            list(map(non_causal_entry, entries))
            if self.spec.option("bidirectional", False)
            else entries
        )

    def _align(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, PaddedRows | None]:
        size = self.input_size
        if size:
            check_vectors(inputs, size, self.embedding.weight.dtype, self.name)
        else:
            check_tokens(inputs, self.name)
        rows = None if mask is None else PaddedRows(mask, inputs.shape[:2], self.name)
        aligned = inputs if rows is None else rows.align(inputs)
        if not size:
            check_range(inputs, aligned, mask, self.spec.vocabulary, self.name)
        return aligned, rows

    def _segments(
        self, inputs: Tensor, segments: Tensor | None, mask: Tensor | None, rows: PaddedRows | None
    ) -> Tensor | None:
        """What the segment of each element adds to it; without `segments` all are of segment 0."""
        if self.segments is None:
            if segments is not None:
                raise ThreefoldError(
                    f'{self.name}: has no segments; build it with options={{"segments": 2}}'
                )
            return None
        if segments is None:
            return self.segments.weight[0]
        check_tokens(segments, self.name, "segments")
        if segments.shape != inputs.shape[:2]:
            raise ThreefoldError(
                f"{self.name}: segments is {tuple(segments.shape)}, expected "
                f"{tuple(inputs.shape[:2])}, one for each element"
            )
        aligned = segments if rows is None else rows.align(segments)
        owner = f"{self.name}, segments"
        check_range(segments, aligned, mask, self.segments.num_embeddings, owner)
        added: Tensor = self.segments(aligned)
        return added

    def _empty_beside(self, rows: int) -> State:
        weight = self.embedding.weight
        return states.empty(self.beside(), rows, weight.dtype, weight.device)

    def _divide(self, state: Any, rows: int) -> tuple[State | None, State]:
        """The stack's state, and what the model itself carries beside it."""
        shapes = self.beside()
        if state is None:
            return None, self._empty_beside(rows)
        self.stack._refuse_state_if_not_causal()
        if not shapes:
            return state, {}
        given = isinstance(state, dict)
        mine = {name: state[name] for name in shapes if name in state} if given else state
        states.check(mine, shapes, rows, self.embedding.weight.dtype, self.name)
        return {name: value for name, value in state.items() if name not in shapes}, mine


def copy_weights(mine: nn.Module, theirs: nn.Module, owner: str) -> None:
    """Take over the numbers of another module of the same shapes."""
    given: Mapping[str, Tensor] = theirs.state_dict()
    for name, tensor in mine.state_dict().items():
        other = given.get(name)
        if other is None or other.shape != tensor.shape:
            shown = "missing" if other is None else f"{tuple(other.shape)}"
            raise ThreefoldError(
                f"{owner}: {name} is {tuple(tensor.shape)} here and {shown} in the other model; "
                "expected models of the same width, depth, mixers and options of the body"
            )
        with torch.no_grad():
            tensor.copy_(other)
