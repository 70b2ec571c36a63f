"""What a training run leaves: losses, learning rates, evaluations, and why it stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from threefold.training.evaluation import Scores

STOP_REASONS = {
    "steps": "all steps done",
    "time": "time limit reached",
    "target": "target score reached",
    "patience": "no improvement",
    "interrupted": "interrupted",
}


@dataclass
class Result:
    """Losses, evaluations and cost of a run."""

    losses: list[float] = field(default_factory=list)  # one per step
    learning_rates: list[float] = field(default_factory=list)  # one per step
    validation: list[tuple[int, Scores]] = field(default_factory=list)  # (steps done, scores)
    start: Scores | None = None  # before the first step, of models that start from a fit
    kept_step: int | None = None  # whose weights the model has; None: the last ones
    tokens: int = 0
    seconds: float = 0.0  # of training steps
    other_seconds: float = 0.0  # of evaluations and checkpoints
    stopped: str = ""  # a key of STOP_REASONS; empty while the run is under way

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def history(self) -> list[dict[str, Any]]:
        """A dictionary for each step: what log.jsonl has of losses, rates and evaluations."""
        pairs = zip(self.losses, self.learning_rates, strict=True)
        entries: list[dict[str, Any]] = [
            {"step": step, "loss": loss, "learning_rate": rate}
            for step, (loss, rate) in enumerate(pairs, 1)
        ]
        for step, scores in self.validation:
            entries[step - 1] |= {"valid_loss": scores.loss, "valid_metric": scores.metric}
        return entries

    @property
    def tokens_per_second(self) -> float:
        """Training speed; evaluation is not counted."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def kept_scores(self) -> Scores:
        """The evaluation of the weights that the model has."""
        if self.kept_step == 0 and self.start is not None:
            return self.start
        return dict(self.validation).get(self.kept_step or self.steps, self.scores)

    @property
    def scores(self) -> Scores:
        """The newest evaluation; NaN before the first."""
        return self.validation[-1][1] if self.validation else Scores(math.nan, math.nan)
