"""p(y | x) by attention alone: an encoder that sees all of x, a decoder that looks at it.

    encoder   x ← wire(mixer of both sides), x ← wire(channel)
    decoder   y ← wire(causal mixer), y ← wire(cross-attention to the encoder), y ← wire(channel)

`wire` is the block of the spec: post_norm as published, pre_norm or deep_norm.  A state carries the
decoder's own past and, from `encode` on, the keys and values of the source, made once.
Vaswani et al. 2017, "Attention Is All You Need"; presets.transformer has its sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from threefold.blocks.cross import Cross
from threefold.blocks.post_norm import deep_norm_gains
from threefold.blocks.stack import Entry, Stack, non_causal_entry
from threefold.data.loaders import IGNORE
from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.linear import Linear
from threefold.layers.padding import zero_padding
from threefold.layers.positions import advance_position
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.decoders import Answer
from threefold.models.embedding import Embedding
from threefold.models.spec import Spec
from threefold.models.translator import Translator


class Transformer(Translator):
    """An encoder and a decoder of blocks; `mixers` serve both, in the encoder from both sides.

    options: encoder_mixers and encoder_depth, where the encoder has others; cross, the keywords of
    cross-attention (those of the first attention, unless given); shared: one table for source and
    target; tie: the head is the target's table; label_smoothing of `loss`.
    """

    kind = "transformer"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        self.embedding = Embedding(spec)
        self.source_embedding = Embedding(spec, self.source_vocabulary)
        if spec.option("shared"):
            self.source_embedding.weight = self.embedding.weight
        depth = spec.option("encoder_depth") or spec.depth
        entries = [non_causal_entry(entry) for entry in self._encoder_entries()]
        self.encoder = self._stack(depth, entries, deep_norm_gains(depth, decoder=spec.depth))
        self.encoder_norm = self.encoder.final_norm()
        gains = deep_norm_gains(spec.depth, encoder=depth)
        self.decoder = self._stack(spec.depth, spec.entries, gains, self._cross())
        self.norm = self.decoder.final_norm()
        self.head = None if spec.option("tie") else Linear(spec.width, spec.vocabulary, False)
        self._check_decoder()
        self._begin()

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    def read_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] that start at 0 and hold `lengths`."""
        x = zero_padding(self.source_embedding(source, None, lengths), lengths)
        y, _ = self.encoder.run(x, None, "auto", lengths, self.name)
        seen = zero_padding(self.encoder_norm(y), lengths)
        state = self.empty_state(len(source))
        for name, cross in self._looks().items():
            state["decoder"][name]["cross"] = cross.read(seen, lengths)
        return state

    def decode(self, tokens: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        """Read-outs [B, L, width] for tokens [B, L], and the state."""
        start = state.get(POSITION)
        x = zero_padding(self.embedding(tokens, start, lengths), lengths)
        y, carried = self.decoder.run(x, state["decoder"], form, lengths, self.name)
        after: State = {"decoder": carried}
        if start is not None:
            after = {POSITION: advance_position(start, tokens.shape[1], lengths), **after}
        return self.norm(y), after, None

    def logits_of(self, read: Tensor) -> Tensor:
        """Read-outs [..., width] to logits [..., vocabulary]."""
        return ops.linear(read, self.embedding.weight if self.head is None else self.head.weight)

    def loss(self, logits: Tensor, answers: Tensor) -> Tensor:
        """Nats a token that counts, against answers smoothed by `label_smoothing`.

        logits [B, L, vocabulary]; answers [B, L], IGNORE where none is expected.
        """
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            answers.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.spec.option("label_smoothing"),
        )

    def empty_state(self, batch_size: int) -> State:
        """The state after a source without elements."""
        weight = self.embedding.weight
        beside = states.empty(self._beside(), batch_size, weight.dtype, weight.device)
        return {**beside, "decoder": self.decoder.empty_state(batch_size)}

    def state_size(self, length: int, source: int = 0) -> int:
        """Bytes of the state of one row after `length` tokens, for a source of `source`."""
        total = states.count_bytes(self._beside(), self.embedding.weight.dtype)
        for block in self.decoder.parts.values():
            parts: Mapping[str, Any] = getattr(block, "parts", {})
            for name, part in parts.items():
                total += part.state_size(source if name == "cross" else length)
        return total

    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""
        self._refuse_foreign(state)
        mine = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(mine, self._beside(), rows, self.embedding.weight.dtype, self.name)
        self.decoder.check_state(state["decoder"], rows)

    def _beside(self) -> Mapping[str, Any]:
        """Leaves of the state beside the decoder's."""
        return {POSITION: ()} if self.embedding.counts else {}

    def _looks(self) -> dict[str, Cross]:
        """The cross-attention of each block of the decoder."""
        return {name: block.cross for name, block in self.decoder.parts.items()}  # type: ignore[misc]

    def _stack(
        self,
        depth: int,
        entries: Sequence[Entry],
        gains: Mapping[str, float],
        cross: Mapping[str, Any] | None = None,
    ) -> Stack:
        name, options = self.spec.block_entry
        options = {**gains, **options} if name == "deep_norm" else options
        return Stack(
            self.spec.width,
            depth,
            entries,
            channel=self.spec.channel_entry,
            block=(name, options),
            dropout=self.spec.option("dropout"),
            cross=cross,
        )

    def _encoder_entries(self) -> list[Entry]:
        given = self.spec.option("encoder_mixers")
        # A spec checks its mixers.
        spec = Spec(self.spec.kind, self.spec.width, 1, given) if given else self.spec
        return list(spec.entries)

    def _cross(self) -> Mapping[str, Any]:
        given: Mapping[str, Any] = self.spec.option("cross")
        alike = [options for name, options in self.spec.entries if name == "attention"]
        if given or not alike:
            return given
        wanted = ("heads", "groups", "bias", "dropout")
        return {name: value for name, value in alike[0].items() if name in wanted}

    def _begin(self) -> None:
        """Xavier's beginnings for what is not attention, as published; tables of norm 1."""
        std = self.spec.width**-0.5
        for module in (self.embedding, self.source_embedding, self.head):
            if module is not None:
                nn.init.normal_(module.weight, std=std)
        if self.spec.block_entry[0] == "deep_norm":
            return  # its blocks have drawn theirs
        for stack in (self.encoder, self.decoder):
            for block in stack.parts.values():
                channel = getattr(block, "channel", None)
                for module in channel.modules() if channel is not None else ():
                    if isinstance(module, nn.Linear):
                        nn.init.xavier_uniform_(module.weight)
                        if module.bias is not None:
                            nn.init.zeros_(module.bias)

    def _check_options(self) -> None:
        smoothing = self.spec.option("label_smoothing")
        if not 0 <= smoothing < 1:
            raise ThreefoldError(
                f"{self.name}: label_smoothing is {smoothing}, expected from 0 to below 1"
            )
        if self.spec.option("encoder_depth") < 0:
            raise ThreefoldError(
                f"{self.name}: encoder_depth is {self.spec.option('encoder_depth')}, expected 1 or "
                "more, or 0 for the decoder's"
            )
        if self.spec.option("shared") and self.source_vocabulary != self.spec.vocabulary:
            raise ThreefoldError(
                f"{self.name}: one table for a source of {self.source_vocabulary} tokens and a "
                f'target of {self.spec.vocabulary}; give options={{"shared": False}}'
            )

    def _check_decoder(self) -> None:
        if not self.decoder.causal:
            raise ThreefoldError(
                f"{self.name}: mixers {[name for name, _ in self.spec.entries]} see later tokens, "
                "which a decoder must predict; give causal ones, and these to the encoder with "
                'options={"encoder_mixers": …}'
            )
