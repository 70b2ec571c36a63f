"""Permutation language modelling: an order of the tokens is drawn, and its last part is predicted.

    tokens    t h e   c a t        order    6 1 4 0 3 2 5        K = 3: the last two are targets
    ranks     0 0 1 0 0 2 0        targets  · · e · · a ·        2 is predicted, then 5 given 2

Each target is predicted from all tokens before it in the order, on both sides of it; the others
are given, and read each other.
Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding"
(partial prediction, K = 6; the authors draw spans of up to five tokens, here single ones).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE, Batch, Batches
from threefold.data.random_by_address import permutation, uniform
from threefold.errors import ThreefoldError

ONE_OF = 6  # K: one of so many tokens is predicted
PERMUTED = 19  # in the address of random numbers, beside those of the batches


def draw_ranks(drawn: Tensor, lengths: Tensor | None = None, one_of: int = ONE_OF) -> Tensor:
    """Ranks [B, L] of the last 1/K of each row's order, from 1 on; 0 for all others.

    drawn [B, L]: numbers from 0 to 1 whose order is the factorisation order.  A row of at least two
    tokens has at least one target; padding (after `lengths`) and single tokens are never targets.
    """
    rows, length = drawn.shape
    if one_of < 1 or length < 2:
        raise ThreefoldError(
            f"a window of {length} tokens, one in {one_of} to predict; a factorisation order needs "
            "at least 2 tokens, one to read and one to predict: give a longer text or window"
        )
    real = drawn.new_full((rows,), length, dtype=torch.int64) if lengths is None else lengths
    padding = torch.arange(length, device=drawn.device) >= real.unsqueeze(1)
    # Padding comes first in every order; the second argsort inverts the first.
    order = drawn.masked_fill(padding, -1.0).argsort(dim=1, stable=True)
    count = torch.where(real > 1, (real // one_of).clamp(min=1), 0)
    return (order.argsort(1) - (length - count).unsqueeze(1) + 1).clamp(min=0)


def cover_ranks(lengths: Sequence[int], one_of: int = ONE_OF) -> Tensor:
    """Ranks [one_of, B, L] with which every token is predicted once; L is the longest length.

    One order per length, in `one_of` parts: each is predicted given all others, as in training.
    """
    ranks = torch.zeros(one_of, len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        order = permutation((PERMUTED, length), length)
        for part, chosen in enumerate(np.array_split(order, one_of)):
            ranks[part, row, torch.from_numpy(chosen)] = torch.arange(1, len(chosen) + 1)
    return ranks


def permute_batch(batch: Batch, drawn: NDArray[Any]) -> Batch:
    """A batch whose targets are the last tokens of orders drawn for its inputs; drawn [B, L]."""
    ranks = draw_ranks(torch.from_numpy(drawn), batch.lengths)
    return batch._replace(targets=batch.inputs.masked_fill(ranks == 0, IGNORE), ranks=ranks)


class PermutedBatches:
    """Batches with factorisation orders, drawn from (seed, step)."""

    def __init__(self, batches: Batches, *, seed: int = 0) -> None:
        self.batches, self.seed = batches, seed

    def __call__(self, step: int) -> Batch:
        batch = self.batches(step)
        return permute_batch(batch, uniform((self.seed, step, PERMUTED), *batch.inputs.shape))
