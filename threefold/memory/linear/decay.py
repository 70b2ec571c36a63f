"""Decay inside a chunk: e^{g_{s+1} + … + g_t} for every pair s < t; no overflow, no cancellation.

The chunk is halved again and again.  Across one cut, element t on the right and s on the left
meet as (q_t e^{prefix_t}) · (k_s e^{suffix_s}): the prefix runs from the cut to t, the suffix from
s to the cut.  Both are sums of numbers ≤ 0, so both factors are ≤ 1 and as exact as the step, for
log-decays of −0.001, −50 and −∞ side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Cut(NamedTuple):
    """Log-decays around the cuts between blocks of m elements, each [..., C/2m, m, K or 1]."""

    inclusive: Tensor  # right of the cut: from the cut to t, t's own decay included
    exclusive: Tensor  # the same without t's own
    suffix: Tensor  # left of the cut: from after s to the cut


class ChunkDecay:
    """The decays of a chunk of C elements (a power of two), from log_decay [..., C, K or 1]."""

    def __init__(self, log_decay: Tensor) -> None:
        self.scalar = log_decay.shape[-1] == 1
        self.cuts: list[Cut] = []
        inclusive = total = log_decay.unsqueeze(-2)
        exclusive = suffix = torch.zeros_like(inclusive)
        while total.shape[-3] > 1:
            (inc_l, inc_r), (exc_l, exc_r) = halves(inclusive), halves(exclusive)
            (suf_l, suf_r), (tot_l, tot_r) = halves(suffix), halves(total)
            self.cuts.append(Cut(inc_r, exc_r, suf_l))
            inclusive = torch.cat([inc_l, inc_r + tot_l], -2)
            exclusive = torch.cat([exc_l, exc_r + tot_l], -2)
            suffix = torch.cat([suf_l + tot_r, suf_r], -2)
            total = tot_l + tot_r
        self.from_start = inclusive.squeeze(-3).exp()  # [..., C, K or 1]: decay of S₀ at t
        self.before = exclusive.squeeze(-3).exp()  # decay of S₀ just before t
        self.to_end = suffix.squeeze(-3).exp()  # decay, at the chunk's end, of what t wrote
        self.whole = total.squeeze(-3).squeeze(-2).exp()  # [..., K or 1]

    def factors(self, cut: Cut, exclusive: bool) -> tuple[Tensor, Tensor]:
        """The decay factors of the right side and of the left side of a cut."""
        return (cut.exclusive if exclusive else cut.inclusive).exp(), cut.suffix.exp()

    @cached_property
    def matrix(self) -> Tensor:
        """Scalar decay only: e^{g_{s+1} + … + g_t} below the diagonal, 1 on it, 0 above."""
        return self._scalar_matrix(exclusive=False)

    @cached_property
    def matrix_before(self) -> Tensor:
        """The same without t's own decay, for reads of the memory before t."""
        return self._scalar_matrix(exclusive=True)

    def _scalar_matrix(self, exclusive: bool) -> Tensor:
        ones = torch.ones_like(self.from_start)
        return assemble(ones.squeeze(-1), crossing_scores(ones, ones, self, exclusive))


def scores(
    query: Tensor,
    key: Tensor,
    decay: ChunkDecay | None,
    *,
    diagonal: Tensor | None = None,
    exclusive: bool = False,
) -> Tensor:
    """[..., C, C]: q_t · e^{G_t − G_s} k_s for s < t, `diagonal` on the diagonal, 0 above.

    `exclusive` leaves out t's own decay.  Without `diagonal` the diagonal is 0.
    """
    if decay is not None and not decay.scalar:
        on_diagonal = query.new_zeros(query.shape[:-1]) if diagonal is None else diagonal
        return assemble(on_diagonal, crossing_scores(query, key, decay, exclusive))
    product = query @ key.mT
    if decay is not None:
        product = product * (decay.matrix_before if exclusive else decay.matrix)
    product = product.tril(-1)
    return product if diagonal is None else product + torch.diag_embed(diagonal)


def crossing_scores(
    query: Tensor, key: Tensor, decay: ChunkDecay | None, exclusive: bool = False
) -> Iterator[Tensor]:
    """Scores across the cuts, smallest first: [..., C/2m, m, m] for m = 1, 2, 4, …"""
    right, left = query.unsqueeze(-2), key.unsqueeze(-2)
    level = 0
    while right.shape[-3] > 1:
        after, before = halves(right)[1], halves(left)[0]
        if decay is not None:
            to_t, from_s = decay.factors(decay.cuts[level], exclusive)
            after, before = after * to_t, before * from_s
        yield after @ before.mT
        right, left, level = merge(right), merge(left), level + 1


def assemble(diagonal: Tensor, crossing: Iterator[Tensor]) -> Tensor:
    """The lower-triangular [..., C, C] with the given diagonal [..., C] and blocks."""
    matrix = diagonal[..., None, None]
    for block in crossing:
        upper, lower = halves(matrix)
        upper = F.pad(upper, (0, block.shape[-1]))
        matrix = torch.cat([upper, torch.cat([block, lower], -1)], -2)
    return matrix.squeeze(-3)


def accumulate(
    diagonal: Tensor, crossing: Iterator[Tensor], value: Tensor, decay: ChunkDecay
) -> Tensor:
    """Σ_s scores[t, s] e^{H_t − H_s} ⊙ v_s with a decay H on the value side: [..., C, V]."""
    out = (diagonal.unsqueeze(-1) * value).unsqueeze(-2)
    left = value.unsqueeze(-2)
    for cut, block in zip(decay.cuts, crossing, strict=True):
        to_t, from_s = decay.factors(cut, exclusive=False)
        before, after = halves(out)
        after = after + to_t * (block @ (from_s * halves(left)[0]))
        out = torch.cat([before, after], -2)
        left = merge(left)
    return out.squeeze(-3)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Left and right neighbours among blocks [..., n, m, size]."""
    return x[..., 0::2, :, :], x[..., 1::2, :, :]


def merge(x: Tensor) -> Tensor:
    """Neighbouring blocks as one: [..., n, m, size] to [..., n/2, 2m, size]."""
    return torch.unflatten(x, -3, (x.shape[-3] // 2, 2)).flatten(-3, -2)
