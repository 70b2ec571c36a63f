"""What forecasts are in the user's words: names of columns, original units, deviations."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from threefold.models.forecaster import Forecaster

SMALLEST_DEVIATION = 1e-6  # for streams in which every surprise is the same


def forecast_deviation(model: Forecaster, forecast: Tensor) -> Tensor:
    """σ of forecasts […, outputs]."""
    if model.quantiles is None:
        return forecast[..., 1]
    low, high = (NormalDist().inv_cdf(model.quantiles[i]) for i in (0, -1))
    width = forecast[..., -1] - forecast[..., 0]
    return width.clamp(min=SMALLEST_DEVIATION) / (high - low)


def target_names(model: Forecaster) -> tuple[str, ...]:
    """The names of the forecast columns; x1, x2, … if they are not known."""
    targets = () if model.preprocessing is None else model.preprocessing.roles.targets
    return targets or tuple(f"x{channel}" for channel in range(1, model.channels + 1))


def original_units(model: Forecaster, values: Tensor, series: str) -> Tensor:
    """Values […, channels] in the units of the table that the model was trained on."""
    if model.preprocessing is None:
        return values
    steps = model.preprocessing.of_series(series).outputs
    return torch.from_numpy(steps.invert(values.double().cpu().numpy()))
