"""One loop for every model: optimiser groups, schedules, evaluation, progress."""

from __future__ import annotations

from threefold.training.loop import Result, Scores, Settings, evaluate, train
from threefold.training.optimiser import adamw, parameter_groups
from threefold.training.schedule import cosine

__all__ = [
    "Result",
    "Scores",
    "Settings",
    "adamw",
    "cosine",
    "evaluate",
    "parameter_groups",
    "train",
]
