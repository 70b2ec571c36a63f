"""Train any model: loop, optimisers, schedules, checkpoints, evaluation, progress reports."""

from __future__ import annotations

from threefold.training.evaluation import Scores, evaluate
from threefold.training.learning_rates import constant, cosine, inverse_square_root, linear, stable
from threefold.training.loop import train
from threefold.training.optimizer import adamw, make_optimizer, parameter_groups
from threefold.training.result import Result
from threefold.training.scheduled_sampling import scheduled_sampling
from threefold.training.settings import TrainingSettings
from threefold.training.truncated_bptt import carry_state, cut_segments, truncated_bptt

__all__ = [
    "Result",
    "Scores",
    "TrainingSettings",
    "adamw",
    "carry_state",
    "constant",
    "cosine",
    "cut_segments",
    "evaluate",
    "inverse_square_root",
    "linear",
    "make_optimizer",
    "parameter_groups",
    "scheduled_sampling",
    "stable",
    "train",
    "truncated_bptt",
]
