"""An encoder and a decoder of any mixer, with or without attention between them.

Cho et al. 2014; Sutskever et al. 2014; with attention Bahdanau et al. 2014, Luong et al. 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from threefold.blocks.block import silence
from threefold.blocks.stack import Entry, Stack
from threefold.drawing.attention import draw_weights
from threefold.errors import ThreefoldError, nearest
from threefold.layers.mixer import Rows
from threefold.layers.parts import Linear
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.decoders import Answer, Bahdanau, Decoder, Luong, LuongInputFeeding
from threefold.models.input_checks import last_places
from threefold.models.spec import Spec
from threefold.models.translator import Translator

ATTENTION = ("none", "bahdanau", "luong")


class Seq2Seq(Translator):
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
        self.encoder_norm = self._norm(self.encoder)
        self.decoder = self._decoder()
        self.bridge = Linear(2 * width, width) if both else None
        self.head = Linear(width, spec.vocabulary)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why there is no such form, by its name."""
        return self.decoder.refusals

    def read_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] that start at 0 and hold `lengths`."""
        x = silence(self.source_embedding(source), lengths)
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

    def decode(self, tokens: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        """Read-outs [B, L, width] for tokens [B, L], the state, and weights if there are any."""
        x = silence(self.embedding(tokens), lengths)
        answer: Answer = self.decoder(x, state, form, lengths)
        return answer

    def logits_of(self, read: Tensor) -> Tensor:
        """Read-outs [..., width] to logits [..., vocabulary]."""
        logits: Tensor = self.head(read)
        return logits

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
        (_, _, weights), rows = self._answer(tokens, state, "auto", mask)
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
        one, other = _one_row(source, "source"), _one_row(target, "target")
        if other.shape[1] < 2:
            raise ThreefoldError(
                f"{self.name}: a target of {other.shape[1]} tokens; expected the token that "
                "decoding begins with and at least one after it"
            )
        with torch.no_grad():
            weights = self.align(one.to(self.device), other[:, :-1].to(self.device))[0]
        texts = labels or ([str(int(i)) for i in one[0]], [str(int(i)) for i in other[0]])
        draw_weights(weights, path, queries=texts[1][1:], keys=texts[0], names=("target", "source"))
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
        self._refuse_foreign(state)
        values = state.get("values")
        source = values.shape[1] if isinstance(values, Tensor) and values.dim() == 3 else 0
        beside = {k: v for k, v in self.decoder.state_shapes(0, source).items() if k != "decoder"}
        given = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(given, beside, rows, self.head.weight.dtype, self.name)
        self.decoder.stack.check_state(state["decoder"], rows)

    def _stack(self, entries: Sequence[Entry] | None = None) -> Stack:
        spec = self.spec
        return Stack(
            spec.width,
            spec.depth,
            entries or spec.entries,
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )

    def _norm(self, stack: Stack) -> nn.Module:
        # A plain stack hands over outputs as they are; a residual stream is normed once at its end.
        return nn.Identity() if self.spec.block_entry[0] == "plain" else stack.final_norm()

    def _decoder(self) -> Decoder:
        stack = self._stack()
        norm = self._norm(stack)
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
        attention = self.spec.option("attention")
        if attention not in ATTENTION:
            raise ThreefoldError(
                f"{self.name}: unknown attention {attention!r}; {nearest(attention, ATTENTION)}"
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


def _one_row(tokens: Tensor | Sequence[int], what: str) -> Tensor:
    """Tokens [L] as a batch of one row [1, L]."""
    row = torch.as_tensor(tokens)
    if row.dim() != 1 or row.numel() == 0 or row.is_floating_point():
        raise ThreefoldError(
            f"draw_alignment: the {what} is {tuple(row.shape)} {row.dtype}, expected one row of "
            "whole numbers [length]"
        )
    return row.long().unsqueeze(0)
