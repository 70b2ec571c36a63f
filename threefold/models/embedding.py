"""x_t = norm(√width · E[token_t] + p_t): the input of a stack; every part but E is optional.

For vectors, a linear map W v_t + b replaces E.  Positions added once to the input are here; those
that attention uses inside each layer (rotary, alibi, relative) belong to the mixer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from threefold.blocks.block import make_block_norm
from threefold.errors import ThreefoldError, nearest
from threefold.kernels import ops
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Encoded, Linear
from threefold.layers.placement import register_placement
from threefold.layers.positions import make_positions
from threefold.models.spec import Spec

POSITION_KINDS = ("none", "learned", "sinusoidal", "binary")


class InputEmbedding(nn.Module, ABC):
    """What follows the table or the map: positions, norm (as in the blocks) and dropout.

    The options of the spec that control it are `models/table.py: EMBEDDING_OPTIONS`.
    """

    placement: Tensor

    def make_parts(self, spec: Spec, max_length: int | None = None) -> None:
        """Make the parts; max_length is for learned positions where the spec gives none."""
        kind, dropout = spec.option("positions"), spec.option("embedding_dropout")
        if kind not in POSITION_KINDS:
            raise ThreefoldError(
                f"unknown positions {kind!r} of the embedding; {nearest(kind, POSITION_KINDS)} "
                "(rotary, alibi and relative positions are options of attention)"
            )
        check_dropout("embedding", embedding_dropout=dropout)
        longest = spec.option("max_length") or (max_length if kind == "learned" else None)
        made = make_positions(kind, spec.width, 1, max_length=longest)
        self.positions = None if kind == "none" else made
        self.scale = math.sqrt(spec.width) if spec.option("scale_embedding") else 1.0
        self.norm = (
            make_block_norm(spec.block_entry, spec.width) if spec.option("embedding_norm") else None
        )
        self.dropout = nn.Dropout(dropout)
        # As in `Placed`: the dtype of what it gives, whatever the table is stored in.
        register_placement(self)

    @property
    def needs_position(self) -> bool:
        """Whether it needs the position at which each row starts."""
        return self.positions is not None

    @abstractmethod
    def look_up(self, inputs: Tensor) -> Tensor:
        """The vector [B, L, width] of each element, without positions, norm and dropout."""

    def forward(
        self,
        inputs: Tensor,
        start: Tensor | None = None,
        lengths: Tensor | None = None,
        added: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Tensor:
        """Embed the elements, add positions and `added`, then apply norm and dropout.

        start [B]: the position of the first element of each row (None: 0), lengths [B]: its number
        of elements.  added: another embedding of each element, such as that of its segment.
        first [width]: comes before the first element of each row, such as a class token.
        """
        x = self.look_up(inputs).to(self.placement.dtype)
        if first is not None:
            x = torch.cat([first.expand(len(x), 1, -1), x], 1)
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            zero = torch.zeros(len(x), dtype=torch.int64, device=x.device)
            x = self.positions(x, zero if start is None else start, lengths)
        if added is not None:
            x = x + added
        if self.norm is not None:
            x = self.norm(x)
        dropped: Tensor = self.dropout(x)
        return dropped


class Embedding(InputEmbedding, nn.Embedding):
    """A table with one vector per token."""

    def __init__(self, spec: Spec, vocabulary: int | None = None) -> None:
        super().__init__(vocabulary or spec.vocabulary, spec.width)
        self.make_parts(spec)

    def look_up(self, tokens: Tensor) -> Tensor:
        """tokens [B, L] to [B, L, width]."""
        if self.weight.dtype is torch.bfloat16 and not torch.is_grad_enabled():
            return ops.embedding(tokens, self.weight, None, self.placement.dtype)
        return nn.Embedding.forward(self, tokens)

    def scores(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """E h + bias for h [..., width]: the logits of a head that is the table itself."""
        return ops.linear(h, self.weight, bias)


class EncodedEmbedding(Encoded, Embedding):  # type: ignore[override]
    """A table with weights of 8 bits and one scale per token."""

    def look_up(self, tokens: Tensor) -> Tensor:
        """tokens [B, L] to [B, L, width]."""
        return ops.embedding(tokens, self.codes, self.row_scale, self.row_scale.dtype)

    def scores(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """E h + bias, from the codes."""
        return ops.linear_codes(h, self.codes, self.row_scale, bias)


class Projection(InputEmbedding, Linear):
    """A linear map of vectors."""

    def __init__(self, spec: Spec, size: int, max_length: int | None = None) -> None:
        super().__init__(size, spec.width)
        self.make_parts(spec, max_length)

    def look_up(self, vectors: Tensor) -> Tensor:
        """vectors [B, L, size] to [B, L, width]."""
        return Linear.forward(self, vectors)
