"""An encoder and a decoder made of any mixers, with or without attention between them.

Cho et al. 2014; Sutskever et al. 2014; with attention Bahdanau et al. 2014, Luong et al. 2015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack, bidirectional_entry
from threefold.drawing.attention import draw_weights
from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.padding import PaddedRows, zero_padding
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.decoders import (
    BahdanauDecoder,
    Decoder,
    DecoderOutput,
    LuongDecoder,
    LuongInputFeedingDecoder,
)
from threefold.models.encoder_decoder import EncoderDecoder
from threefold.models.input_checks import last_elements
from threefold.models.spec import Spec

ATTENTION = ("none", "bahdanau", "luong")


class Seq2Seq(EncoderDecoder):
    """An encoder of any mixers, in one direction or both, and a decoder of the same mixers.

    With one direction the decoder continues from the state of the encoder (Sutskever et al.).  With
    both there is no such state, so the first element that the decoder reads is tanh(W [first;
    last]) of the encoder's outputs; for a GRU that is the paper's s_0 = tanh(W h), gated.
    """

    kind = "seq2seq"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        width, both = spec.width, spec.option("bidirectional")
        self.source_embedding = nn.Embedding(self.source_vocabulary, width)
        self.embedding = nn.Embedding(spec.vocabulary, width)
        self.encoder = self._make_stack(
            [bidirectional_entry(entry) for entry in spec.entries] if both else None
        )
        self.encoder_norm = self._make_norm(self.encoder)
        self.decoder = self._make_decoder()
        self.bridge = Linear(2 * width, width) if both else None
        self.head = Linear(width, spec.vocabulary)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why a form is not available, by its name."""
        return self.decoder.refusals

    def encode_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] aligned at 0, with `lengths` per row."""
        x = zero_padding(self.source_embedding(source), lengths)
        plan = self.encoder.plan(source.shape[1], lengths=lengths, owner=self.name)
        y, carried = self.encoder(x, plan=plan)
        outputs = zero_padding(self.encoder_norm(y), lengths)
        top = last_elements(outputs, lengths)
        counts = torch.full_like(source[:, 0], source.shape[1]) if lengths is None else lengths
        if self.bridge is not None:
            summary = torch.tanh(self.bridge(torch.cat([outputs[:, 0], top], -1))).unsqueeze(1)
            real = None if lengths is None else (lengths > 0).long()
            plan = self.decoder.stack.plan(1, lengths=real, owner=self.name)
            y, carried = self.decoder.stack(zero_padding(summary, real), plan=plan)
            top = zero_padding(self.decoder.norm(y), real).squeeze(1)
        return self.decoder.initial_state(carried, top, outputs, counts)

    def decode(
        self, tokens: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> DecoderOutput:
        """Outputs [B, L, width] for tokens [B, L], the state, and attention weights or None."""
        x = zero_padding(self.embedding(tokens), lengths)
        output: DecoderOutput = self.decoder(x, state, form, lengths)
        return output

    def compute_logits(self, outputs: Tensor) -> Tensor:
        """Outputs [..., width] to logits [..., vocabulary]."""
        logits: Tensor = self.head(outputs)
        return logits

    def align(
        self,
        source: Tensor,
        tokens: Tensor,
        *,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attention weights [B, L, M] over the source, for the token after each of tokens."""
        if not self.decoder.has_attention:
            raise ThreefoldError(
                f"{self.name}: has no attention, so there is no alignment; build it with "
                'options={"attention": "bahdanau"} or "luong"'
            )
        state = self.encode(source, mask=source_mask)
        (_, _, weights), rows = self._decode_checked(tokens, state, "auto", mask)
        assert weights is not None  # a decoder with attention returns them
        weights = weights if rows is None else rows.restore(weights)
        if source_mask is None:
            return weights
        return PaddedRows(source_mask, source.shape, self.name).restore(weights.mT).mT

    def draw_alignment(
        self,
        source: Tensor | Sequence[int],
        target: Tensor | Sequence[int],
        path: str | PathLike[str],
        *,
        labels: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> Tensor:
        """Draw the attention weights over a source [M] for each target token [L] but the first.

        The first target token is the one that decoding starts from.  labels: texts for all tokens
        of source and target.  The suffix of `path` chooses the format (png, svg, pdf).  Returns the
        weights [L − 1, M].
        """
        source_row, target_row = _one_row(source, "source"), _one_row(target, "target")
        if target_row.shape[1] < 2:
            raise ThreefoldError(
                f"{self.name}: a target of {target_row.shape[1]} tokens; expected the token that "
                "decoding starts from and at least one after it"
            )
        with torch.no_grad():
            weights = self.align(source_row.to(self.device), target_row[:, :-1].to(self.device))[0]
        texts = labels or tuple([str(int(i)) for i in row[0]] for row in (source_row, target_row))
        draw_weights(weights, path, queries=texts[1][1:], keys=texts[0], names=("target", "source"))
        return weights

    def empty_state(self, batch_size: int) -> State:
        """The state after an empty source."""
        shapes = self.decoder.state_shapes(0, 0)
        return {
            **states.empty(shapes, batch_size, self.dtype, self.device),
            "decoder": self.decoder.stack.empty_state(batch_size),
        }

    def state_size(self, length: int, source: int = 0) -> int:
        """Bytes of the state of one row after `length` tokens, with `source` source tokens."""
        shapes = {**self.decoder.state_shapes(length, source), "decoder": {}}
        rest = states.count_bytes(shapes, self.dtype)
        return rest + self.decoder.stack.state_size(length)

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        self._refuse_foreign_state(state)
        values = state.get("values")
        source = values.shape[1] if isinstance(values, Tensor) and values.dim() == 3 else 0
        shapes = {k: v for k, v in self.decoder.state_shapes(0, source).items() if k != "decoder"}
        leaves = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(leaves, shapes, rows, self.dtype, self.name, self.device)
        self.decoder.stack.check_state(state["decoder"], rows)

    def _make_stack(self, entries: Sequence[Entry] | None = None) -> Stack:
        spec = self.spec
        return Stack(
            spec.width,
            spec.depth,
            entries or spec.entries,
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )

    def _make_norm(self, stack: Stack) -> nn.Module:
        # The outputs of plain blocks are used as they are; a residual stream has a final norm.
        return nn.Identity() if self.spec.block_entry[0] == "plain" else stack.final_norm()

    def _make_decoder(self) -> Decoder:
        stack = self._make_stack()
        norm = self._make_norm(stack)
        if not stack.causal:
            raise ThreefoldError(
                f"{self.name}: mixers {[name for name, _ in self.spec.entries]} see later tokens, "
                "which a decoder must predict; choose causal mixers (the encoder runs in both "
                'directions with options={"bidirectional": True})'
            )
        attention, score = map(self.spec.option, ("attention", "score"))
        if attention == "none":
            return Decoder(stack, norm)
        default_score = "additive" if attention == "bahdanau" else "general"
        max_length = self.spec.option("max_source_length")
        options = {"score": score or default_score, "max_source_length": max_length}
        if attention == "bahdanau":
            return BahdanauDecoder(stack, norm, **options)
        kind = LuongInputFeedingDecoder if self.spec.option("input_feeding") else LuongDecoder
        return kind(stack, norm, **options)

    def _check_options(self) -> None:
        attention = self.spec.option("attention")
        if attention not in ATTENTION:
            raise ThreefoldError(
                f"{self.name}: unknown attention {attention!r}; {nearest(attention, ATTENTION)}"
            )
        if self.spec.option("input_feeding") and attention != "luong":
            raise ThreefoldError(
                f"{self.name}: input_feeding needs attention='luong', given {attention!r} "
                "(a bahdanau decoder reads its context anyway)"
            )
        if self.spec.option("score") and attention == "none":
            raise ThreefoldError(
                f"{self.name}: score {self.spec.option('score')!r} without attention; choose "
                "attention 'bahdanau' or 'luong', or leave the score out"
            )


def _one_row(tokens: Tensor | Sequence[int], what: str) -> Tensor:
    """Tokens [L] as a batch of one row [1, L]."""
    row = torch.as_tensor(tokens)
    if row.dim() != 1 or row.numel() == 0 or row.is_floating_point():
        raise ThreefoldError(
            f"draw_alignment: the {what} is {tuple(row.shape)} {row.dtype}, expected one row of "
            "whole numbers [length]"
        )
    return row.long().unsqueeze(0)
