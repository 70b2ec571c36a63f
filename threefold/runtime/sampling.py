"""From logits to a token: penalty, temperature, top-k, top-p, min-p, then one sample per row.

A token takes one random number in [0, 1) from its caller, so that the tokens of a row depend
neither on the other rows of a batch nor on the history of a random generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the most likely token."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not _is_finite(self.temperature) or self.temperature < 0:
            _refuse(
                "temperature",
                self.temperature,
                "a finite number: 0 (the most likely token) or more",
            )
        if self.top_k is not None and (not is_integer(self.top_k) or self.top_k < 1):
            _refuse("top_k", self.top_k, "an integer of at least 1, or None")
        if self.top_p is not None and (not _is_finite(self.top_p) or not 0 < self.top_p <= 1):
            _refuse("top_p", self.top_p, "above 0 and at most 1, or None")
        if self.min_p is not None and (not _is_finite(self.min_p) or not 0 < self.min_p <= 1):
            _refuse("min_p", self.min_p, "above 0 and at most 1, or None")
        if not _is_finite(self.repetition_penalty) or self.repetition_penalty <= 0:
            _refuse("repetition_penalty", self.repetition_penalty, "above 0 (1 turns it off)")

    def choose(self, logits: Tensor, seen: Tensor | None, numbers: Tensor) -> Tensor:
        """Choose a token [B] from logits [B, V], with a random number in [0, 1) for each row.

        seen [B, V]: the tokens to penalise, needed with a repetition penalty only.
        """
        logits = logits.double()
        if self.repetition_penalty != 1 and seen is not None:
            logits = penalise(logits, seen, self.repetition_penalty)
        check_numbers(logits)
        highest = logits.amax(-1, keepdim=True)
        if self.temperature == 0:
            return logits.argmax(-1)
        # Subtract the maximum first, so that no temperature overflows.
        return sample(self._filter((logits - highest) / self.temperature).softmax(-1), numbers)

    def _filter(self, logits: Tensor) -> Tensor:
        """Set the logits of tokens that must not be sampled to −∞; the largest logit is 0."""
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        if self.min_p is not None:
            logits = logits.masked_fill(logits < math.log(self.min_p), -math.inf)
        return logits


def check_numbers(logits: Tensor) -> None:
    """Raise if there are logits that no token can be chosen from."""
    if bool(logits.isnan().any()):
        raise ThreefoldError("the logits contain NaN; did the training diverge?")


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make seen tokens less likely: ÷ penalty if positive, × if not (Keskar et al. 2019)."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits to −∞."""
    if k >= logits.shape[-1]:
        return logits
    values, tokens = logits.topk(k, -1)
    return torch.full_like(logits, -math.inf).scatter(-1, tokens, values)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest most likely tokens with a total probability of p; set the others to −∞."""
    values, tokens = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = values.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    return logits.scatter(-1, tokens, values.masked_fill(before >= p, -math.inf))


def sample(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """Sample one index [B] per row, by the row's random number in [0, 1)."""
    level = numbers.to(probabilities.device, probabilities.dtype).unsqueeze(-1)
    total = probabilities.cumsum(-1)
    # The level stays below the total, so the first index whose sum exceeds it has probability > 0.
    index = torch.searchsorted(total, level * total[:, -1:], right=True).squeeze(-1)
    last = probabilities.shape[-1] - 1 - probabilities.flip(-1).gt(0).int().argmax(-1)
    return torch.minimum(index, last)


def check_max_tokens(value: Any) -> None:
    """Refuse a limit that is neither None, which means none, nor an integer of at least 1."""
    if value is not None and (not is_integer(value) or value < 1):
        _refuse("max_tokens", value, "an integer of at least 1, or None for no limit")


def is_integer(value: Any) -> bool:
    """Whether a value is an int; True and False do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(name: str, value: Any, expected: str) -> None:
    raise ThreefoldError(f"generate: {name} is {value!r}, expected {expected}")
