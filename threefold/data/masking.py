"""Masked language modelling: 15 of every hundred tokens are chosen, and of those

    80 %  become the mask token,    10 %  another token, drawn at random,    10 %  stay as they are

    tokens    t h e   c a t           inputs    t ▒ e   c a q           targets  · h · · · · t

so that a model cannot trust any token it reads, and sees more than mask tokens.
Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from threefold.data.loaders import IGNORE, Batch, Batches
from threefold.data.random_by_address import integers
from threefold.errors import ThreefoldError

MASKED_SHARE, REPLACED_SHARE = 0.8, 0.1  # of the chosen tokens; the rest stay


class MaskedTokens(NamedTuple):
    """Inputs with masked tokens, and the tokens to predict."""

    inputs: Tensor  # [B, L]
    targets: Tensor  # [B, L]; IGNORE for tokens that were not chosen


def mask_tokens(
    tokens: Tensor,
    mask_token: int,
    vocabulary: int,
    *,
    share: float = 0.15,
    special: Sequence[int] = (),
    mask: Tensor | None = None,
    generator: Generator | None = None,
) -> MaskedTokens:
    """Choose a `share` of tokens [B, L] and mask them; the same generator gives the same result.

    Random tokens are 0 … vocabulary − 1.  Tokens of `special` and padding (`mask` False) are never
    chosen.
    """
    if not 0 < share <= 1:
        raise ThreefoldError(f"mask_tokens: share is {share}; expected above 0 and at most 1")
    if vocabulary < 1 or tokens.dtype != torch.int64:
        raise ThreefoldError(
            f"mask_tokens: {tokens.dtype} tokens, a vocabulary of {vocabulary}; expected int64 and "
            "at least 1"
        )
    allowed = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    if special:
        allowed = allowed & ~torch.isin(tokens, torch.tensor(special, device=tokens.device))
    device = tokens.device
    chance, fate = torch.rand(2, *tokens.shape, generator=generator, device=device)
    drawn = torch.randint(vocabulary, tokens.shape, generator=generator, device=device)
    chosen = (chance < share) & allowed
    inputs = tokens.masked_fill(chosen & (fate < MASKED_SHARE), mask_token)
    replaced = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + REPLACED_SHARE)
    return MaskedTokens(torch.where(replaced, drawn, inputs), tokens.masked_fill(~chosen, IGNORE))


class MaskedBatches:
    """Batches with masked tokens, drawn from (seed, step)."""

    def __init__(
        self,
        batches: Batches,
        mask_token: int,
        vocabulary: int,
        *,
        share: float = 0.15,
        special: Sequence[int] = (),
        seed: int = 0,
    ) -> None:
        self.batches, self.mask_token, self.vocabulary = batches, mask_token, vocabulary
        self.share, self.special, self.seed = share, special, seed

    def __call__(self, step: int) -> Batch:
        batch = self.batches(step)
        generator = torch.Generator().manual_seed(int(integers((self.seed, step), 2**53, 1)[0]))
        masked = mask_tokens(
            batch.inputs,
            self.mask_token,
            self.vocabulary,
            share=self.share,
            special=self.special,
            generator=generator,
        )
        return Batch(masked.inputs, masked.targets, batch.starts)
