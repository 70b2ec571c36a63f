"""Scheduled sampling: each next input is the model's own sample with probability ε, else the truth.

A model that has only seen the truth does not know what to do after a mistake; ε rises from 0.
ε = 0 is teacher forcing, and then `model(tokens, state)` reads the whole target in one pass.
Bengio et al. 2015, "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks".
"""

from __future__ import annotations

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

    `share` is ε, for each row and each token after the first.  Tokens are sampled from the model's
    own probabilities, and no gradient flows through them.  `mask` marks rows that end earlier
    (padding at the end).
    """
    if not 0 <= share <= 1:
        raise ThreefoldError(f"scheduled_sampling: share is {share}, expected from 0 to 1")
    if share == 0:
        return model(tokens, state, mask=mask)  # type: ignore[no-any-return]
    if mask is not None and bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise ThreefoldError(
            "scheduled_sampling: the mask has padding before a token; pad at the end of rows"
        )
    inputs, outputs = tokens[:, 0], []
    for t in range(tokens.shape[1]):
        real = None if mask is None else mask[:, t : t + 1]
        logits, state = model(inputs.unsqueeze(1), state, form="step", mask=real)
        outputs.append(logits)
        if t + 1 < tokens.shape[1]:
            probabilities = logits.detach().squeeze(1).float().softmax(-1)
            sampled = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
            use = torch.rand(len(sampled), generator=generator, device=sampled.device) < share
            inputs = sampled.where(use, tokens[:, t + 1])
    assert state is not None  # there is at least one token
    return torch.cat(outputs, 1), state
