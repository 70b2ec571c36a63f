"""h = stack(embedding(x)): tokens or vectors, embedded and run through a stack of any mixers.

Common to all models of one input sequence: input checks, padding, the stack, its final norm, and
the state.  Padding is removed once, here: the layers inside see rows that start at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack, non_causal_entry
from threefold.errors import ThreefoldError
from threefold.kernels.replay.program import Loop
from threefold.kernels.replay.stepping import may_replay, replay
from threefold.layers.checks import check_dropout
from threefold.layers.padding import PaddedRows, zero_padding
from threefold.layers.positions import advance_position
from threefold.memory import state as states
from threefold.memory.state import POSITION, Shapes, State
from threefold.models.embedding import Embedding, Projection
from threefold.models.initialisation import initialise_stack
from threefold.models.input_checks import check_range, check_tokens, check_vectors
from threefold.models.model import Model
from threefold.models.spec import Spec


class BackboneOutput(NamedTuple):
    """The outputs of the stack for one call, and the states before and after it."""

    outputs: Tensor  # [B, L, width], before the final norm; rows start at 0
    rows: PaddedRows | None  # where the real elements are; None without a mask
    before: State  # the leaves outside the stack, before this call
    after: State  # the state after this call, without the leaves that a subclass adds

    @property
    def lengths(self) -> Tensor | None:
        """Number of elements per row; None: all of L."""
        return None if self.rows is None else self.rows.lengths


class Backbone(Model):
    """Embedding (a projection for vectors), stack and final norm, without a head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.check_options()
        dropout = spec.option("dropout")
        check_dropout(self.name, dropout=dropout)
        size, segments = self.input_size, spec.option("segments", 0)
        if size < 0 or segments < 0:
            raise ThreefoldError(
                f"{self.name}: input_size is {size}, segments {segments}; expected 1 or more; "
                "input_size 0 means tokens, segments 0 means none"
            )
        self.embedding = self._make_embedding()
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
        # By default as in GPT-2 and Mamba; mixers have already initialised themselves as published.
        std = self._embedding_std()
        for module in (self.embedding, self.segments):
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=std)
        initialise_stack(self.stack, spec.depth, spec.option("init"))

    def check_options(self) -> None:
        """Raise an error if the options of this kind of model do not fit each other."""

    def _embedding_std(self) -> float:
        std: float = self.spec.option("embedding_std")
        if std <= 0:
            raise ThreefoldError(f"{self.name}: embedding_std is {std}, expected a number above 0")
        if isinstance(self.embedding, Projection) and "embedding_std" in self.spec.options:
            raise ThreefoldError(
                f"{self.name}: embedding_std is {std}, but what it reads are vectors, which have "
                "no embedding; leave it out"
            )
        return std

    @property
    def input_size(self) -> int:
        """Size of one input vector; 0 for tokens."""
        size: int = self.spec.option("input_size", 0)
        return size

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that every mixer of the stack has."""
        return self.stack.forms

    @property
    def causal(self) -> bool:
        """Whether no output depends on later elements; only then is there a state."""
        return self.stack.causal

    def own_state_shapes(self) -> Shapes:
        """Shapes of the state leaves outside the stack, without the batch axis."""
        return {POSITION: ()} if self.embedding.needs_position else {}

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        carried = self.stack.empty_state(batch_size)
        return {**self._empty_own_state(batch_size), **carried}

    def state_size(self, length: int) -> int:
        """Bytes of the state of one row after `length` elements."""
        stack = self.stack.state_size(length)
        return stack + states.count_bytes(self.own_state_shapes(), self.dtype)

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        carried, _ = self._split_state(state, rows)
        self.stack.check_state(carried, rows)

    def run_backbone(
        self,
        inputs: Tensor,
        state: State | None,
        form: str,
        mask: Tensor | None,
        segments: Tensor | None = None,
    ) -> BackboneOutput:
        """Align, embed and run tokens [B, L] or vectors [B, L, input_size] through the stack."""
        aligned, rows = self._align(inputs, mask)
        carried, before = self._split_state(state, len(inputs))
        lengths = None if rows is None else rows.lengths
        added = self._embed_segments(inputs, segments, mask, rows)
        start = before.get(POSITION)
        x = zero_padding(self.embedding(aligned, start, lengths, added), lengths)
        stack = self.stack
        plan = stack.plan(inputs.shape[1], form, lengths, self.name)
        outputs, after = stack(x, carried, plan=plan)
        if start is not None and self.causal:
            after = {POSITION: advance_position(start, inputs.shape[1], lengths), **after}
        return BackboneOutput(outputs, rows, before, after)

    def replay(
        self, x: Tensor, state: State | None, loop: Loop | None = None
    ) -> tuple[Tensor, State, int] | None:
        """Steps from one element x [B, …] per row in one native call, as `Program.run_loop`.

        None if the steps must run as usual.
        """
        size, dtype = self.input_size, self.dtype
        fits = x.shape[1:] == (size,) if size else x.dim() == 1
        if not fits or x.dtype is not (dtype if size else torch.int64):
            return None
        if not self.causal or not may_replay(self, x, dtype):
            return None
        state = self.empty_state(len(x)) if state is None else state
        return replay(self, x, state, self._respond_once, loop, self.spec.vocabulary)

    def _respond_once(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.respond(x.unsqueeze(1), state, last=True)

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random tokens, or vectors of `input_size`, always the same."""
        if not self.input_size:
            return super().example_inputs(batch, length)
        generator = torch.Generator().manual_seed(0)
        vectors = torch.randn(batch, length, self.input_size, generator=generator)
        return vectors.to(self.device, self.embedding.weight.dtype)

    def check_streams(self) -> None:
        """Raise an error unless the model has outputs after each element that see no later one."""
        super().check_streams()
        if not self.causal:
            names = ", ".join(dict.fromkeys(name for name, _ in self.spec.entries))
            both = ", bidirectional" if self.spec.option("bidirectional", False) else ""
            raise ThreefoldError(
                f"this {self.kind} model ({names}{both}) is not causal, so it cannot read a "
                "stream; a stream needs causal mixers"
            )

    def transfer_from(self, other: Backbone) -> None:
        """Copy the weights of another model: embedding, segments, stack and norm."""
        for name in ("embedding", "segments", "stack", "norm"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if (mine is None) != (theirs is None):
                raise ThreefoldError(f"{self.name}: only one of the two models has {name}")
            if mine is not None:
                copy_weights(mine, theirs, f"{self.name}, {name}")

    def _make_embedding(self) -> Embedding | Projection:
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
            check_vectors(inputs, size, self.dtype, self.name)
        else:
            check_tokens(inputs, self.name)
        rows = None if mask is None else PaddedRows(mask, inputs.shape[:2], self.name)
        aligned = inputs if rows is None else rows.align(inputs)
        if not size:
            check_range(inputs, aligned, mask, self.spec.vocabulary, self.name)
        return aligned, rows

    def _embed_segments(
        self, inputs: Tensor, segments: Tensor | None, mask: Tensor | None, rows: PaddedRows | None
    ) -> Tensor | None:
        """The embedding of each element's segment; without `segments` all are in segment 0."""
        if self.segments is None:
            if segments is not None:
                raise ThreefoldError(
                    f'{self.name}: has no segments; build it with options={{"segments": 2}}'
                )
            return None
        if segments is None:
            first: Tensor = self.segments(torch.zeros(1, 1, dtype=torch.int64, device=self.device))
            return first
        check_tokens(segments, self.name, "segments")
        if segments.shape != inputs.shape[:2]:
            raise ThreefoldError(
                f"{self.name}: segments is {tuple(segments.shape)}, expected "
                f"{tuple(inputs.shape[:2])}, one segment per element"
            )
        aligned = segments if rows is None else rows.align(segments)
        owner = f"{self.name}, segments"
        check_range(segments, aligned, mask, self.segments.num_embeddings, owner)
        added: Tensor = self.segments(aligned)
        return added

    def _empty_own_state(self, rows: int) -> State:
        return states.empty(self.own_state_shapes(), rows, self.dtype, self.device)

    def _split_state(self, state: Any, rows: int) -> tuple[State | None, State]:
        """Split a state into that of the stack and the leaves outside it."""
        shapes = self.own_state_shapes()
        if state is None:
            return None, self._empty_own_state(rows)
        self.stack._refuse_state_if_not_causal()
        if not shapes:
            return state, {}
        is_dict = isinstance(state, dict)
        own = {name: state[name] for name in shapes if name in state} if is_dict else state
        states.check(own, shapes, rows, self.dtype, self.name, self.device)
        return {name: value for name, value in state.items() if name not in shapes}, own


def copy_weights(mine: nn.Module, theirs: nn.Module, owner: str) -> None:
    """Copy the weights of another module with the same shapes."""
    weights: Mapping[str, Tensor] = theirs.state_dict()
    for name, tensor in mine.state_dict().items():
        other = weights.get(name)
        if other is None or other.shape != tensor.shape:
            shown = "missing" if other is None else f"{tuple(other.shape)}"
            raise ThreefoldError(
                f"{owner}: {name} is {tuple(tensor.shape)} here and {shown} in the other model; "
                "expected models of the same width, depth, mixers and backbone options"
            )
        with torch.no_grad():
            tensor.copy_(other)
