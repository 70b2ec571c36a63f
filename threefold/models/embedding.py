"""x_t = norm(√width · E[token_t] + p_t): what a stack is given; every part but E may be left out.

Positions that are added to the stream once stand here; those that attention adds, turns by, or
scores with belong to the mixer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from threefold.blocks.block import norm_of
from threefold.errors import ThreefoldError, nearest
from threefold.layers.positions import Positions, make_positions
from threefold.models.spec import Spec

KINDS = ("none", "learned", "sinusoidal", "binary")


class Embedding(nn.Embedding):
    """A table of vectors, with the positions, the norm (as in the blocks) and the dropout after it.

    All of it is said by the options of the spec that are in `models/table.py: EMBEDDING`.
    """

    def __init__(self, spec: Spec, vocabulary: int | None = None) -> None:
        super().__init__(vocabulary or spec.vocabulary, spec.width)
        kind, dropout = spec.option("positions"), spec.option("embedding_dropout")
        if kind not in KINDS:
            raise ThreefoldError(
                f"positions of the embedding: {kind!r}; {nearest(kind, KINDS)} (rotary, alibi and "
                "relative positions are keywords of attention)"
            )
        if not 0 <= dropout < 1:
            raise ThreefoldError(f"embedding_dropout is {dropout}, expected from 0 to below 1")
        self.positions = make_positions(
            kind, spec.width, 1, max_length=spec.option("max_length") or None
        )
        self.factor = math.sqrt(spec.width) if spec.option("scale") else 1.0
        self.norm = norm_of(spec.block_entry, spec.width) if spec.option("embedding_norm") else None
        self.dropout = nn.Dropout(dropout)

    @property
    def counts(self) -> bool:
        """Whether it has to know where each row stands."""
        return type(self.positions) is not Positions

    def forward(
        self,
        tokens: Tensor,
        start: Tensor | None = None,
        lengths: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """tokens [B, L] to [B, L, width]; rows stand at `start` [B] (None: 0) and hold `lengths`.

        added: what else belongs to each element, such as its segment.
        """
        x = super().forward(tokens)
        if self.factor != 1:
            x = x * self.factor
        if self.counts:
            zero = torch.zeros(len(tokens), dtype=torch.int64, device=tokens.device)
            x = self.positions.add(x, zero if start is None else start, lengths)
        if added is not None:
            x = x + added
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped
