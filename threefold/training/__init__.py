"""One loop for every model: optimiser groups, schedules, evaluation, progress."""

from __future__ import annotations

from threefold.training.joint import Joint, joint_loss
from threefold.training.loop import Result, Scores, Settings, evaluate, train
from threefold.training.optimiser import adamw, parameter_groups
from threefold.training.schedule import cosine, inverse_square_root
from threefold.training.scheduled import inverse_sigmoid, scheduled_sampling
from threefold.training.truncated import carry_on, cut, truncated

__all__ = [
    "Joint",
    "Result",
    "Scores",
    "Settings",
    "adamw",
    "carry_on",
    "cosine",
    "cut",
    "evaluate",
    "inverse_sigmoid",
    "inverse_square_root",
    "joint_loss",
    "parameter_groups",
    "scheduled_sampling",
    "train",
    "truncated",
]
