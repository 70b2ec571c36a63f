"""p(x_{t+1} | x_1 … x_t) = softmax(head(norm(stack(embedding(x))))): one language model, any mixer.

Padding is taken out once: the layers inside see rows that start at 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.blocks.block import silence
from threefold.blocks.stack import Stack
from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.mixer import Rows
from threefold.layers.parts import Linear, advance
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.beginnings import begin
from threefold.models.embedding import Embedding
from threefold.models.model import Predictor
from threefold.models.spec import Spec
from threefold.models.tokens import check_range, check_tokens, last_places


class LanguageModel(Predictor):
    """Embedding, stack, norm and head; the head is the embedding unless `tie` is off."""

    kind = "language"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        dropout = spec.option("dropout")
        if not 0 <= dropout < 1:
            raise ThreefoldError(f"{self.name}: dropout is {dropout}, expected from 0 to below 1")
        self.embedding = Embedding(spec)
        self.stack = Stack(
            spec.width,
            spec.depth,
            spec.entries,
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=dropout,
        )
        self.norm = self.stack.final_norm()
        self.head = None if spec.option("tie") else Linear(spec.width, spec.vocabulary, False)
        self._refuse_if_not_causal()
        # As GPT-2 and Mamba do; mixers have already drawn their own published beginnings.
        for module in (self.embedding, self.head):
            if module is not None:
                nn.init.normal_(module.weight, std=0.02)
        begin(self.stack, spec.depth, spec.option("initial"))

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, vocabulary] of the token after each of tokens [B, L], and the state.

        last: logits [B, vocabulary] after the last real token of each row only.
        Logits at padding, or of a row without tokens, are 0.
        """
        check_tokens(tokens, self.name)
        rows = None if mask is None else Rows(mask, tokens.shape, self.name)
        aligned = tokens if rows is None else rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        lengths = None if rows is None else rows.lengths
        carried, start = self._carried(state, len(tokens))
        x = silence(self.embedding(aligned, start, lengths), lengths)
        x, after = self.stack.run(x, carried, form, lengths, self.name)
        if start is not None:
            after = {POSITION: advance(start, tokens.shape[1], lengths), **after}
        if last:
            return self._last(x, lengths), after
        logits = self._read(x)
        return logits if rows is None else rows.restore(logits), after

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that every mixer of the stack has."""
        return self.stack.forms

    @property
    def causal(self) -> bool:
        """Always true: a language model predicts what it has not seen."""
        return self.stack.causal

    def empty_state(self, batch_size: int) -> State:
        """The state before the first token."""
        carried = self.stack.empty_state(batch_size)
        _, start = self._carried(None, batch_size)
        return carried if start is None else {POSITION: start, **carried}

    def state_size(self, length: int) -> int:
        """Bytes that the state of one row takes after `length` tokens."""
        return self.stack.state_size(length) + (8 if self.embedding.counts else 0)

    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""
        carried, _ = self._carried(state, rows)
        self.stack.check_state(carried, rows)

    def _carried(self, state: State | None, rows: int) -> tuple[State | None, Tensor | None]:
        """The stack's state, and where each row stands if the embedding has to know it."""
        if not self.embedding.counts:
            return state, None
        if state is None:
            return None, torch.zeros(rows, dtype=torch.int64, device=self.device)
        if not isinstance(state, dict):
            return state, None  # the stack says what it expected
        carried = {name: value for name, value in state.items() if name != POSITION}
        mine = {name: state[name] for name in state.keys() & {POSITION}}
        states.check(mine, {POSITION: ()}, rows, self.embedding.weight.dtype, self.name)
        start: Tensor = state[POSITION]
        return carried, start

    def _read(self, x: Tensor) -> Tensor:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return ops.linear(self.norm(x), weight)

    def _last(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        if lengths is None:
            return self._read(x[:, -1])
        logits = self._read(last_places(x, lengths))
        return logits.masked_fill((lengths == 0).unsqueeze(1), 0)

    def _refuse_if_not_causal(self) -> None:
        for layer, block in enumerate(self.stack.parts.values()):
            if not block.causal:
                mixer = self.spec.entries[layer % len(self.spec.entries)][0]
                raise ThreefoldError(
                    f"{self.name}: mixer {mixer!r} sees later tokens, so it cannot predict them; "
                    "choose a causal one"
                )
