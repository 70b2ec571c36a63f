"""p(x_t | the tokens before t in an order z, and where t is) = softmax(E g_t + c): XLNet.

Any order of the tokens factorises their probability; trained on random orders, a model reads both
sides of every token.  Two streams (`layers/two_stream.py`): the content stream starts from tokens,
the query stream from one learned vector, and predicts.  The state is the memory: the last inputs
of each layer's content stream, read by all tokens of the next piece.
Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding".

Like the authors' code and transformers' `XLNetLMHeadModel`: given tokens read each other whatever
their order (the paper's equations order them too), and memory counts as segment 0.  Unlike
transformers: a token that may read nothing gets zeros (theirs averages all tokens, itself and
later ones of the order included); states keep their graph, and the training loop detaches them;
the query stream is computed for predicted tokens only.  Its options bi_data, attn_type="uni",
clamp_len, same_length and reuse_len are not here: one direction of the data, a memory of all of a
piece, and an order from left to right is given as ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack
from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.checks import check_dropout
from threefold.layers.mixer import Mixer, Plan
from threefold.layers.padding import PaddedRows
from threefold.layers.two_stream import TwoStreamAttention
from threefold.memory import state as states
from threefold.memory.padding import real_elements
from threefold.memory.state import POSITION, State
from threefold.models.input_checks import check_range, check_tokens
from threefold.models.model import Model
from threefold.models.spec import Spec

MIXER = "transformer_xl"  # whose attention runs in two streams
STREAMS = "streams"  # what elements may read, beside the states of the blocks


class TwoStreamStack(Stack):
    """Blocks of two-stream attention; all of them read by the same `streams` of the state."""

    def __init__(self, spec: Spec) -> None:
        more = {name: spec.option(name) for name in ("segments", "dropout")}
        super().__init__(
            spec.width,
            spec.depth,
            [(name, {**keywords, **more}) for name, keywords in spec.entries],
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )

    def make_mixer(self, entry: Entry, place: Mapping[str, int]) -> Mixer:
        """The attention of one block."""
        return TwoStreamAttention(self.width, **entry[1])

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        streams = state[STREAMS]
        carried = {
            name: {"mixer": {**state.get(name, {}).get("mixer", {}), **streams}}
            for name in self.parts
        }
        return super().mix(x, carried, form, lengths)


class Targets(NamedTuple):
    """The tokens to predict: their positions [B, P], and which of them count."""

    positions: Tensor
    counted: Tensor


class XLNet(Model):
    """Embedding, stack of two-stream attention, norm, and a head tied to the embedding.

    The spec's mixers are `transformer_xl` with its keywords; `memory` is what is read before a
    piece.  segments=True: tokens know whether others are in their segment.  lm_head=False: without
    the head, see `encode`.
    """

    kind = "xlnet"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        others = [name for name, _ in spec.entries if name != MIXER]
        if others:
            raise ThreefoldError(
                f"{self.name}: the mixers are {', '.join(others)}; expected {MIXER}, because only "
                "its attention has two streams"
            )
        check_dropout(self.name, dropout=spec.option("dropout"))
        self.embedding = nn.Embedding(spec.vocabulary, spec.width)
        self.query = nn.Parameter(torch.empty(spec.width).normal_(std=0.02))
        self.dropout = nn.Dropout(spec.option("dropout"))
        self.stack = TwoStreamStack(spec)
        self.norm = self.stack.final_norm()
        self.bias = nn.Parameter(torch.zeros(spec.vocabulary)) if spec.option("lm_head") else None
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        ranks: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, vocabulary] of the tokens [B, L] themselves, and the memory after them.

        ranks [B, L]: 0 for tokens that are given, else the place of a token in the order; it is
        predicted from given ones and from those of lower ranks.  None: from left to right.  Logits
        of given tokens and of padding are 0.
        """
        if self.bias is None:
            raise ThreefoldError(
                f'{self.name}: has no head; build it with options={{"lm_head": True}}, or use '
                "encode"
            )
        if ranks is None:
            check_tokens(tokens, self.name)
            left = torch.zeros_like(tokens) if mask is None else (mask.cumsum(1) == 0).sum(1, True)
            ranks = 1 + torch.arange(tokens.shape[1], device=tokens.device) - left
            ranks = ranks.clamp(min=0)
        rows, aligned, places = self._align(tokens, mask, segments, ranks)
        targets = find_targets(places["ranks"], None if rows is None else rows.lengths)
        y, after = self._run(aligned, rows, state, places, targets, form)
        h = self.dropout(self.norm(y[:, tokens.shape[1] :]))
        logits = ops.linear(h, self.embedding.weight, self.bias)
        logits = torch.where(targets.counted.unsqueeze(-1), logits, torch.zeros_like(logits))
        index = targets.positions.unsqueeze(-1).expand_as(logits)
        empty = logits.new_zeros(*tokens.shape, logits.shape[-1])
        logits = empty.scatter(1, index, logits)
        return logits if rows is None else rows.restore(logits), after

    def encode(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        ranks: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The content stream [B, L, width], and the memory; ranks None: all tokens are given."""
        check_tokens(tokens, self.name)
        ranks = torch.zeros_like(tokens) if ranks is None else ranks
        rows, aligned, places = self._align(tokens, mask, segments, ranks)
        y, after = self._run(aligned, rows, state, places, None, "auto")
        h: Tensor = self.norm(y)
        return h if rows is None else rows.restore(h), after

    def empty_state(self, batch_size: int) -> State:
        """The state before the first token."""
        position = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        return {POSITION: position, **self.stack.empty_state(batch_size)}

    def state_size(self, length: int) -> int:
        """Bytes of the state of one row, after any number of tokens."""
        return states.count_bytes({POSITION: ()}, self.dtype) + self.stack.state_size(length)

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        known = isinstance(state, dict)
        own = {name: state[name] for name in (POSITION,) if name in state} if known else state
        states.check(own, {POSITION: ()}, rows, self.dtype, self.name, self.device)
        carried = {name: leaf for name, leaf in state.items() if name != POSITION}
        self.stack.check_state(carried, rows)

    def _align(
        self, tokens: Tensor, mask: Tensor | None, segments: Tensor | None, ranks: Tensor
    ) -> tuple[PaddedRows | None, Tensor, dict[str, Tensor]]:
        """Tokens, ranks and segments, checked, in rows that start at 0."""
        check_tokens(tokens, self.name)
        if segments is not None and not self.spec.option("segments"):
            raise ThreefoldError(
                f'{self.name}: has no segments; build it with options={{"segments": True}}'
            )
        named = {"ranks": ranks, "segments": segments}
        places = {name: value for name, value in named.items() if value is not None}
        for name, value in places.items():
            check_tokens(value, self.name, name)
            if value.shape != tokens.shape:
                raise ThreefoldError(
                    f"{self.name}: {name} is {tuple(value.shape)}, expected "
                    f"{tuple(tokens.shape)}, one for each token"
                )
        if not (ranks.is_meta or torch.compiler.is_compiling()) and bool((ranks < 0).any()):
            raise ThreefoldError(
                f"{self.name}: a rank is {int(ranks.min())}, expected 0 for given tokens and 1 or "
                "more for those to predict"
            )
        rows = None if mask is None else PaddedRows(mask, tokens.shape, self.name)
        aligned = tokens if rows is None else rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        if rows is not None:
            places = {name: rows.align(value) for name, value in places.items()}
        return rows, aligned, places

    def _run(
        self,
        tokens: Tensor,
        rows: PaddedRows | None,
        state: State | None,
        places: Mapping[str, Tensor],
        targets: Targets | None,
        form: str,
    ) -> tuple[Tensor, State]:
        """Both streams [B, L + P, width] after the stack, and the state."""
        batch, length = tokens.shape
        form = self.stack.plan(length, form, owner=self.name).form
        lengths = None if rows is None else rows.lengths
        position = tokens.new_zeros(batch)
        if state is not None:
            self.check_state(state, batch)
            state = states.for_autograd(state)
            position = state[POSITION]
        size = self._memory if state is not None else 0
        streams: dict[str, Any] = visible(places, targets, lengths, position, size)
        if lengths is not None:
            streams["lengths"] = lengths
        x = self.embedding(tokens)
        if targets is not None:
            query = self.query.to(x.dtype).expand(batch, targets.positions.shape[1], -1)
            x = torch.cat([x, query], 1)
        carried = {**(state or {}), STREAMS: streams}
        y, after = self.stack(self.dropout(x), carried, plan=Plan(form, None, state_checked=True))
        return y, {POSITION: position + (length if lengths is None else lengths), **after}

    @property
    def _memory(self) -> int:
        memory: int = self.stack.state_shapes(0)["0"]["mixer"]["window"][0]
        return memory


def find_targets(ranks: Tensor, lengths: Tensor | None) -> Targets:
    """The positions of ranks above 0, in the order of the text, padded to the longest row."""
    chosen = ranks > 0
    if lengths is not None:
        chosen = chosen & real_elements(lengths, ranks.shape[1])
    count = ranks.shape[1]
    if not ranks.is_meta and not torch.compiler.is_compiling():
        count = max(1, int(chosen.sum(1).max()))
    positions = (~chosen).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
    return Targets(positions, chosen.gather(1, positions))


def visible(
    places: Mapping[str, Tensor],
    targets: Targets | None,
    lengths: Tensor | None,
    position: Tensor,
    memory: int,
) -> dict[str, Tensor]:
    """What L elements of content and P of the query stream read of memory and content.

    Content i reads itself and content j if j is given or has a lower rank, query i the same without
    itself.  Of the memory the last `position` elements are filled.
    """
    ranks = places["ranks"]
    batch, length = ranks.shape
    here = torch.arange(length, device=ranks.device).expand(batch, -1)
    seen = (ranks.unsqueeze(1) < ranks.unsqueeze(2)) | (ranks == 0).unsqueeze(1)
    itself = torch.eye(length, dtype=torch.bool, device=ranks.device)
    seen, rows = seen | itself, here
    if targets is not None:
        index = targets.positions.unsqueeze(-1).expand(-1, -1, length)
        queries = (seen & ~itself).gather(1, index)
        seen, rows = torch.cat([seen, queries], 1), torch.cat([here, targets.positions], 1)
    if lengths is not None:
        seen = seen & (here < lengths.unsqueeze(1)).unsqueeze(1)
    before = torch.arange(-memory, 0, device=ranks.device).expand(batch, -1)
    filled = (before >= -position.unsqueeze(1)).unsqueeze(1).expand(-1, seen.shape[1], -1)
    columns = torch.cat([before, here], 1)
    streams = {
        "seen": torch.cat([filled, seen], 2),
        "distance": rows.unsqueeze(2) - columns.unsqueeze(1),
    }
    if "segments" in places:
        segments = places["segments"]
        sources = torch.cat([segments.new_zeros(batch, memory), segments], 1)
        differs = segments.gather(1, rows).unsqueeze(2) != sources.unsqueeze(1)
        streams["differs"] = differs.long()
    return streams
