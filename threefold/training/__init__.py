"""One loop for every model: optimisers, schedules, checkpoints, evaluation, progress."""

from __future__ import annotations

from threefold.training.evaluation import Scores, evaluate
from threefold.training.joint import Joint, joint_loss
from threefold.training.loop import Result, train
from threefold.training.optimiser import adamw, make_optimiser, parameter_groups
from threefold.training.schedule import constant, cosine, inverse_square_root, linear, stable
from threefold.training.scheduled import inverse_sigmoid, scheduled_sampling
from threefold.training.settings import Settings
from threefold.training.truncated import carry_on, cut, truncated

__all__ = [
    "Joint",
    "Result",
    "Scores",
    "Settings",
    "adamw",
    "carry_on",
    "constant",
    "cosine",
    "cut",
    "evaluate",
    "inverse_sigmoid",
    "inverse_square_root",
    "joint_loss",
    "linear",
    "make_optimiser",
    "parameter_groups",
    "scheduled_sampling",
    "stable",
    "train",
    "truncated",
]
