"""Simple forecasts as filters: equal to what they stand for, and the best one is chosen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.linear_forecasts import (
    ForecastWindows,
    choose_linear,
    from_ridge,
    from_smoothing,
    repeat_value,
)
from threefold.classical.smoothing import fit_rates, forecast_windows

CONTEXT, HORIZON = 24, 5


def windows(columns: Tensor, context: int = CONTEXT, horizon: int = HORIZON) -> ForecastWindows:
    """All windows of [time, columns], whose first column is the target."""
    future = columns[:, 0].unfold(0, horizon, 1)[context:].unsqueeze(-1)
    inputs = columns.unfold(0, context, 1).transpose(1, 2)[: len(future)]
    return ForecastWindows(inputs, future)


def waves(count: int = 700) -> Tensor:
    random, t = np.random.default_rng(0), np.arange(count)
    y = np.sin(2 * np.pi * t / 12) + 0.01 * t + 0.1 * random.standard_normal(count)
    return torch.from_numpy(np.stack([y, *random.standard_normal((2, count))], 1))


def test_a_ridge_as_a_filter_forecasts_the_same() -> None:
    parts = windows(waves())
    for season in (0, 12):
        for level in (True, False):
            ridge = RidgeAutoregression.fit(
                parts.inputs, parts.targets, season=season, level=level, current=1
            )
            as_filter = from_ridge(ridge, 3, CONTEXT)
            assert_close(as_filter.predict(parts.inputs), ridge.predict(parts.inputs))
            assert as_filter.moves_with_level == (not level)


def test_smoothing_and_repeated_values_as_filters() -> None:
    parts = windows(waves())
    smoothed = from_smoothing(parts.inputs, 1, HORIZON, 12)
    chosen = parts.inputs[:: len(parts.inputs) // 4, :, 0][:4].numpy()
    rates = fit_rates(list(chosen), season=12)
    for number in (0, 300):
        window = parts.inputs[number : number + 1, :, 0].numpy()
        expected = forecast_windows(window, rates, HORIZON, season=12)[0]
        found = smoothed.predict(parts.inputs[number : number + 1])[0, :, 0]
        assert np.abs(found.numpy() - expected).max() < 1e-9
    last = repeat_value(3, 1, HORIZON).predict(parts.inputs)
    assert torch.equal(last, parts.inputs[:, -1:, :1].expand_as(last))
    ago = repeat_value(3, 1, 14, 12).predict(parts.inputs)[0, :, 0]
    season = parts.inputs[0, -12:, 0]
    assert_close(ago, torch.cat([season, season[:2]]))


def test_a_shift_of_the_level_shifts_the_forecast_exactly() -> None:
    parts = windows(waves())
    ridge = RidgeAutoregression.fit(parts.inputs, parts.targets, level=False)
    shifted = parts.inputs.clone()
    shifted[..., 0] += 1000.0
    moved = from_ridge(ridge, 3, CONTEXT).predict(shifted) - 1000.0
    assert float((moved - ridge.predict(parts.inputs)).abs().max()) < 1e-8


@pytest.mark.parametrize("name", ["last value", "ridge"])
def test_the_best_one_is_chosen_on_held_out_windows(name: str) -> None:
    random = torch.Generator().manual_seed(1)
    noise = torch.randn(6000, 1, generator=random, dtype=torch.float64)
    columns = noise.cumsum(0)
    if name == "ridge":  # of a random walk nothing can be forecast; of noise around 5, its mean
        columns = noise + 5
    parts = windows(columns)  # more than are read at once
    train = ForecastWindows(parts.inputs[:5000], parts.targets[:5000])
    held = ForecastWindows(parts.inputs[5000:], parts.targets[5000:])
    chosen, errors = choose_linear(train, held)
    assert chosen.name == name
    assert errors[name] <= 1.01 * min(errors.values())
    if name == "ridge":
        assert errors["ridge"] < 0.75 * errors["last value"]
        assert not chosen.moves_with_level


def test_too_few_windows_for_a_ridge_leave_the_last_value() -> None:
    parts = windows(waves(33))
    chosen, errors = choose_linear(parts, parts)
    assert "ridge" not in errors and chosen.name in errors
