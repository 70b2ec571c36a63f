"""Masked language modelling: 15 of every hundred tokens are chosen, and of those

    80 %  become the mask token,    10 %  another token, drawn at random,    10 %  stay as they are

    tokens    t h e   c a t           inputs    t ▒ e   c a q           targets  · h · · · · t

so that a model cannot trust any token it reads, and sees more than mask tokens.
Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE, Batch, Batches
from threefold.data.random_by_address import uniform
from threefold.errors import ThreefoldError

MASKED_SHARE, REPLACED_SHARE = 0.8, 0.1  # of the chosen tokens; the rest stay
MASKED = 15  # in the address of random numbers, beside those of the batches


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
    drawn: Tensor | None = None,
) -> MaskedTokens:
    """Choose a `share` of tokens [B, L] and mask them.

    Random tokens are 0 … vocabulary − 1.  Tokens of `special` and padding (`mask` False) are never
    chosen.  drawn [3, B, L]: the random numbers from 0 to 1 to use; None: torch's own.
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
    random = torch.rand(3, *tokens.shape) if drawn is None else drawn
    chance, fate, other = random.to(tokens.device)
    chosen = (chance < share) & allowed
    inputs = tokens.masked_fill(chosen & (fate < MASKED_SHARE), mask_token)
    replaced = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + REPLACED_SHARE)
    inputs = torch.where(replaced, (other * vocabulary).long(), inputs)
    return MaskedTokens(inputs, tokens.masked_fill(~chosen, IGNORE))


class MaskedBatches:
    """Batches with masked tokens, drawn from (seed, step)."""

    def __init__(
        self, batches: Batches, mask_token: int, vocabulary: int, *, seed: int = 0
    ) -> None:
        self.batches, self.mask_token, self.vocabulary = batches, mask_token, vocabulary
        self.seed = seed

    def __call__(self, step: int) -> Batch:
        batch = self.batches(step)
        drawn = uniform((self.seed, step, MASKED), 3, *batch.inputs.shape)
        return mask_batch(batch, self.mask_token, self.vocabulary, drawn)


def mask_batch(batch: Batch, mask_token: int, vocabulary: int, drawn: NDArray[Any]) -> Batch:
    """The inputs of a batch with masked tokens as the inputs of another one; drawn [3, B, L]."""
    masked = mask_tokens(
        batch.inputs, mask_token, vocabulary, mask=batch.mask, drawn=torch.from_numpy(drawn)
    )
    return batch._replace(inputs=masked.inputs, targets=masked.targets)
