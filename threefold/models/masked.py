"""p(x_t | the other tokens) = softmax(E norm(φ(W h_t + b)) + c): predicts masked tokens.

h is the output of a stack that sees the whole sequence, E the embedding.  `pool` is tanh(W h_1 + b)
of the first token; `embed` is the mean of all tokens, scaled to length 1, to compare sentences.
Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; Reimers & Gurevych
2019, "Sentence-BERT".
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.blocks.block import make_block_norm
from threefold.blocks.channel import ACTIVATIONS
from threefold.blocks.stack import Entry, non_causal_entry
from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.padding import zero_padding
from threefold.memory.state import State
from threefold.models.backbone import Backbone, BackboneOutput
from threefold.models.embedding import Embedding
from threefold.models.spec import Spec


class MaskedLanguageModel(Backbone):
    """Embedding, stack of any mixer in both directions, norm, and a head tied to the embedding.

    lm_head=False: without the head.  pooler=True: with the layer that `pool` uses.
    """

    kind = "masked"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.activate = ACTIVATIONS[spec.option("activation")]
        self.transform: Linear | None = None
        if spec.option("lm_head"):
            self.transform = Linear(spec.width, spec.width)
            self.transform_norm = make_block_norm(spec.block_entry, spec.width)
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
        """Logits [B, L, vocabulary] for every token of tokens [B, L]; there is no state (None).

        segments [B, L]: which sentence each token belongs to; None: all to the first.  Logits at
        padding are 0.
        """
        if self.transform is None:
            raise ThreefoldError(
                f'{self.name}: has no head; build it with options={{"lm_head": True}}, or use '
                "encode, embed and pool"
            )
        output = self.run_backbone(tokens, state, form, mask, segments)
        h = self.transform_norm(self.activate(self.transform(self.norm(output.outputs))))
        logits = cast(Embedding, self.embedding).scores(h, self.bias)
        rows = output.rows
        return logits if rows is None else rows.restore(logits), output.after

    def encode(
        self, tokens: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The outputs [B, L, width] of the stack for every token; 0 at padding."""
        output = self.run_backbone(tokens, None, "auto", mask, segments)
        h: Tensor = self.norm(output.outputs)
        return h if output.rows is None else output.rows.restore(h)

    def embed(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        normalise: bool = True,
    ) -> Tensor:
        """One vector per row, [B, width]: the mean over its tokens, scaled to length 1."""
        output = self.run_backbone(tokens, None, "auto", mask, segments)
        count = tokens.shape[1] if output.lengths is None else output.lengths.clamp(min=1)[:, None]
        mean: Tensor = self._normed(output).sum(1) / count
        return F.normalize(mean, dim=-1) if normalise else mean

    def pool(
        self, tokens: Tensor, *, mask: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """tanh(W h_1 + b) of the first token of each row, [B, width]."""
        if self.pooler is None:
            raise ThreefoldError(
                f'{self.name}: has no pooler; build it with options={{"pooler": True}}'
            )
        output = self.run_backbone(tokens, None, "auto", mask, segments)
        return torch.tanh(self.pooler(self._normed(output)[:, 0]))

    def check_options(self) -> None:
        """Raise an error if the activation of the head is unknown."""
        name = self.spec.option("activation")
        if name not in ACTIVATIONS:
            raise ThreefoldError(
                f"{self.name}: unknown activation {name!r}; {nearest(name, ACTIVATIONS)}"
            )

    def _entries(self) -> list[Entry]:
        return [non_causal_entry(entry) for entry in self.spec.entries]

    def _normed(self, output: BackboneOutput) -> Tensor:
        return zero_padding(self.norm(output.outputs), output.lengths)
