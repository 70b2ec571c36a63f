"""What models with a decoder of `decoders.py` share: its choice, state, logits and alignments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, Stack
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

ATTENTION = ("none", "bahdanau", "luong")


class DecoderModel(EncoderDecoder):
    """The base of models whose decoder may attend to the positions of any encoder.

    The options of the spec that control it are `models/table.py: DECODER_OPTIONS`.
    """

    decoder: Decoder
    embedding: nn.Embedding
    head: Linear
    bridge: (
        nn.Module | None
    )  # to the summary of the source that the decoder reads first, if it does

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why a form is not available, by its name."""
        return self.decoder.refusals

    def make_stack(self, entries: Sequence[Entry] | None = None, depth: int = 0) -> Stack:
        """A stack of the spec's width, by default with its mixers and its depth."""
        spec = self.spec
        return Stack(
            spec.width,
            depth or spec.depth,
            entries or spec.entries,
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )

    def make_norm(self, stack: Stack) -> nn.Module:
        """The norm after a stack: plain blocks have none, a residual stream has a final one."""
        return nn.Identity() if self.spec.block_entry[0] == "plain" else stack.final_norm()

    def make_decoder(self, max_source_length: int, remedy: str) -> Decoder:
        """The decoder that the spec describes; `remedy` says what else may see later elements."""
        stack = self.make_stack()
        norm = self.make_norm(stack)
        if not stack.causal:
            raise ThreefoldError(
                f"{self.name}: mixers {[name for name, _ in self.spec.entries]} see later tokens, "
                f"which a decoder must predict; choose causal mixers ({remedy})"
            )
        attention, score = map(self.spec.option, ("attention", "score"))
        if attention == "none":
            return Decoder(stack, norm)
        default_score = "additive" if attention == "bahdanau" else "general"
        options: dict[str, Any] = {
            "score": score or default_score,
            "max_source_length": max_source_length,
        }
        if attention == "bahdanau":
            return BahdanauDecoder(stack, norm, **options)
        kind = LuongInputFeedingDecoder if self.spec.option("input_feeding") else LuongDecoder
        return kind(stack, norm, **options)

    def read_summary(self, summary: Tensor, real: Tensor | None = None) -> tuple[State, Tensor]:
        """The state of the decoder's stack after one vector [B, width], and its output [B, width].

        real [B]: 1, or 0 for rows without a source.
        """
        plan = self.decoder.stack.plan(1, lengths=real, owner=self.name)
        y, carried = self.decoder.stack(zero_padding(summary.unsqueeze(1), real), plan=plan)
        return carried, zero_padding(self.decoder.norm(y), real).squeeze(1)

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

    def empty_state(self, batch_size: int) -> State:
        """The state after an empty source."""
        shapes = self.decoder.state_shapes(0, 0)
        return {
            **states.empty(shapes, batch_size, self.dtype, self.device),
            "decoder": self.decoder.stack.empty_state(batch_size),
        }

    def state_size(self, length: int, source: int = 0) -> int:
        """Bytes of the state of one row after `length` tokens, with `source` source positions."""
        shapes = {**self.decoder.state_shapes(length, source), "decoder": {}}
        rest = states.count_bytes(shapes, self.dtype)
        return rest + self.decoder.stack.state_size(length + (self.bridge is not None))

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        self._refuse_foreign_state(state)
        values = state.get("values")
        source = values.shape[1] if isinstance(values, Tensor) and values.dim() == 3 else 0
        shapes = {k: v for k, v in self.decoder.state_shapes(0, source).items() if k != "decoder"}
        leaves = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(leaves, shapes, rows, self.dtype, self.name, self.device)
        self.decoder.stack.check_state(state["decoder"], rows)

    def check_decoder_options(self) -> None:
        """Raise an error if the options of attention do not fit each other."""
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


def one_row(tokens: Tensor | Sequence[int], what: str) -> Tensor:
    """Tokens [L] as a batch of one row [1, L]."""
    row = torch.as_tensor(tokens)
    if row.dim() != 1 or row.numel() == 0 or row.is_floating_point():
        raise ThreefoldError(
            f"draw_alignment: the {what} is {tuple(row.shape)} {row.dtype}, expected one row of "
            "whole numbers [length]"
        )
    return row.long().unsqueeze(0)
