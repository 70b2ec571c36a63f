"""Beam search: argmax of log p(y) / lp(|y|) over texts y,  lp(n) = ((5 + n) / 6)^α,  k at a time.

The k most likely prefixes of each row are extended together; a prefix that reaches a stop sequence
within the best k becomes a finished hypothesis.  A row is done once no prefix can still beat its k
best hypotheses, so α may have any value.
Wu et al. 2016, "Google's Neural Machine Translation System" (the penalty; α = 0 leaves it out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.runtime.sampling import check_max_tokens, check_numbers, is_integer
from threefold.runtime.stops import Stops

Step = Callable[[Tensor, State], tuple[Tensor, State]]  # one token per row, as the model's `step`


@dataclass(frozen=True, order=True)
class Hypothesis:
    """A generated text and its score; the best has the highest score."""

    score: float  # log-probability / length penalty
    tokens: tuple[int, ...]
    log_probability: float
    finish_reason: str  # "stop" or "length"


@dataclass(frozen=True)
class BeamSettings:
    """Number of beams, length penalty and maximum length of a beam search."""

    beams: int
    length_penalty: float
    max_tokens: int

    def __post_init__(self) -> None:
        if not is_integer(self.beams) or self.beams < 1:
            raise ThreefoldError(
                f"generate: beams is {self.beams!r}, expected an integer of at least 1, or None"
            )
        if self.max_tokens is None:
            raise ThreefoldError(
                "generate: max_tokens is None, but a beam search needs a limit of at least 1 token"
            )
        check_max_tokens(self.max_tokens)
        valid = isinstance(self.length_penalty, (int, float)) and math.isfinite(self.length_penalty)
        if not valid or isinstance(self.length_penalty, bool):
            raise ThreefoldError(
                f"generate: length_penalty is {self.length_penalty!r}, expected a finite number "
                "(0 turns it off, above 0 favours longer texts)"
            )

    def score(self, log_probability: float, length: int) -> float:
        """The score by which texts of different lengths are compared."""
        penalty: float = ((5 + length) / 6) ** self.length_penalty
        return log_probability / penalty

    def bound(self, log_probability: float, length: int) -> float:
        """The best score that a prefix of `length` tokens can still reach."""
        lengths = (length + 1, self.max_tokens)
        return max(self.score(log_probability, final) for final in lengths)


@dataclass
class BeamRow:
    """The search for one prompt: prefixes that are extended, best first, and finished texts."""

    stops: Stops
    prefixes: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    log_probabilities: list[float] = field(default_factory=lambda: [0.0])
    hypotheses: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    def add(self, hypothesis: Hypothesis, limit: int) -> None:
        """Add a finished text; only the best `limit` are kept."""
        self.hypotheses = sorted([*self.hypotheses, hypothesis], reverse=True)[:limit]


def beam_search(
    step: Step,
    logits: Tensor,
    state: State,
    settings: BeamSettings,
    stops: Sequence[Stops],
) -> list[list[Hypothesis]]:
    """Find the best texts of each row, best first, after a prompt's logits [B, V] and state.

    Only the first V tokens are considered, even if `step` returns logits of more.
    """
    rows = [BeamRow(stop) for stop in stops]
    vocabulary = logits.shape[1]
    # Each prefix may end in this many ways, and as many others as there are beams must remain.
    endings = max(stop.count_endings() for stop in stops)
    totals = torch.zeros(len(rows), 1, dtype=torch.float64, device=logits.device)
    for length in range(1, settings.max_tokens + 1):
        count = settings.beams * (1 + endings)
        parents, tokens = _extend(rows, totals, logits[:, :vocabulary], settings, count, length)
        if all(row.done for row in rows):
            break
        state = states.select(state, parents.flatten())
        totals = _totals(rows, settings.beams, logits.device)
        logits, state = step(tokens.flatten(), state)
    return [row.hypotheses for row in rows]


def _extend(
    rows: list[BeamRow],
    totals: Tensor,
    logits: Tensor,
    settings: BeamSettings,
    candidate_count: int,
    length: int,
) -> tuple[Tensor, Tensor]:
    """Extend each prefix by a token: return the parent of each new prefix and its token, [B, k]."""
    beams, vocabulary = totals.shape[1], logits.shape[1]
    log_probabilities = logits.double().log_softmax(-1).view(len(rows), beams, vocabulary)
    check_numbers(log_probabilities)
    candidates = (totals.unsqueeze(-1) + log_probabilities).flatten(1)
    values, indices = candidates.topk(min(candidate_count, candidates.shape[1]), -1)
    parents = torch.zeros(len(rows), settings.beams, dtype=torch.int64)
    tokens = torch.zeros_like(parents)
    for number, row in enumerate(rows):
        ranked = [
            (total, *divmod(index, vocabulary))
            for total, index in zip(values[number].tolist(), indices[number].tolist(), strict=True)
        ]
        origins = _extend_row(row, ranked, settings, length)
        for beam, parent in enumerate(origins):
            parents[number, beam] = number * beams + parent
            tokens[number, beam] = row.prefixes[beam][-1]
        parents[number, len(origins) :] = number * beams
    return parents.to(logits.device), tokens.to(logits.device)


def _extend_row(
    row: BeamRow,
    candidates: list[tuple[float, int, int]],
    settings: BeamSettings,
    length: int,
) -> list[int]:
    """Keep the best candidates (log-probability, parent, token); return the parent of each."""
    if row.done:
        return []
    extended: list[tuple[tuple[int, ...], float, int]] = []  # prefix, log-probability, parent
    for rank, (total, parent, token) in enumerate(candidates):
        if total == -math.inf or len(extended) == settings.beams:
            break
        text = (*row.prefixes[parent], token)
        if not row.stops.end(text):
            extended.append((text, total, parent))
        elif rank < settings.beams:
            score = settings.score(total, length)
            row.add(Hypothesis(score, text, total, "stop"), settings.beams)
    row.prefixes = [text for text, _, _ in extended]
    row.log_probabilities = [total for _, total, _ in extended]
    row.done = _finish(row, settings, length)
    return [] if row.done else [parent for _, _, parent in extended]


def _finish(row: BeamRow, settings: BeamSettings, length: int) -> bool:
    """Whether a row is done; at the maximum length all its prefixes become hypotheses."""
    if length == settings.max_tokens:
        for text, total in zip(row.prefixes, row.log_probabilities, strict=True):
            score = settings.score(total, length)
            row.add(Hypothesis(score, text, total, "length"), settings.beams)
        return True
    if not row.prefixes:
        return True
    if len(row.hypotheses) < settings.beams:
        return False
    return row.hypotheses[-1].score >= settings.bound(row.log_probabilities[0], length)


def _totals(rows: list[BeamRow], beams: int, device: torch.device) -> Tensor:
    """Log-probabilities [B, k] of the prefixes; −∞ where there are fewer than k."""
    totals = torch.full((len(rows), beams), -math.inf, dtype=torch.float64)
    for number, row in enumerate(rows):
        if not row.done:
            values = torch.tensor(row.log_probabilities, dtype=torch.float64)
            totals[number, : len(values)] = values
    return totals.to(device)
