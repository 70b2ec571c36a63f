"""Words → sentences → a document:  s_i = pool(words of sentence i),  d = pool(stack(s_1 … s_n)).

A document is one row of tokens in which the last token of the vocabulary ends every sentence.  Each
level is a stack of any mixers with a pooling; no word of one sentence sees another sentence.
Yang et al. 2016, "Hierarchical Attention Networks for Document Classification" (both poolings are
its attention; its mixers are bidirectional GRUs); Pappagari et al. 2019, "Hierarchical Transformers
for Long Document Classification" (a Transformer over segments; ours are sentences, trained whole).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack, non_causal_entry
from threefold.errors import ThreefoldError, setting
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.layers.padding import PaddedRows, pad_tokens, zero_padding
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.embedding import Embedding
from threefold.models.input_checks import check_range, check_tokens
from threefold.models.model import Model
from threefold.models.pooling import make_pooling
from threefold.models.spec import Spec

WORDS, DOCUMENT = "words", "document"  # the levels, by their names in the state
EXAMPLE_SENTENCE = 8  # tokens of the sentences that a measurement reads


class PooledStack(nn.Module):
    """A stack, its last norm, and the pooling of its outputs."""

    def __init__(self, stack: Stack, pooling: str, owner: str) -> None:
        super().__init__()
        self.stack, self.owner = stack, owner
        self.norm = stack.final_norm()
        self.pooling = make_pooling(pooling, stack.width)

    @property
    def causal(self) -> bool:
        return self.stack.causal

    def empty_state(self, rows: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first element; that of a stack that is not causal is {}."""
        carried = self.stack.empty_state(rows) if self.causal else {}
        pooled = states.empty(self.pooling.shapes, rows, dtype, device)
        return {"pooled": pooled, "stack": carried}

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor) -> tuple[Tensor, State]:
        """The vector [B, width] of all elements so far, of x [B, L, width], and the state."""
        plan = self.stack.plan(x.shape[1], form, lengths, self.owner)
        y, carried = self.stack(x, state["stack"] if self.causal else None, plan=plan)
        h = zero_padding(self.norm(y), lengths)
        pooled = self.pooling(h, state["pooled"], lengths)
        return pooled["memory"].to(h.dtype), {
            "pooled": pooled,
            "stack": carried if self.causal else {},
        }


class Sentences(NamedTuple):
    """The sentences of a batch, those of the first document first."""

    tokens: list[list[int]]
    documents: list[int]  # the row of each
    continues: list[bool]  # whether it may have begun in an earlier call
    finished: list[bool]


