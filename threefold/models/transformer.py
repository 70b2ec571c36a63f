"""p(y | x) by attention alone: an encoder that sees all of x, a decoder that attends to it.

    encoder   x ← wire(mixer that is not causal), x ← wire(channel)
    decoder   y ← wire(causal mixer), y ← wire(cross-attention to the encoder), y ← wire(channel)

`wire` is the block of the spec: post_norm as published, pre_norm or deep_norm.  The state holds the
past of the decoder and the keys and values of the source, computed once by `encode`.
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
from threefold.layers.linear import Linear
from threefold.layers.mixer import Plan
from threefold.layers.padding import zero_padding
from threefold.layers.positions import advance_position
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.decoders import DecoderOutput
from threefold.models.embedding import Embedding
from threefold.models.encoder_decoder import TokenSource
from threefold.models.spec import Spec


class Transformer(TokenSource):
    """An encoder and a decoder of blocks with the same `mixers`, not causal in the encoder.

    options: encoder_mixers and encoder_depth, if they differ in the encoder; cross_attention, its
    keywords (default: those of the first attention); share_embeddings: one table for source and
    target; tie: the head is the table of the target; label_smoothing, used by `loss`.
    """

    kind = "transformer"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        self.embedding = Embedding(spec)
        self.source_embedding = Embedding(spec, self.source_vocabulary)
        if spec.option("share_embeddings"):
            self.source_embedding.weight = self.embedding.weight
        depth = spec.option("encoder_depth") or spec.depth
        entries = [non_causal_entry(entry) for entry in self._encoder_entries()]
        self.encoder = self._make_stack(depth, entries, deep_norm_gains(depth, decoder=spec.depth))
        self.encoder_norm = self.encoder.final_norm()
        gains = deep_norm_gains(spec.depth, encoder=depth)
        self.decoder = self._make_stack(spec.depth, spec.entries, gains, self._cross_options())
        self.norm = self.decoder.final_norm()
        self.head = None if spec.option("tie") else Linear(spec.width, spec.vocabulary, False)
        self._check_decoder()
        self._initialise()

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""
        return self.decoder.forms

    def encode_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] aligned at 0, with `lengths` per row."""
        x = zero_padding(self.source_embedding(source, None, lengths), lengths)
        plan = self.encoder.plan(source.shape[1], lengths=lengths, owner=self.name)
        y, _ = self.encoder(x, plan=plan)
        encoded = zero_padding(self.encoder_norm(y), lengths)
        state = self.empty_state(len(source))
        for name, cross in self._cross_attentions().items():
            state["decoder"][name]["cross"] = cross.read_source(encoded, lengths)
        return state

    def decode(
        self, tokens: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> DecoderOutput:
        """Outputs [B, L, width] for tokens [B, L], the state, and None for the weights."""
        start = state.get(POSITION)
        x = zero_padding(self.embedding(tokens, start, lengths), lengths)
        plan = Plan(form, lengths, state_checked=True)
        y, carried = self.decoder(x, state["decoder"], plan=plan)
        after: State = {"decoder": carried}
        if start is not None:
            after = {POSITION: advance_position(start, tokens.shape[1], lengths), **after}
        return self.norm(y), after, None

    def compute_logits(self, outputs: Tensor) -> Tensor:
        """Outputs [..., width] to logits [..., vocabulary]."""
        if self.head is None:
            return self.embedding.scores(outputs)
        logits: Tensor = self.head(outputs)
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy per target token in nats, with `label_smoothing`.

        logits [B, L, vocabulary]; targets [B, L], IGNORE where there is none.
        """
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            targets.flatten(),
            ignore_index=IGNORE,
            label_smoothing=self.spec.option("label_smoothing"),
        )

    def empty_state(self, batch_size: int) -> State:
        """The state after an empty source."""
        own = states.empty(self._own_state_shapes(), batch_size, self.dtype, self.device)
        return {**own, "decoder": self.decoder.empty_state(batch_size)}

    def state_size(self, length: int, source: int = 0) -> int:
        """Bytes of the state of one row after `length` tokens, with `source` source tokens."""
        total = states.count_bytes(self._own_state_shapes(), self.dtype)
        for block in self.decoder.parts.values():
            parts: Mapping[str, Any] = getattr(block, "parts", {})
            for name, part in parts.items():
                total += part.state_size(source if name == "cross" else length)
        return total

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        self._refuse_foreign_state(state)
        own = {name: leaf for name, leaf in state.items() if name != "decoder"}
        states.check(own, self._own_state_shapes(), rows, self.dtype, self.name, self.device)
        self.decoder.check_state(state["decoder"], rows)

    def _own_state_shapes(self) -> Mapping[str, Any]:
        """Shapes of the state leaves outside the decoder."""
        return {POSITION: ()} if self.embedding.needs_position else {}

    def _cross_attentions(self) -> dict[str, Cross]:
        """The cross-attention of each block of the decoder."""
        return {name: block.cross for name, block in self.decoder.parts.items()}  # type: ignore[misc]

    def _make_stack(
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
        mixers = self.spec.option("encoder_mixers")
        # The constructor of Spec checks the mixers.
        spec = Spec(self.spec.kind, self.spec.width, 1, mixers) if mixers else self.spec
        return list(spec.entries)

    def _cross_options(self) -> Mapping[str, Any]:
        options: Mapping[str, Any] = self.spec.option("cross_attention")
        attentions = [options for name, options in self.spec.entries if name == "attention"]
        if options or not attentions:
            return options
        common = ("heads", "groups", "bias", "dropout")
        return {name: value for name, value in attentions[0].items() if name in common}

    def _initialise(self) -> None:
        """Xavier initialisation outside attention, as published; embeddings of norm 1."""
        std = self.spec.width**-0.5
        for module in (self.embedding, self.source_embedding, self.head):
            if module is not None:
                nn.init.normal_(module.weight, std=std)
        if self.spec.block_entry[0] == "deep_norm":
            return  # these blocks have initialised themselves
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
                f"{self.name}: label_smoothing is {smoothing}, expected at least 0 and below 1"
            )
        if self.spec.option("encoder_depth") < 0:
            raise ThreefoldError(
                f"{self.name}: encoder_depth is {self.spec.option('encoder_depth')}, expected 1 or "
                "more, or 0 for the same as the decoder"
            )
        if self.spec.option("share_embeddings") and self.source_vocabulary != self.spec.vocabulary:
            raise ThreefoldError(
                f"{self.name}: source and target cannot share embeddings: {self.source_vocabulary} "
                f'and {self.spec.vocabulary} tokens; give options={{"share_embeddings": False}}'
            )

    def _check_decoder(self) -> None:
        if not self.decoder.causal:
            raise ThreefoldError(
                f"{self.name}: mixers {[name for name, _ in self.spec.entries]} see later tokens, "
                "which a decoder must predict; choose causal mixers, and give these to the encoder "
                'with options={"encoder_mixers": …}'
            )
