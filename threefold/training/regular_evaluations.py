"""Which runs evaluate ten times and keep their best weights without being told when."""

from __future__ import annotations

from torch import nn

from threefold.models.forecaster import Forecaster
from threefold.training.settings import TrainingSettings

EVALUATIONS = 10  # of such a run


def starts_fitted(model: nn.Module) -> bool:
    """Whether a model was fitted before training: a forecaster with a linear start."""
    return isinstance(model, Forecaster) and model.start is not None


def evaluates_regularly(model: nn.Module, settings: TrainingSettings) -> bool:
    """Whether the best of several evaluations is kept, without being told when to evaluate."""
    return settings.keep_best or starts_fitted(model)
