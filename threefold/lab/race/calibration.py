"""Whether models know how sure they may be.

classes, tags, tokens   answers by confidence, and how many of each bin are right
forecasts               the share of true values inside the band, by step ahead

Guo et al. 2017, "On Calibration of Modern Neural Networks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from threefold.data.loaders import IGNORE
from threefold.models.model import Model
from threefold.tasks.pairs import Pairs
from threefold.training.evaluation import evaluate
from threefold.training.evaluations.classification import ConfidenceBins
from threefold.training.evaluations.forecast_measure import ForecastMeasure
from threefold.training.evaluations.measures import Array
from threefold.training.objectives import BatchLoss
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData


def calibration(data: TrainingData, model: Model, numbers: Array) -> dict[str, Any] | None:
    """The calibration of a model on the test examples with these numbers; None: it has none."""
    objective = data.objective(TrainingSettings(steps=1))
    rows = batches_of(data, numbers)
    if model.kind == "forecaster":
        measure = ForecastMeasure(data, "test", numbers)
        with measure.watching(model):
            evaluate(model, rows, objective=objective, on_batch=measure)
        return coverage(measure.values())
    if isinstance(rows[0], Pairs) or rows[0].targets.is_floating_point():
        return None
    bins = ConfidenceBins()

    def add(batch: Any, batch_loss: BatchLoss, _: Any) -> None:
        count_answers(bins, batch_loss.outputs, batch.targets)

    evaluate(model, rows, objective=objective, on_batch=add)
    return confidence(bins)


def batches_of(data: TrainingData, numbers: Array) -> list[Any]:
    """The test examples with these numbers, in batches."""
    size = data.data.batch_size
    return [
        data.task.rows("test", numbers[first : first + size])
        for first in range(0, len(numbers), size)
    ]


def count_answers(bins: ConfidenceBins, logits: Tensor, targets: Tensor) -> None:
    """Add the most likely answers; targets that do not count are left out."""
    counted = targets != IGNORE
    probabilities = logits[counted].float().softmax(-1)
    highest, answers = probabilities.max(-1)
    right = answers == targets[counted]
    bins.add(highest.double().cpu().numpy(), right.cpu().numpy())


def confidence(bins: ConfidenceBins) -> dict[str, Any]:
    """The JSON values of bins of confidence."""
    return {"form": "confidence", "error": bins.calibration_error, "bins": bins.values()}


def coverage(values: dict[str, Any]) -> dict[str, Any] | None:
    """Nominal and actual coverage of the widest band, from the values of an evaluation."""
    low, high = values["picture_levels"]
    targets = values["by_target"].values()
    if high <= low or not all(target.get("coverage") is not None for target in targets):
        return None
    steps = [[step["coverage"] for step in target["by_horizon"]] for target in targets]
    return {
        "form": "coverage",
        "nominal": round(high - low, 9),
        "actual": _mean([target["coverage"] for target in targets]),
        "by_step": [_mean(at) for at in zip(*steps, strict=True)],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over targets; None if there is no value."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(known)) if known else None
