"""x_t = norm(√width · E[token_t] + p_t): what a stack is given; every part but E may be left out.

Of vectors, a linear map W v_t + b stands in the place of E.  Positions that are added to the stream
once stand here; those that attention adds, turns by, or scores with belong to the mixer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from threefold.blocks.block import norm_of
from threefold.errors import ThreefoldError, nearest
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.layers.positions import Positions, make_positions
from threefold.models.spec import Spec

KINDS = ("none", "learned", "sinusoidal", "binary")


class Placed(nn.Module, ABC):
    """What follows a table or a map: the positions, the norm (as in the blocks) and the dropout.

    All of it is said by the options of the spec that are in `models/table.py: EMBEDDING`.
    """

    def prepare(self, spec: Spec, max_length: int | None = None) -> None:
        """Make the parts; max_length of learned positions, if the spec leaves it to the model."""
        kind, dropout = spec.option("positions"), spec.option("embedding_dropout")
        if kind not in KINDS:
            raise ThreefoldError(
                f"positions of the embedding: {kind!r}; {nearest(kind, KINDS)} (rotary, alibi and "
                "relative positions are keywords of attention)"
            )
        check_dropout("embedding", embedding_dropout=dropout)
        longest = spec.option("max_length") or (max_length if kind == "learned" else None)
        self.positions = make_positions(kind, spec.width, 1, max_length=longest)
        self.factor = math.sqrt(spec.width) if spec.option("scale") else 1.0
        self.norm = norm_of(spec.block_entry, spec.width) if spec.option("embedding_norm") else None
        self.dropout = nn.Dropout(dropout)

    @property
    def counts(self) -> bool:
        """Whether it has to know where each row stands."""
        return type(self.positions) is not Positions

    @abstractmethod
    def look_up(self, inputs: Tensor) -> Tensor:
        """A vector [B, L, width] for each element, as it is."""

    def forward(
        self,
        inputs: Tensor,
        start: Tensor | None = None,
        lengths: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """Elements as a stack is given them; see `place`."""
        return self.place(self.look_up(inputs), start, lengths, added)

    def place(
        self,
        x: Tensor,
        start: Tensor | None = None,
        lengths: Tensor | None = None,
        added: Tensor | None = None,
    ) -> Tensor:
        """x [B, L, width] with all that follows; rows stand at `start` [B] and hold `lengths`.

        start None: 0.  added: what else belongs to each element, such as its segment.
        """
        if self.factor != 1:
            x = x * self.factor
        if self.counts:
            zero = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            x = self.positions.add(x, zero if start is None else start, lengths)
        if added is not None:
            x = x + added
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped


class Embedding(Placed, nn.Embedding):
    """A table of vectors, one for each token."""

    def __init__(self, spec: Spec, vocabulary: int | None = None) -> None:
        super().__init__(vocabulary or spec.vocabulary, spec.width)
        self.prepare(spec)

    def look_up(self, tokens: Tensor) -> Tensor:
        """tokens [B, L] to [B, L, width]."""
        return nn.Embedding.forward(self, tokens)


class Projection(Placed, Linear):
    """A linear map of vectors."""

    def __init__(self, spec: Spec, size: int, max_length: int | None = None) -> None:
        super().__init__(size, spec.width)
        self.prepare(spec, max_length)

    def look_up(self, vectors: Tensor) -> Tensor:
        """vectors [B, L, size] to [B, L, width]."""
        return Linear.forward(self, vectors)
