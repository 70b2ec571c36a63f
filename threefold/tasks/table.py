"""The table of tasks, declared in plain data and read without torch.

A new task is one file, its line here, and its published figures in `published.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError, nearest
from threefold.tasks.published import PUBLISHED

if TYPE_CHECKING:
    from threefold.tasks.task import Task

SPLITS = ("train", "valid", "test")
KINDS = ("language", "classifier", "tagger", "seq2seq", "forecaster")
LOWER = ("squared_error", "absolute_error", "bits", "phoneme_error")  # metrics where less is better
MADE = "made"  # where data come from that a generator of ours makes


@dataclass(frozen=True)
class Card:
    """What is declared of a task: how long, how much, how it is judged, when it is solved."""

    name: str
    make: str  # `file` or `file.function`: tasks/<file>.py has the function that makes it
    title: str
    domain: str  # memory, algorithm, vision, speech, text, series, …
    kind: str  # the model it needs, one of KINDS
    length: int  # elements of the longest input
    sizes: tuple[int, int, int]  # examples of train, valid, test
    metric: str  # a name of task.py: METRICS
    chance: float  # the metric of the best answer that looks at no input
    solved: float  # the metric from which on the task counts as solved
    vocabulary: int = 0  # tokens an element is one of; 0: numbers
    features: int = 0  # numbers an element has; 0: it is a token
    classes: int = 0  # answers there are; 0: numbers
    where: str = MADE  # or the package or the files that hold the data
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)  # for `make`

    @property
    def lower(self) -> bool:
        """Whether less of the metric is better."""
        return self.metric in LOWER

    @property
    def published(self) -> Mapping[str, float]:
        """Figures of others for exactly this task, by model, in the task's metric."""
        return PUBLISHED.get(self.name, {})

    @property
    def best(self) -> tuple[str, float] | None:
        """The best published figure and whose it is."""
        found = sorted(self.published.items(), key=lambda item: item[1], reverse=not self.lower)
        return found[0] if found else None

    def reached(self, score: float) -> bool:
        """Whether that is a solution."""
        return score <= self.solved if self.lower else score >= self.solved

    def load(self, **options: Any) -> Task[Any]:
        """Make the task; nothing is generated or read before examples are asked for."""
        file, _, function = self.make.partition(".")
        made = getattr(import_module(f"threefold.tasks.{file}"), function or file)
        loaded: Task[Any] = made(**{**self.options, **options})
        return loaded


# fmt: off
_CARDS = (
    Card("adding", "adding", "The adding problem", "memory", "forecaster", 200, (100_000, 1000, 1000), "squared_error", 1/6, 0.01, features=2),
    Card("recall", "recall", "Multi-query associative recall", "memory", "language", 64, (20_000, 1000, 1000), "accuracy", 1/4, 0.95, vocabulary=256, classes=256),
    Card("reversal", "reversal", "Sequences backwards", "algorithm", "seq2seq", 30, (100_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=18, classes=18),
    Card("number_to_words", "number_to_words", "Numbers read aloud in English", "algorithm", "seq2seq", 30, (100_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=12, classes=42),
)
# fmt: on

TASKS: dict[str, Card] = {card.name: card for card in _CARDS}


def card(name: str) -> Card:
    """What is declared of a task."""
    if name not in TASKS:
        raise ThreefoldError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]


def task(name: str, **options: Any) -> Task[Any]:
    """Make a task by name, e.g. `task("recall", pairs=8)`."""
    return card(name).load(**options)
