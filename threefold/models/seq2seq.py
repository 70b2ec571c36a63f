"""An encoder and a decoder made of any mixers, with or without attention between them.

Cho et al. 2014; Sutskever et al. 2014; with attention Bahdanau et al. 2014, Luong et al. 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import torch
from torch import Tensor, nn

from threefold.blocks.stack import bidirectional_entry
from threefold.drawing.attention import draw_weights
from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.layers.padding import zero_padding
from threefold.memory.state import State
from threefold.models.decoder_model import DecoderModel, one_row
from threefold.models.encoder_decoder import TokenSource
from threefold.models.input_checks import last_elements
from threefold.models.spec import Spec

REMEDY = 'the encoder runs in both directions with options={"bidirectional": True}'


class Seq2Seq(DecoderModel, TokenSource):
    """An encoder of any mixers, in one direction or both, and a decoder of the same mixers.

    With one direction the decoder continues from the state of the encoder (Sutskever et al.).  With
    both there is no such state, so the first element that the decoder reads is tanh(W [first;
    last]) of the encoder's outputs; for a GRU that is the paper's s_0 = tanh(W h), gated.
    """

    kind = "seq2seq"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.check_decoder_options()
        width, both = spec.width, spec.option("bidirectional")
        self.source_embedding = nn.Embedding(self.source_vocabulary, width)
        self.embedding = nn.Embedding(spec.vocabulary, width)
        self.encoder = self.make_stack(
            [bidirectional_entry(entry) for entry in spec.entries] if both else None
        )
        self.encoder_norm = self.make_norm(self.encoder)
        self.decoder = self.make_decoder(spec.option("max_source_length"), REMEDY)
        self.bridge = Linear(2 * width, width) if both else None
        self.head = Linear(width, spec.vocabulary)

    def encode_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] aligned at 0, with `lengths` per row."""
        x = zero_padding(self.source_embedding(source), lengths)
        plan = self.encoder.plan(source.shape[1], lengths=lengths, owner=self.name)
        y, carried = self.encoder(x, plan=plan)
        outputs = zero_padding(self.encoder_norm(y), lengths)
        top = last_elements(outputs, lengths)
        counts = torch.full_like(source[:, 0], source.shape[1]) if lengths is None else lengths
        if self.bridge is not None:
            summary = torch.tanh(self.bridge(torch.cat([outputs[:, 0], top], -1)))
            carried, top = self.read_summary(
                summary, None if lengths is None else (lengths > 0).long()
            )
        return self.decoder.initial_state(carried, top, outputs, counts)

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
        source_row, target_row = one_row(source, "source"), one_row(target, "target")
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
