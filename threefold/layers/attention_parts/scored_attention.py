"""c_i = Σ_j α_ij v_j,  α_i = softmax_j score(s_i, h_j): attention with any score, weights returned.

A mask is True for what is visible: [B, M] for padding or [B, L, M]; `causal` hides later elements.
A query that sees nothing gets weights and a context of 0.
Bahdanau et al. 2014; Luong et al. 2015; Vinyals et al. 2015, "Pointer Networks".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.scores import score as make_score


class ScoredAttention(nn.Module):
    """Attention to a source with one of the six scores."""

    def __init__(
        self,
        query_size: int,
        source_size: int,
        *,
        score: str = "additive",
        max_length: int = 0,
    ) -> None:
        super().__init__()
        self.score = make_score(score, query_size, source_size, max_length=max_length)

    def forward(
        self,
        query: Tensor,
        source: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        keys: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Contexts [B, L, source_size] and weights [B, L, M] of queries [B, L, query_size].

        mask: bool [B, M] or [B, L, M], True for visible elements; elements hidden from all queries
        may have any value, NaN included.  keys [B, M, key_size]: `score.prepare(source)` from
        before, of a source that is finite everywhere.
        """
        visible = visibility(query, source, mask, causal)
        if keys is None:
            source = hide(source, visible)
            keys = self.score.prepare(source)
        weights = softmax(self.score(query, keys), visible)
        return weights @ source, weights


class Pointer(nn.Module):
    """Pointer network: log-probabilities [B, L, M] of the positions of the source."""

    def __init__(
        self, query_size: int, source_size: int, *, score: str = "additive", max_length: int = 0
    ) -> None:
        super().__init__()
        self.score = make_score(score, query_size, source_size, max_length=max_length)

    def forward(self, query: Tensor, source: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Hidden positions have −∞; a query that sees nothing has −∞ everywhere."""
        visible = visibility(query, source, mask, False)
        scores: Tensor = self.score(query, self.score.prepare(hide(source, visible)))
        if visible is None:
            return scores.log_softmax(-1)
        lowest = torch.finfo(scores.dtype).min
        logarithms = scores.masked_fill(~visible, lowest).log_softmax(-1)
        return logarithms.masked_fill(~visible, -torch.inf)


def self_attention(
    x: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """e′_i = Σ_j softmax_j(e_jᵀ e_i) e_j: averages of x [B, L, D] by similarity.

    Without projections and parameters.  Returns (e′ [B, L, D], weights [B, L, L]).
    """
    visible = visibility(x, x, mask, causal)
    clean = hide(x, visible)
    weights = softmax(clean @ clean.mT, visible)
    return weights @ clean, weights


def softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Weights over the last axis, 0 at hidden elements, even if all are hidden."""
    if visible is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~visible, 0)


def hide(source: Tensor, visible: Tensor | None) -> Tensor:
    """Write zeros where no query of the row sees the source: 0 · NaN would not be 0."""
    if visible is None:
        return source
    return source.masked_fill(~visible.any(1).unsqueeze(-1), 0)


def visibility(query: Tensor, source: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """What each query sees, bool [B, 1 or L, M]; None: everything."""
    if query.dim() != 3 or source.dim() != 3 or len(query) != len(source):
        raise ThreefoldError(
            f"attention: queries {tuple(query.shape)}, source {tuple(source.shape)}; expected "
            "[batch, length, size] for both, with the same batch size"
        )
    (rows, length), places = query.shape[:2], source.shape[1]
    if mask is not None:
        if mask.dtype != torch.bool or tuple(mask.shape) not in (
            (rows, places),
            (rows, length, places),
        ):
            raise ThreefoldError(
                f"attention: mask is {tuple(mask.shape)} {mask.dtype}, expected bool "
                f"{(rows, places)} or {(rows, length, places)}, True for visible elements"
            )
        mask = mask.unsqueeze(1) if mask.dim() == 2 else mask
    if not causal:
        return mask
    if length != places:
        raise ThreefoldError(
            f"attention: causal, with {length} queries and {places} source elements; expected as "
            "many of both"
        )
    earlier = torch.ones(length, places, dtype=torch.bool, device=query.device).tril()
    return earlier.expand(rows, -1, -1) if mask is None else mask & earlier
