"""What to learn and what counts as solved, one file a task."""

from __future__ import annotations

from threefold.tasks.adding import Adding, adding
from threefold.tasks.chords import Chords, chords
from threefold.tasks.delay import Delay, delay
from threefold.tasks.number_to_words import number_to_words
from threefold.tasks.pairs import Pairs, pairs
from threefold.tasks.recall import recall
from threefold.tasks.reversal import reversal
from threefold.tasks.task import Task, accuracy

__all__ = [
    "Adding",
    "Chords",
    "Delay",
    "Pairs",
    "Task",
    "accuracy",
    "adding",
    "chords",
    "delay",
    "number_to_words",
    "pairs",
    "recall",
    "reversal",
]
