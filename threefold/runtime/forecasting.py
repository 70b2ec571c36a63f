"""x̂_{t+1} = forecast(x_1 … x_t),  then x̂_{t+2} from x̂_{t+1}, and so on: a series goes on by itself.

The state is carried, so a step costs the same however long the series was.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.forecaster import Forecaster


def free_run(
    model: Forecaster,
    series: Tensor,
    steps: int,
    state: State | None = None,
    *,
    mask: Tensor | None = None,
    exogenous: Tensor | None = None,
    future: Tensor | None = None,
    sample: bool = False,
    generator: Generator | None = None,
) -> tuple[Tensor, State]:
    """Values [B, steps, channels] that follow `series` [B, L, channels], and the state after them.

    Each is the mean or median of the forecast before it; with `sample` (of a gaussian head) a draw.
    exogenous goes with the series, future [B, steps, exogenous] with the values that are made.
    The last value made is read, too: the state is ready for what comes next.
    """
    _check(model, len(series), steps, exogenous, future, sample)
    made: list[Tensor] = []
    with torch.no_grad():
        forecast, state = model(series, state, exogenous=exogenous, mask=mask)
        last = _last(forecast[:, :, 0], mask)
        for step in range(steps):
            value = _draw(last, generator) if sample else model.point_forecast(last)
            more = None if future is None else future[:, step]
            made.append(value)
            forecast, state = model.step(value, state, exogenous=more)
            last = forecast[:, 0]
    return torch.stack(made, 1), state


def _last(forecast: Tensor, mask: Tensor | None) -> Tensor:
    """Of the last real element of each row."""
    if mask is None:
        return forecast[:, -1]
    places = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, places, torch.zeros_like(places)).amax(1)
    if not bool(mask.any(1).all()):
        row = int((~mask.any(1)).int().argmax())
        raise ThreefoldError(f"free_run: row {row} has no element to go on from")
    return forecast[torch.arange(len(mask), device=mask.device), last]


def _draw(forecast: Tensor, generator: Generator | None) -> Tensor:
    mean, deviation = forecast.unbind(-1)
    noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + deviation * noise


def _check(
    model: Forecaster,
    rows: int,
    steps: int,
    exogenous: Tensor | None,
    future: Tensor | None,
    sample: bool,
) -> None:
    if not isinstance(model, Forecaster):
        raise ThreefoldError(f"free_run: given {type(model).__name__}, expected a Forecaster")
    if steps < 1:
        raise ThreefoldError(f"free_run: steps is {steps}, expected at least 1")
    wanted = (rows, steps, model.exogenous) if model.exogenous else None
    given = None if future is None else tuple(future.shape)
    if given != wanted:
        raise ThreefoldError(
            f"free_run: future is {given}, expected {wanted}: the exogenous inputs of the values "
            "that are made"
        )
    if sample and model.quantiles is not None:
        raise ThreefoldError(
            "free_run: a quantile head says nothing between its quantiles, so there is nothing to "
            'sample from; build the model with options={"head": "gaussian"}'
        )
