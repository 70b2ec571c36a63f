"""What the output before an element says of it: log p(x_t | x_1 … x_{t−1})."""

from __future__ import annotations

import torch
from torch import Tensor


def shifted(before: Tensor | None, outputs: Tensor) -> Tensor:
    """Return the output *before* each element; NaN before the first element of the stream."""
    first = torch.full_like(outputs[0], torch.nan) if before is None else before
    return torch.cat([first.unsqueeze(0), outputs[:-1]])


def token_likelihood(tokens: Tensor, before: Tensor | None, logits: Tensor) -> list[float]:
    """Return log p(x_t | x_<t) of each token, NaN for the first token of the stream."""
    logits = shifted(before, logits).double()
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    values: list[float] = (chosen - logits.logsumexp(-1)).tolist()
    return values
