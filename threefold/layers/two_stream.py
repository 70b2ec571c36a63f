"""Two streams:  h_i reads x_j for z(j) ≤ z(i),  g_i reads h_j for z(j) < z(i), with

    a_ij = softmax_j(((q_i + u)ᵀ k_j + (q_i + w)ᵀ W_r r_{i−j} + (q_i + b)ᵀ s_ij)/√K)

z is a factorisation order, s_ij one of two vectors: i and j are in the same segment, or not.
The content stream h knows its own token; the query stream g knows only where it is, so it can
predict it.  Both have the same weights.  Keys and values are of the content stream, and of the
memory before it.
Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.checks import check_dropout
from threefold.layers.heads import split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.positions import sinusoids
from threefold.memory.attention import attend, restrict
from threefold.memory.buffer import slide
from threefold.memory.state import State


class TwoStreamAttention(Mixer):
    """Relative attention of x [B, L + P, width]: L elements of content, then P of the query stream.

    What its elements may read is in the state it is given, beside the memory (`models/xlnet.py`):
    seen bool, distance int64 [B, L + P, S], and differs int64 (1: another segment) if there are
    segments.  S is L, or memory + L with a `window`; rows have `lengths` elements of content.
    """

    forms = ("parallel",)
    no_decay = ("content_bias", "distance_bias", "segment_bias", "segments")

    def __init__(
        self,
        width: int,
        *,
        memory: int = 128,
        heads: int | None = None,
        bias: bool = False,
        segments: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        check_dropout(self.name, dropout=dropout)
        if memory < 1:
            raise ThreefoldError(f"{self.name}: memory is {memory}, expected at least 1 element")
        self.heads = Heads(width, heads=heads, bias=bias)
        shape = self.heads.heads, self.heads.size
        self.distance = Linear(width, shape[0] * shape[1], bias=False)
        self.content_bias = nn.Parameter(torch.zeros(shape))
        self.distance_bias = nn.Parameter(torch.zeros(shape))
        self.segments, self.segment_bias = None, None
        if segments:
            self.segments = nn.Parameter(torch.empty(2, *shape).normal_(std=0.02))
            self.segment_bias = nn.Parameter(torch.zeros(shape))
        self.memory, self.dropout = memory, dropout
        self.carries(window=(memory, 1, width))  # as one head, for `slide`

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        window, seen = state.get("window"), state["seen"]
        length = seen.shape[-1] - (0 if window is None else self.memory)
        content = x[:, :length]
        new = content.unsqueeze(2)
        past = new.new_zeros(len(x), self.memory, 1, self.width) if window is None else window
        context, after = slide(past, new, state.get("lengths"))
        source = content if window is None else context.squeeze(2).to(x.dtype)
        query, key, value = self.heads(x, source)
        scores = self._by_distance(query, state["distance"], length)
        if self.segments is not None and "differs" in state:
            scores = scores + self._by_segment(query, state["differs"])
        mask = restrict(scores * self.heads.size**-0.5, seen.unsqueeze(1))
        dropout = self.dropout if self.training else 0.0
        # A query that may read nothing (the first of an order, without memory) gets zeros.
        out = attend(query + self.content_bias, key, value, mask=mask, dropout=dropout)
        return self.heads.join(out), {"window": after}

    def _by_distance(self, query: Tensor, distance: Tensor, length: int) -> Tensor:
        """(q_i + w)ᵀ W_r r_{i−j} [B, H, Q, S]; distances are from 1 − length to S − 1."""
        distances = torch.arange(1 - length, distance.shape[-1], device=query.device)
        waves = self.distance(sinusoids(distances, self.width).to(query.dtype))
        scores = torch.einsum(
            "bqhk,dhk->bqhd", query + self.distance_bias, split_heads(waves, self.heads.heads)
        )
        return _gather(scores, distance + length - 1)

    def _by_segment(self, query: Tensor, differs: Tensor) -> Tensor:
        """(q_i + b)ᵀ s_ij [B, H, Q, S]."""
        assert self.segments is not None and self.segment_bias is not None
        scores = torch.einsum("bqhk,shk->bqhs", query + self.segment_bias, self.segments)
        return _gather(scores, differs)


def _gather(scores: Tensor, index: Tensor) -> Tensor:
    """Scores [B, Q, H, N] by index [B, Q, S] as scores by key [B, H, Q, S]."""
    heads = scores.shape[2]
    return scores.transpose(1, 2).gather(-1, index.unsqueeze(1).expand(-1, heads, -1, -1))
