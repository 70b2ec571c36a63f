"""p(y | x) = Π_i p(y_i | y_1 … y_{i−1}, encoder(x)): one sequence read, another written.

`encode` reads a source once and returns the state from which the target is predicted token by
token; from there on the model is used as a language model is, so `threefold.generate` writes.
Cho et al. 2014; Sutskever et al. 2014; with attention Bahdanau et al. 2014, Luong et al. 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from threefold.blocks.block import silence
from threefold.blocks.stack import Entry, Stack
from threefold.errors import ThreefoldError, nearest
from threefold.layers.mixer import Rows
from threefold.layers.parts import Linear, RMSNorm
from threefold.memory import state as states
from threefold.memory.plan import plan_form
from threefold.memory.state import State
from threefold.models.alignment import draw_weights, one_row
from threefold.models.decoders import Bahdanau, Decoder, Luong, LuongInputFeeding
from threefold.models.model import Predictor
from threefold.models.spec import Spec
from threefold.models.tokens import check_range, check_tokens, last_places

ATTENTION = ("none", "bahdanau", "luong")


class Seq2Seq(Predictor):
    """An encoder of any mixer, one direction or both, and a decoder of the same mixers.

    One direction: the decoder goes on from the encoder's state (Sutskever et al.).  Both: they have
    no state to hand over, so the decoder begins by reading tanh(W [first; last]) of the encoder's
    outputs as an element; for a GRU that is the paper's s_0 = tanh(W h) behind its gate.
    """

    kind = "seq2seq"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        width, both = spec.width, spec.option("bidirectional")
        self.source_embedding = nn.Embedding(self.source_vocabulary, width)
        self.embedding = nn.Embedding(spec.vocabulary, width)
        self.encoder = self._stack([_both(entry) for entry in spec.entries] if both else None)
        self.encoder_norm = self._norm()
        self.decoder = self._decoder()
        self.bridge = Linear(2 * width, width) if both else None
        self.head = Linear(width, spec.vocabulary)

    @property
    def source_vocabulary(self) -> int:
        """Tokens of the source."""
        given: int = self.spec.option("source_vocabulary")
        return given or self.spec.vocabulary

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    @property
    def causal(self) -> bool:
        """Always true: of the target only what is written is seen."""
        return True

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> State:
        """Read sources [B, M]; returns the state from which their targets are predicted."""
        check_tokens(source, self.name, "the source's tokens")
        rows = None if mask is None else Rows(mask, source.shape, self.name)
        aligned = source if rows is None else rows.align(source)
        check_range(source, aligned, mask, self.source_vocabulary, f"{self.name}, source")
        lengths = None if rows is None else rows.lengths
        x = silence(self.source_embedding(aligned), lengths)
        y, carried = self.encoder.run(x, None, "auto", lengths, self.name)
        outputs = silence(self.encoder_norm(y), lengths)
        top = last_places(outputs, lengths)
        counts = torch.full_like(source[:, 0], source.shape[1]) if lengths is None else lengths
        if self.bridge is not None:
            summary = torch.tanh(self.bridge(torch.cat([outputs[:, 0], top], -1))).unsqueeze(1)
            real = None if lengths is None else (lengths > 0).long()
            y, carried = self.decoder.stack.run(
                silence(summary, real), None, "auto", real, self.name
            )
            top = silence(self.decoder.norm(y), real).squeeze(1)
        return self.decoder.begin(carried, top, outputs, counts)

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

        state: of `encode`, or of an earlier call.  last: logits [B, vocabulary] after the last
        real token of each row only.  Logits at padding, or of a row without tokens, are 0.
        """
        read, state, _, rows = self._decode(tokens, state, form, mask)
        if not last:
            logits: Tensor = self.head(read)
            return logits if rows is None else rows.restore(logits), state
        lengths = None if rows is None else rows.lengths
        logits = self.head(last_places(read, lengths))
        if lengths is not None:
            logits = logits.masked_fill((lengths == 0).unsqueeze(1), 0)
        return logits, state

    def align(
        self,
        source: Tensor,
        tokens: Tensor,
        *,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights [B, L, M]: where the source is looked at for the token after each of tokens."""
        if not self.decoder.attends:
            raise ThreefoldError(
                f"{self.name}: has no attention, so there is no alignment; build it with "
                'options={"attention": "bahdanau"} or "luong"'
            )
        state = self.encode(source, mask=source_mask)
        _, _, weights, rows = self._decode(tokens, state, "auto", mask)
        assert weights is not None  # an attentive decoder has them
        weights = weights if rows is None else rows.restore(weights)
        if source_mask is None:
            return weights
        return Rows(source_mask, source.shape, self.name).restore(weights.mT).mT

    def draw_alignment(
        self,
        source: Tensor | Sequence[int],
        target: Tensor | Sequence[int],
        path: str | PathLike[str],
        *,
        labels: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> Tensor:
        """Draw where one source [M] is looked at for each token of a target [L] after the first.

        The first is what decoding begins with.  labels: texts for all tokens of both.  The ending
        of `path` says what it becomes (png, svg, pdf).  Returns the weights [L − 1, M].
        """
        one, other = one_row(source, "source"), one_row(target, "target")
        if other.shape[1] < 2:
            raise ThreefoldError(
                f"{self.name}: a target of {other.shape[1]} tokens; expected the token that "
                "decoding begins with and at least one after it"
            )
        with torch.no_grad():
            weights = self.align(one.to(self.device), other[:, :-1].to(self.device))[0]
        texts = labels or ([str(int(i)) for i in one[0]], [str(int(i)) for i in other[0]])
        draw_weights(weights, texts[0], texts[1][1:], path)
        return weights

    def empty_state(self, batch_size: int) -> State:
        """The state after a source without elements."""
        weight = self.head.weight
        shapes = self.decoder.state_shapes(0, 0)
        return {
            **states.empty(shapes, batch_size, weight.dtype, weight.device),
            "decoder": self.decoder.stack.empty_state(batch_size),
        }

    def state_size(self, length: int, source: int = 0) -> int:
        """Bytes of the state of one row after `length` tokens, for a source of `source`."""
        shapes = {**self.decoder.state_shapes(length, source), "decoder": {}}
        rest = states.count_bytes(shapes, self.head.weight.dtype)
        return rest + self.decoder.stack.state_size(length)

    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""
        if not isinstance(state, dict) or "decoder" not in state:
            raise ThreefoldError(
                f"{self.name}: the state is not one of this model; expected "
                "model.encode(source) or what an earlier call returned"
            )
        values = state.get("values")
        source = values.shape[1] if isinstance(values, Tensor) and values.dim() == 3 else 0
        beside = {k: v for k, v in self.decoder.state_shapes(0, source).items() if k != "decoder"}
        given = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(given, beside, rows, self.head.weight.dtype, self.name)
        self.decoder.stack.check_state(state["decoder"], rows)

    def _decode(
        self, tokens: Tensor, state: State | None, form: str, mask: Tensor | None
    ) -> tuple[Tensor, State, Tensor | None, Rows | None]:
        check_tokens(tokens, self.name)
        form = plan_form(form, tokens.shape[1], self.forms, self.name, self.decoder.refusals)
        if state is None:
            raise ThreefoldError(
                f"{self.name}: there is no source; give the state of model.encode(source)"
            )
        self.check_state(state, len(tokens))
        rows = None if mask is None else Rows(mask, tokens.shape, self.name)
        aligned = tokens if rows is None else rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        lengths = None if rows is None else rows.lengths
        x = silence(self.embedding(aligned), lengths)
        return *self.decoder(x, state, form, lengths), rows

    def _stack(self, entries: Sequence[Entry] | None = None) -> Stack:
        spec = self.spec
        return Stack(
            spec.width,
            spec.depth,
            entries or spec.entries,
            channel=spec.channel_entry,
            block=spec.block,
            dropout=spec.option("dropout"),
        )

    def _norm(self) -> nn.Module:
        # A plain stack hands over outputs as they are; a residual stream is normed once at its end.
        return nn.Identity() if self.spec.block == "plain" else RMSNorm(self.spec.width, eps=1e-5)

    def _decoder(self) -> Decoder:
        stack, norm = self._stack(), self._norm()
        if not stack.causal:
            raise ThreefoldError(
                f"{self.name}: mixers {[name for name, _ in self.spec.entries]} see later tokens, "
                "which a decoder must predict; choose causal ones (the encoder has both directions "
                'with options={"bidirectional": True})'
            )
        attention = self.spec.option("attention")
        if attention == "none":
            return Decoder(stack, norm)
        more = {
            "score": self.spec.option("score")
            or ("additive" if attention == "bahdanau" else "general"),
            "max_source": self.spec.option("max_source"),
        }
        if attention == "bahdanau":
            return Bahdanau(stack, norm, **more)
        kind = LuongInputFeeding if self.spec.option("input_feeding") else Luong
        return kind(stack, norm, **more)

    def _check_options(self) -> None:
        dropout, attention = self.spec.option("dropout"), self.spec.option("attention")
        if not 0 <= dropout < 1:
            raise ThreefoldError(f"{self.name}: dropout is {dropout}, expected from 0 to below 1")
        if attention not in ATTENTION:
            raise ThreefoldError(
                f"{self.name}: unknown attention {attention!r}; {nearest(attention, ATTENTION)}"
            )
        if self.spec.option("source_vocabulary") < 0:
            raise ThreefoldError(
                f"{self.name}: source_vocabulary is {self.spec.option('source_vocabulary')}, "
                "expected 1 or more, or 0 for the target's"
            )
        if self.spec.option("input_feeding") and attention != "luong":
            raise ThreefoldError(
                f"{self.name}: input feeding belongs to attention 'luong', given {attention!r} "
                "(bahdanau's decoder reads its context anyway)"
            )
        if self.spec.option("score") and attention == "none":
            raise ThreefoldError(
                f"{self.name}: score {self.spec.option('score')!r} without attention; choose "
                "attention 'bahdanau' or 'luong', or leave the score out"
            )


def _both(entry: Entry) -> Entry:
    name, options = entry
    return "bidirectional", {"mixer": name, "options": options}
