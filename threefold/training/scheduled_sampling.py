"""Scheduled sampling: each next input is the model's own draw with probability ε, else the truth.

A model that only ever saw the truth does not know what to do after a mistake; ε rises from 0.
Teacher forcing is ε = 0, and then the whole target is read at once by `model(tokens, state)`.
Bengio et al. 2015, "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks".
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.model import Predictor


def scheduled_sampling(
    model: Predictor,
    tokens: Tensor,
    state: State | None,
    share: float,
    *,
    mask: Tensor | None = None,
    generator: Generator | None = None,
) -> tuple[Tensor, State]:
    """Logits [B, L, vocabulary] and the state, as `model(tokens, state)`, but from mixed inputs.

    share: ε, for each row and each token after the first.  Draws are from the model's own
    probabilities, and no gradient goes through them.  mask: rows that end earlier (padding behind).
    """
    if not 0 <= share <= 1:
        raise ThreefoldError(f"scheduled_sampling: share is {share}, expected from 0 to 1")
    if share == 0:
        return model(tokens, state, mask=mask)  # type: ignore[no-any-return]
    if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ThreefoldError(
            "scheduled_sampling: the mask has padding before a token; move rows to start at 0"
        )
    inputs, answers = tokens[:, 0], []
    for t in range(tokens.shape[1]):
        real = None if mask is None else mask[:, t : t + 1]
        logits, state = model(inputs.unsqueeze(1), state, form="step", mask=real)
        answers.append(logits)
        if t + 1 < tokens.shape[1]:
            odds = logits.detach().squeeze(1).float().softmax(-1)
            drawn = torch.multinomial(odds, 1, generator=generator).squeeze(1)
            own = torch.rand(len(drawn), generator=generator, device=drawn.device) < share
            inputs = drawn.where(own, tokens[:, t + 1])
    assert state is not None  # there is at least one token
    return torch.cat(answers, 1), state


def inverse_sigmoid(step: int, slowness: float) -> float:
    """ε after `step` steps: 1 − k / (k + exp(step / k)), near 0 at first and rising to 1."""
    if slowness < 1:
        raise ThreefoldError(f"inverse_sigmoid: slowness is {slowness}, expected 1 or more")
    # Both sides divided by the exponential, which may overflow.
    return 1 / (1 + slowness * math.exp(-step / slowness))
