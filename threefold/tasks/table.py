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
    Card("copying", "copying", "Copying after a silence", "memory", "language", 120, (50_000, 1000, 1000), "accuracy", 1/8, 0.99, vocabulary=10, classes=10),
    Card("selective_copying", "selective_copying", "Copying out of noise", "memory", "language", 4096, (100_000, 1000, 1000), "accuracy", 1/14, 0.95, vocabulary=16, classes=16),
    Card("selective_copying-mini", "selective_copying", "Copying out of noise, short", "memory", "language", 256, (50_000, 1000, 1000), "accuracy", 1/14, 0.95, vocabulary=16, classes=16, options={"length": 256}),
    Card("induction_heads", "induction_heads", "Induction heads", "memory", "language", 256, (50_000, 1000, 1000), "accuracy", 1/16, 0.99, vocabulary=17, classes=17),
    Card("recall", "recall", "Multi-query associative recall", "memory", "language", 64, (20_000, 1000, 1000), "accuracy", 1/4, 0.95, vocabulary=256, classes=256),
    Card("adding", "adding", "The adding problem", "memory", "forecaster", 200, (200_000, 1000, 1000), "squared_error", 1/6, 0.01, features=2),
    Card("delay", "delay", "A noise some elements later", "memory", "tagger", 256, (50_000, 1000, 1000), "squared_error", 1.0, 0.1, features=1),
    Card("parity", "parity", "Parity, tested on longer rows", "algorithm", "classifier", 500, (50_000, 1000, 2000), "accuracy", 1/2, 0.99, vocabulary=2, classes=2),
    Card("modular_arithmetic", "modular_arithmetic", "Sums and products modulo 5, tested on longer rows", "algorithm", "classifier", 500, (50_000, 1000, 2000), "accuracy", 1/5, 0.99, vocabulary=8, classes=5),
    Card("listops", "listops", "Nested operations on lists", "algorithm", "classifier", 1999, (96_000, 2000, 2000), "accuracy", 0.17, 0.6, vocabulary=15, classes=10),
    Card("listops-mini", "listops", "Nested operations on lists, short", "algorithm", "classifier", 127, (50_000, 2000, 2000), "accuracy", 0.123, 0.6, vocabulary=15, classes=10, options={"lengths": (32, 128), "depth": 5, "arguments": 5}),
    Card("pathfinder", "pathfinder", "Dots joined by a dashed curve, 32 × 32", "vision", "classifier", 1024, (160_000, 20_000, 20_000), "accuracy", 1/2, 0.9, features=1, classes=2),
    Card("pathfinder16", "pathfinder", "Dots joined by a dashed curve, 16 × 16", "vision", "classifier", 256, (50_000, 2000, 2000), "accuracy", 1/2, 0.9, features=1, classes=2, options={"size": 16}),
    Card("pathfinder128", "pathfinder", "Dots joined by a dashed curve, 128 × 128 (Path-X)", "vision", "classifier", 16_384, (160_000, 20_000, 20_000), "accuracy", 1/2, 0.9, features=1, classes=2, options={"size": 128}),
    Card("reversal", "reversal", "Sequences backwards", "algorithm", "seq2seq", 32, (200_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=18, classes=18),
    Card("number_to_words", "number_to_words", "Numbers read aloud in English", "algorithm", "seq2seq", 20, (200_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=12, classes=42),
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
