"""p(x_t | the other tokens) = softmax(E norm(φ(W h_t + b)) + c): hidden tokens are guessed.

h is the output of a stack that sees the whole sequence, E its embedding.  `pool` is tanh(W h_1 + b)
of the first token; `embed` is the mean of all, of length 1, as sentences are compared.
Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; Reimers & Gurevych
2019, "Sentence-BERT".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.blocks.block import norm_of
from threefold.blocks.channel import ACTIVATIONS
from threefold.blocks.stack import Entry, non_causal_entry
from threefold.errors import ThreefoldError, nearest
from threefold.kernels import ops
from threefold.layers.linear import Linear
from threefold.layers.padding import zero_padding
from threefold.memory.state import State
from threefold.models.backbone import Body, Reading
from threefold.models.spec import Spec


class MaskedLanguageModel(Body):
    """Embedding, stack of any mixer in both directions, norm, and a head tied to the embedding.

    `predicts` off: without the head.  `pooler` on: with the layer of `pool`.
    """

    kind = "masked"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.activate = ACTIVATIONS[spec.option("activation")]
        self.transform: Linear | None = None
        if spec.option("predicts"):
            self.transform = Linear(spec.width, spec.width)
            self.transform_norm = norm_of(spec.block_entry, spec.width)
            self.bias = nn.Parameter(torch.zeros(spec.vocabulary))
        self.pooler = Linear(spec.width, spec.width) if spec.option("pooler") else None
        for module in (self.transform, self.pooler):
            if module is not None:
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, vocabulary] of every token of tokens [B, L]; there is no state (None).

        segments [B, L]: which sentence each belongs to; None: all to the first.  Logits at padding
        are 0.
        """
        if self.transform is None:
            raise ThreefoldError(
                f"{self.name}: has no head; build it with the option predicts, or use encode, "
                "embed and pool"
            )
        reading = self.read(tokens, state, form, mask, segments)
        h = self.transform_norm(self.activate(self.transform(self.norm(reading.outputs))))
        logits = ops.linear(h, self.embedding.weight, self.bias)
        rows = reading.rows
        return logits if rows is None else rows.restore(logits), reading.after

    def encode(
        self, tokens: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """What every token became, [B, L, width]; 0 at padding."""
        reading = self.read(tokens, None, "auto", mask, segments)
        h: Tensor = self.norm(reading.outputs)
        return h if reading.rows is None else reading.rows.restore(h)

    def embed(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """One vector for each row, [B, width]: the mean of its tokens, brought to length 1."""
        reading = self.read(tokens, None, "auto", mask, segments)
        count = (
            tokens.shape[1] if reading.lengths is None else reading.lengths.clamp(min=1)[:, None]
        )
        mean: Tensor = self._silenced(reading).sum(1) / count
        return F.normalize(mean, dim=-1) if normalise else mean

    def pool(
        self, tokens: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """tanh(W h_1 + b) of the first token of each row, [B, width]."""
        if self.pooler is None:
            raise ThreefoldError(f"{self.name}: has no pooler; build it with the option pooler")
        reading = self.read(tokens, None, "auto", mask, segments)
        return torch.tanh(self.pooler(self._silenced(reading)[:, 0]))

    def check_options(self) -> None:
        """Refuse an unknown activation of the head."""
        name = self.spec.option("activation")
        if name not in ACTIVATIONS:
            raise ThreefoldError(
                f"{self.name}: unknown activation {name!r}; {nearest(name, ACTIVATIONS)}"
            )

    def _entries(self) -> list[Entry]:
        return [non_causal_entry(entry) for entry in self.spec.entries]

    def _silenced(self, reading: Reading) -> Tensor:
        return zero_padding(self.norm(reading.outputs), reading.lengths)
