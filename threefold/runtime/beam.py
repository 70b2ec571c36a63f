"""Beam search: argmax of log p(y) / lp(|y|) over texts y,  lp(n) = ((5 + n) / 6)^α,  k at a time.

The k likeliest beginnings of each row go on together; one that stops within the best k is set
aside.  A row is done once no beginning can still beat its k best, so α may be anything.
Wu et al. 2016, "Google's Neural Machine Translation System" (the penalty; α = 0 leaves it out).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Predictor
from threefold.runtime.sampling import whole

Ends = Callable[[tuple[int, ...]], bool]  # whether a text, prompt left out, is at its end


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A text that was found, and how likely it is; the best is the greatest."""

    score: float  # log-probability / length penalty
    tokens: tuple[int, ...]
    log_probability: float
    reason: str  # "stop" or "length"


@dataclass(frozen=True)
class Beams:
    """How many texts to follow, how to weigh lengths, and how far."""

    beams: int
    length_penalty: float
    max_tokens: int

    def __post_init__(self) -> None:
        if not whole(self.beams) or self.beams < 1:
            raise ThreefoldError(
                f"generate: beams is {self.beams!r}, expected a whole number from 1, or None"
            )
        right = isinstance(self.length_penalty, (int, float)) and math.isfinite(self.length_penalty)
        if not right or isinstance(self.length_penalty, bool):
            raise ThreefoldError(
                f"generate: length_penalty is {self.length_penalty!r}, expected a number "
                "(0 leaves it out, above 0 favours longer texts)"
            )

    def score(self, log_probability: float, length: int) -> float:
        """What texts of different lengths are compared by."""
        penalty: float = ((5 + length) / 6) ** self.length_penalty
        return log_probability / penalty

    def bound(self, log_probability: float, length: int) -> float:
        """The best score that a beginning of `length` tokens can still reach."""
        ends = (length + 1, self.max_tokens)
        return max(self.score(log_probability, end) for end in ends)


@dataclass
class BeamRow:
    """The search for one prompt: beginnings that go on, best first, and what was found."""

    texts: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    totals: list[float] = field(default_factory=lambda: [0.0])
    found: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    def keep(self, hypothesis: Hypothesis, most: int) -> None:
        """Set a text aside; only the best are kept."""
        self.found = sorted([*self.found, hypothesis], reverse=True)[:most]


def beam_search(
    model: Predictor, logits: Tensor, state: State, plan: Beams, ends: Ends, stops: int
) -> list[list[Hypothesis]]:
    """The best texts of each row, best first, after a prompt's logits [B, V] and state.

    stops: how many ends a text may have, so that enough candidates are looked at.
    """
    rows = [BeamRow() for _ in logits]
    totals = torch.zeros(len(rows), 1, dtype=torch.float64, device=logits.device)
    for length in range(1, plan.max_tokens + 1):
        parents, chosen = _advance(rows, totals, logits, plan, ends, stops, length)
        if all(row.done for row in rows):
            break
        state = states.select(state, parents.flatten())
        totals = _totals(rows, plan.beams, logits.device)
        logits, state = model.step(chosen.flatten(), state)
    return [row.found for row in rows]


def _advance(
    rows: list[BeamRow],
    totals: Tensor,
    logits: Tensor,
    plan: Beams,
    ends: Ends,
    stops: int,
    length: int,
) -> tuple[Tensor, Tensor]:
    """One more token for each beginning: where each came from, and its token, [B, k] each."""
    before, vocabulary = totals.shape[1], logits.shape[1]
    likely = logits.double().log_softmax(-1).view(len(rows), before, vocabulary)
    if bool(likely.isnan().any()):
        raise ThreefoldError("the logits hold NaN; were the weights trained to the end?")
    every = (totals.unsqueeze(-1) + likely).flatten(1)
    # Each beginning may end in as many ways as there are stops; k others remain.
    count = min(plan.beams * (1 + stops), every.shape[1])
    best, places = every.topk(count, -1)
    parents = torch.zeros(len(rows), plan.beams, dtype=torch.int64)
    chosen = torch.zeros_like(parents)
    listed = zip(rows, best.tolist(), places.tolist(), strict=True)
    for number, (row, values, indices) in enumerate(listed):
        origin = _grow(row, values, indices, vocabulary, plan, ends, length)
        for beam, parent in enumerate(origin):
            parents[number, beam] = number * before + parent
            chosen[number, beam] = row.texts[beam][-1]
        parents[number, len(origin) :] = number * before
    return parents.to(logits.device), chosen.to(logits.device)


def _grow(
    row: BeamRow,
    values: list[float],
    indices: list[int],
    vocabulary: int,
    plan: Beams,
    ends: Ends,
    length: int,
) -> list[int]:
    """Take a row's candidates, best first; returns which beginning each kept one came from."""
    if row.done:
        return []
    texts: list[tuple[int, ...]] = []
    totals: list[float] = []
    origin: list[int] = []
    for rank, (total, index) in enumerate(zip(values, indices, strict=True)):
        if total == -math.inf or len(texts) == plan.beams:
            break
        parent, token = divmod(index, vocabulary)
        text = (*row.texts[parent], token)
        if ends(text):
            if rank < plan.beams:
                row.keep(Hypothesis(plan.score(total, length), text, total, "stop"), plan.beams)
            continue
        texts.append(text)
        totals.append(total)
        origin.append(parent)
    row.texts, row.totals = texts, totals
    if length == plan.max_tokens:
        for text, total in zip(texts, totals, strict=True):
            row.keep(Hypothesis(plan.score(total, length), text, total, "length"), plan.beams)
    full = len(row.found) == plan.beams
    row.done = not texts or length == plan.max_tokens
    if full and not row.done:
        row.done = row.found[-1].score >= plan.bound(totals[0], length)
    return [] if row.done else origin


def _totals(rows: list[BeamRow], beams: int, device: torch.device) -> Tensor:
    """Log-probabilities [B, k] of the beginnings; −∞ where there are fewer than k."""
    totals = torch.full((len(rows), beams), -math.inf, dtype=torch.float64)
    for number, row in enumerate(rows):
        if not row.done:
            totals[number, : len(row.totals)] = torch.tensor(row.totals, dtype=torch.float64)
    return totals.to(device)
