"""From logits to a token: penalty, temperature, top-k, top-p, then one draw for each row.

Each row has its own random numbers, one for each token, so what shares its batch changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 takes the likeliest."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not _number(self.temperature) or self.temperature < 0:
            _refuse("temperature", self.temperature, "0 (the likeliest token) or more")
        if self.top_k is not None and (not whole(self.top_k) or self.top_k < 1):
            _refuse("top_k", self.top_k, "a whole number from 1, or None")
        if self.top_p is not None and (not _number(self.top_p) or not 0 < self.top_p <= 1):
            _refuse("top_p", self.top_p, "above 0 and at most 1, or None")
        if not _number(self.repetition_penalty) or self.repetition_penalty <= 0:
            _refuse("repetition_penalty", self.repetition_penalty, "above 0 (1 leaves it out)")

    def choose(self, logits: Tensor, seen: Tensor, random: Sequence[Generator]) -> Tensor:
        """One token [B] from logits [B, V]; `seen` [B, V] marks the tokens to penalise."""
        logits = logits.double()
        if bool(logits.isnan().any()):
            raise ThreefoldError("the logits hold NaN; were the weights trained to the end?")
        if self.repetition_penalty != 1:
            logits = penalise(logits, seen, self.repetition_penalty)
        if self.temperature == 0:
            return logits.argmax(-1)
        # The largest becomes 0 first, so that no temperature overflows.
        logits = (logits - logits.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            logits = keep_top_k(logits, self.top_k)
        if self.top_p is not None:
            logits = keep_top_p(logits, self.top_p)
        return draw(logits.softmax(-1), random)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Tokens seen before made less likely: ÷ penalty if positive, × if not (Keskar et al. 2019)."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """All but the k largest become −∞."""
    if k >= logits.shape[-1]:
        return logits
    values, places = logits.topk(k, -1)
    return torch.full_like(logits, -math.inf).scatter(-1, places, values)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """All but the fewest likeliest tokens that hold a mass of p become −∞."""
    values, places = logits.sort(dim=-1, descending=True, stable=True)
    mass = values.softmax(-1)
    before = mass.cumsum(-1) - mass
    return logits.scatter(-1, places, values.masked_fill(before >= p, -math.inf))


def draw(probabilities: Tensor, random: Sequence[Generator]) -> Tensor:
    """One index [B] by each row's next random number."""
    numbers = [torch.rand((), dtype=torch.float64, generator=generator) for generator in random]
    level = torch.stack(numbers).to(probabilities.device).unsqueeze(-1)
    total = probabilities.cumsum(-1)
    # Below the total, so that the first index whose sum exceeds the level has mass.
    index = torch.searchsorted(total, level * total[:, -1:], right=True).squeeze(-1)
    last = probabilities.shape[-1] - 1 - probabilities.flip(-1).gt(0).int().argmax(-1)
    return torch.minimum(index, last)


def row_generator(seed: int, row: int) -> Generator:
    """The random numbers of one row, the same in every batch."""
    digest = hashlib.sha256(f"{seed},{row}".encode()).digest()
    return Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def whole(value: Any) -> bool:
    """A whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _refuse(name: str, value: Any, expected: str) -> None:
    raise ThreefoldError(f"generate: {name} is {value!r}, expected {expected}")
