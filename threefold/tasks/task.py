"""A task: examples, how an answer is scored, what chance gives, and what counts as solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from threefold.data.stream import IGNORE, Batches, Examples

# (logits [..., classes], targets [...]) → one score for each target that counts; the result is
# their mean.
Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """1 where the likeliest class is the target, 0 elsewhere."""
    counts = targets != IGNORE
    return (logits[counts].argmax(-1) == targets[counts]).float()


@dataclass(frozen=True)
class Task:
    """Examples of one split, and how answers to them are judged."""

    name: str
    inputs: Tensor  # [N, L] int64
    targets: Tensor  # [N, L] int64; IGNORE does not count
    vocabulary: int
    chance: float  # what the metric is without the skill in question
    solved: float  # the metric from which on the task counts as solved
    metric: Metric = accuracy

    def batches(self, batch: int, seed: int = 0) -> Batches:
        """Shuffled batches for training, addressed by step."""
        return Examples(self.inputs, self.targets, batch, seed)
