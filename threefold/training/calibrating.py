"""Calibrate the bands of a trained forecaster on windows that it was not trained on."""

from __future__ import annotations

import numpy as np
import torch

from threefold.models.calibration import Calibration
from threefold.models.forecaster import Forecaster
from threefold.runtime.decoding import eval_mode
from threefold.training.devices import move
from threefold.training.training_data import TrainingData

MOST_WINDOWS = 4000


def calibrate(model: Forecaster, data: TrainingData, most: int | None = None) -> Calibration:
    """The calibration of a model by windows of the validation split."""
    quantiles, truth = [], []
    with torch.no_grad(), eval_mode(model):
        for batch in data.limited(most or MOST_WINDOWS).pieces("valid"):
            rows = move(batch, model.device)
            outputs, _ = model.respond(rows.inputs.to(model.dtype), last=True)
            quantiles.append(model.quantile_forecast(outputs.double()).cpu().numpy())
            shape = outputs.shape[:3]
            truth.append(rows.targets.reshape(shape).double().cpu().numpy())
    return Calibration.fit(np.concatenate(quantiles), np.concatenate(truth), model.levels)