class HierarchicalClassifier(Model):
    """One of `classes` for a document, from its words and its sentences.

    With causal mixers documents can be read in pieces: outputs are those of all sentences that have
    ended.  If only the document's mixers are causal, every piece must end with a sentence.
    """

    kind = "hierarchical"
    streams = True  # sentence by sentence

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        self.embedding = Embedding(spec)
        nn.init.normal_(self.embedding.weight, std=0.02)
        both = spec.option("bidirectional")
        mixers = spec.option("document_mixers")
        upper = Spec(spec.kind, spec.width, 1, mixers) if mixers else spec  # checks the mixers
        depth = spec.option("document_depth") or spec.depth
        self.words = self._make_level(spec.entries, spec.depth, "sentence_pooling", both)
        self.document = self._make_level(upper.entries, depth, "pooling", both)
        self.dropout = nn.Dropout(spec.option("dropout"))
        self.head = Linear(spec.width, spec.option("classes"))

    @property
    def end(self) -> int:
        """The token that ends a sentence."""
        return self.spec.vocabulary - 1

    @property
    def causal(self) -> bool:
        """Whether documents can be read sentence by sentence; only then is there a state."""
        return self.document.causal

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that the mixers of both levels have."""
        return tuple(form for form in self.words.stack.forms if form in self.document.stack.forms)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Logits [B, classes] of the sentences that have ended, and the state.

        tokens [B, L], with `end` after every sentence.  Logits before the first end are 0.
        """
        check_tokens(tokens, self.name)
        aligned_rows = None if mask is None else PaddedRows(mask, tokens.shape, self.name)
        aligned = tokens if aligned_rows is None else aligned_rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        if state is not None:
            self.check_state(state, len(tokens))
        lengths = [tokens.shape[1]] * len(tokens)
        lengths = lengths if aligned_rows is None else aligned_rows.lengths.tolist()
        before = self._begin(state, len(tokens))
        sentences = self._split(aligned.tolist(), lengths, before[WORDS])
        vectors, opened = self._read_sentences(sentences, before[WORDS], form)
        vector, after = self._read_document(sentences, vectors, before[DOCUMENT], form)
        logits: Tensor = self.head(self.dropout(vector))
        seen = after["pooled"][POSITION]
        logits = logits.masked_fill((seen == 0).unsqueeze(1), 0)
        return logits, self._carried({WORDS: opened, DOCUMENT: after})

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one token per row [B]; returns the logits of the ended sentences and the state."""
        logits, state = self(tokens.unsqueeze(1), state, form="step")
        return logits, state

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Logits [B, classes] of all sentences that have ended, and the state."""
        return self(inputs, state)  # type: ignore[no-any-return]

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random sentences of eight tokens, the last of them an end."""
        tokens = super().example_inputs(batch, length) % max(self.end, 1)
        tokens[:, EXAMPLE_SENTENCE - 1 :: EXAMPLE_SENTENCE] = self.end
        if length % EXAMPLE_SENTENCE != 1:  # an end right after another would be an empty sentence
            tokens[:, -1] = self.end
        return tokens

    def empty_state(self, batch_size: int) -> State:
        """The state before the first token."""
        if not self.causal:
            raise ThreefoldError(
                f"{self.name}: its document mixers see later sentences, so it reads whole "
                "documents and has no state"
            )
        return self._carried(self._begin(None, batch_size))

    def check_streams(self) -> None:
        """Raise an error unless documents can be read sentence by sentence."""
        if not self.causal:
            raise ThreefoldError(
                "this hierarchical model cannot read a stream, because its document mixers see "
                "later sentences; train one with causal ones, e.g. "
                f"{setting('model.options.document_mixers', 'gru')}, and without bidirectional"
            )

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        expected = self.empty_state(1)  # refuses if it is not causal
        if not isinstance(state, dict) or sorted(state) != sorted(expected):
            received = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise ThreefoldError(
                f"{self.name}: state of another model: given {received}, expected "
                f"{sorted(expected)}, the states of its levels"
            )
        for name, part in state.items():
            level: PooledStack = getattr(self, name)
            parts = part if isinstance(part, dict) else {}
            owner = f"{self.name}, {name}"
            shapes = level.pooling.shapes
            states.check(parts.get("pooled"), shapes, rows, self.dtype, owner, self.device)
            level.stack.check_state(parts.get("stack"), rows)

    def state_size(self, length: int, sentences: int = 0) -> int:
        """Bytes of the state of one row after `sentences`, and `length` tokens of the next."""
        total = 0
        for name in self.empty_state(1):
            level: PooledStack = getattr(self, name)
            total += states.count_bytes(level.pooling.shapes, self.dtype)
            total += level.stack.state_size(length if name == WORDS else sentences)
        return total

    def _begin(self, state: State | None, rows: int) -> State:
        """The state of both levels; zeros where `state` has none."""
        levels = {WORDS: self.words, DOCUMENT: self.document}
        given = state or {}
        return {
            name: given[name] if name in given else level.empty_state(rows, self.dtype, self.device)
            for name, level in levels.items()
        }

    def _carried(self, state: State) -> State:
        """What of a state a user holds: nothing of levels that are not causal."""
        if not self.causal:
            return {}
        return {name: part for name, part in state.items() if name == DOCUMENT or self.words.causal}

    def _split(self, rows: Sequence[list[int]], lengths: Sequence[int], opened: State) -> Sentences:
        """Cut rows behind every end; what an earlier call began is continued."""
        found = Sentences([], [], [], [])
        seen = opened["pooled"][POSITION].tolist()
        for row, (tokens, length) in enumerate(zip(rows, lengths, strict=True)):
            start = 0
            ends = [i + 1 for i, token in enumerate(tokens[:length]) if token == self.end]
            for stop in dict.fromkeys([*ends, length]):
                if stop == start:
                    continue
                if tokens[start] == self.end and not (start == 0 and seen[row]):
                    raise ThreefoldError(
                        f"{self.name}: row {row} has an empty sentence: the token {self.end}, "
                        f"which ends a sentence, is at element {start} without one before it"
                    )
                found.tokens.append(tokens[start:stop])
                found.documents.append(row)
                found.continues.append(start == 0)
                found.finished.append(tokens[stop - 1] == self.end)
                start = stop
        self._refuse_open(found)
        return found

    def _refuse_open(self, sentences: Sentences) -> None:
        if not all(sentences.finished) and not (self.causal and self.words.causal):
            row = sentences.documents[sentences.finished.index(False)]
            raise ThreefoldError(
                f"{self.name}: row {row} stops within a sentence, but its mixers see later words; "
                f"expected the token {self.end} at the end of every sentence"
            )

    def _read_sentences(
        self, sentences: Sentences, opened: State, form: str
    ) -> tuple[Tensor, State]:
        """The vectors [N, width] of sentences, and the state of those that have not ended."""
        rows = len(opened["pooled"][POSITION])
        if not sentences.tokens:
            return self.embedding.weight.new_zeros(0, self.spec.width), opened
        table, real = pad_tokens(sentences.tokens)
        tokens, lengths = table.to(self.device), real.sum(1).to(self.device)
        none = self.words.empty_state(1, self.dtype, self.device)
        origins = [
            row if continues else rows
            for row, continues in zip(sentences.documents, sentences.continues, strict=True)
        ]
        before = states.select(states.join([opened, none]), origins)
        start = before["pooled"][POSITION] if self.embedding.needs_position else None
        x = zero_padding(self.embedding(tokens, start, lengths), lengths)
        vectors, after = self.words(x, before, form, lengths)
        # Behind an end the next sentence begins; a row that has read nothing stays where it was.
        count = len(sentences.tokens)
        newest = list(range(count, count + rows))
        for number, (row, ended) in enumerate(
            zip(sentences.documents, sentences.finished, strict=True)
        ):
            newest[row] = count + rows if ended else number
        return vectors, states.select(states.join([after, opened, none]), newest)

    def _read_document(
        self, sentences: Sentences, vectors: Tensor, state: State, form: str
    ) -> tuple[Tensor, State]:
        """The vectors [B, width] of documents, after the sentences that have ended."""
        rows = len(state["pooled"][POSITION])
        members: list[list[int]] = [[] for _ in range(rows)]
        for number, row in enumerate(sentences.documents):
            if sentences.finished[number]:
                members[row].append(number + 1)
        table, _ = pad_tokens([numbers or [0] for numbers in members])  # 0: no sentence
        lengths = torch.tensor([len(numbers) for numbers in members], device=self.device)
        padded = torch.cat([vectors.new_zeros(1, self.spec.width), vectors])
        x: Tensor = padded[table.to(self.device)]
        return self.document(x, state, form, lengths)  # type: ignore[no-any-return]

    def _make_level(
        self, entries: Sequence[Entry], depth: int, pooling: str, both: bool
    ) -> PooledStack:
        spec = self.spec
        stack = Stack(
            spec.width,
            depth,
            [non_causal_entry(entry) for entry in entries] if both else list(entries),
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )
        return PooledStack(stack, spec.option(pooling), self.name)

    def _check_options(self) -> None:
        spec = self.spec
        check_dropout(self.name, dropout=spec.option("dropout"))
        classes, depth = spec.option("classes"), spec.option("document_depth")
        if classes < 1 or depth < 0 or spec.vocabulary < 2:
            raise ThreefoldError(
                f"{self.name}: {classes} classes, document_depth {depth}, a vocabulary of "
                f"{spec.vocabulary}; expected 1 or more classes, a depth of 1 or more (0: the same "
                "as that of the words), and a token beside the one that ends a sentence"
            )
