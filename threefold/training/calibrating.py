"""Calibrate the bands of a trained forecaster on held-out windows, and count what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.models.calibration import Calibration, interval_coverages
from threefold.models.forecaster import Forecaster
from threefold.runtime.decoding import eval_mode
from threefold.training.devices import move
from threefold.training.training_data import TrainingData

Array = NDArray[Any]
MOST_WINDOWS = 4000
MOST_TESTED = 1000


def calibrate(model: Forecaster, data: TrainingData, most: int | None = None) -> Calibration:
    """The calibration of a model by windows of the validation split."""
    _, quantiles, truth = _forecasts(model, data, "valid", most or MOST_WINDOWS)
    independent = max(1, data.task.size("valid") // model.horizon)
    return Calibration.fit(quantiles, truth, model.levels, independent)


def band_coverages(
    model: Forecaster, data: TrainingData, most: int | None = None
) -> list[dict[str, Any]]:
    """Which share of the values of the test split lies within each band, beside the nominal one."""
    point, quantiles, truth = _forecasts(model, data, "test", min(most or MOST_TESTED, MOST_TESTED))
    if model.calibration is not None:
        quantiles = model.calibration.apply(quantiles, point)
    return interval_coverages(quantiles, model.levels, truth)


def _forecasts(
    model: Forecaster, data: TrainingData, split: str, most: int
) -> tuple[Array, Array, Array]:
    """Point forecasts, quantiles before any calibration, and what came, over a split."""
    parts: list[tuple[Array, ...]] = []
    with torch.no_grad(), eval_mode(model):
        for batch in data.limited(most).pieces(split):
            rows = move(batch, model.device)
            outputs, _ = model.respond(rows.inputs.to(model.dtype), last=True)
            quantiles = model.quantile_forecast(outputs.double())
            numbers = (
                model.point_forecast(outputs.double()),
                quantiles,
                rows.targets.reshape(quantiles.shape[:-1]).double(),
            )
            parts.append(tuple(number.cpu().numpy() for number in numbers))
    point, levels, truth = (np.concatenate(part) for part in zip(*parts, strict=True))
    return point, levels, truth
