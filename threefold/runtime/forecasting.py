"""x̂_{t+1} = forecast(x_1 … x_t),  then x̂_{t+2} from x̂_{t+1}, and so on: a rollout of a forecaster.

The state is carried, so a step costs the same however long the series was.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.forecaster import Forecaster


def rollout(
    model: Forecaster,
    series: Tensor,
    steps: int,
    state: State | None = None,
    *,
    mask: Tensor | None = None,
    exogenous: Tensor | None = None,
    future: Tensor | None = None,
    sample: bool | Generator = False,
) -> tuple[Tensor, State]:
    """Forecast [B, steps, channels] after `series` [B, L, channels]; also return the state.

    Each value is the mean or median of the forecast one step ahead and is the model's next input;
    with `sample`, True or a generator (gaussian head only), it is sampled.  exogenous belongs to
    the series, future [B, steps, exogenous] to the forecast values.  The state is the one after the
    last value.
    """
    _check(model, len(series), steps, future, sample is not False)
    generator = sample if isinstance(sample, Generator) else None
    values: list[Tensor] = []
    with torch.no_grad():
        forecast, state = model(series, state, exogenous=exogenous, mask=mask)
        last = _last(forecast[:, :, 0], mask)
        for step in range(steps):
            value = _sample(last, generator) if sample is not False else model.point_forecast(last)
            step_exogenous = None if future is None else future[:, step]
            values.append(value)
            forecast, state = model.step(value, state, exogenous=step_exogenous)
            last = forecast[:, 0]
    return torch.stack(values, 1), state


def _last(forecast: Tensor, mask: Tensor | None) -> Tensor:
    """The forecast after the last real element of each row."""
    if mask is None:
        return forecast[:, -1]
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, torch.zeros_like(positions)).amax(1)
    if not bool(mask.any(1).all()):
        row = int((~mask.any(1)).int().argmax())
        raise ThreefoldError(f"rollout: row {row} is empty; expected at least one element")
    return forecast[torch.arange(len(mask), device=mask.device), last]


def _sample(forecast: Tensor, generator: Generator | None) -> Tensor:
    mean, deviation = forecast.unbind(-1)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + deviation * noise


def _check(model: Forecaster, rows: int, steps: int, future: Tensor | None, sample: bool) -> None:
    if not isinstance(model, Forecaster):
        raise ThreefoldError(f"rollout: the model is {type(model).__name__}, expected Forecaster")
    if steps < 1:
        raise ThreefoldError(f"rollout: steps is {steps}, expected at least 1")
    expected = (rows, steps, model.exogenous) if model.exogenous else None
    shape = None if future is None else tuple(future.shape)
    if shape != expected:
        raise ThreefoldError(
            f"rollout: future is {shape}, expected {expected}: the exogenous inputs of the "
            "forecast steps"
        )
    if sample and model.quantiles is not None:
        raise ThreefoldError(
            "rollout: a quantile head defines no distribution to sample from; build the model "
            'with options={"head": "gaussian"}'
        )
