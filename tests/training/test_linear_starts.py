"""A forecaster starts at a linear filter, and training never leaves it worse on validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold.classical.linear_forecasts import ForecastWindows, LinearForecast, bounded
from threefold.data.preprocessing.numbers import Standardise
from threefold.models.forecaster import Forecaster
from threefold.training.config import RunConfig
from threefold.training.preparation import prepare
from threefold.training.training_data import open_data

SETTINGS = {"data.length": 16, "model.width": 16, "model.depth": 1}


def columns(rows: int = 500) -> dict[str, Any]:
    random = np.random.default_rng(0)
    other = random.standard_normal(rows)
    y = np.zeros(rows)
    for t in range(2, rows):
        y[t] = 0.8 * y[t - 1] + other[t - 2] + 0.1 * random.standard_normal()
    return {"y": 50 + 3 * y, "other": other}


def prepared(**options: Any) -> Any:
    config = RunConfig(
        data={"name": "columns", "target": "y", "horizon": 3, "length": 16},
        model={"mixers": ("gru",), "width": 16, "depth": 1, "options": options},
        training={"steps": 1},
    )
    return prepare(config, open_data(config.data, source=columns())), config


@pytest.mark.parametrize("head", ["quantile", "gaussian"])
def test_training_starts_exactly_at_the_filter(head: str) -> None:
    run, config = prepared(head=head)
    start, model = run.data.linear_start(config.model), run.model
    assert start.filter.name == "ridge" and model.lags == start.lags
    rows = run.data.task.rows("test", range(40))
    with torch.no_grad():
        forecast = model.eval().respond(rows.inputs, last=True)[0]
    point = model.point_forecast(forecast)
    expected = start.filter.predict(rows.inputs)
    assert float((point - expected).abs().max()) < 1e-4
    assert bool((model.quantile_forecast(forecast).diff(dim=-1) >= 0).all())


def test_the_filter_can_be_switched_off_or_given_its_lags() -> None:
    assert prepared(lags=0)[0].model.start is None
    assert prepared(lags=5)[0].model.lags == 5
    with pytest.raises(threefold.ThreefoldError, match="lags is -1"):
        prepared(lags=-1)


def test_a_training_that_only_hurts_keeps_the_start(tmp_path: Path) -> None:
    settings = {**SETTINGS, "training.learning_rate": 10.0, "training.grad_clip": 0}
    run = threefold.train(
        columns(), target="y", horizon=3, mixers="gru", steps=20, folder=tmp_path, settings=settings
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["kept_step"] == 0 and summary["linear_start"]["name"] == "ridge"
    assert summary["valid"] == summary["valid_start"]
    assert len(run.result.validation) == 10
    losses = [scores.loss for _, scores in run.result.validation]
    assert min(losses) > run.result.start.loss
    loaded = threefold.load(tmp_path)
    assert isinstance(loaded, Forecaster) and loaded.start is not None
    assert torch.equal(loaded.start.taps, run.model.start.taps)
    assert bool((loaded.head.weight == 0).all())


def test_a_history_shorter_than_the_lags_is_continued_backwards() -> None:
    model = prepared()[0].model.eval()
    constant = torch.full((1, 2, 2), 0.5)
    longer = torch.full((1, 16, 2), 0.5)
    with torch.no_grad():
        short, long = (model.respond(rows, last=True)[0] for rows in (constant, longer))
    assert float((model.point_forecast(short) - model.point_forecast(long)).abs().max()) < 0.2


def around_a_level(rows: int, level: float) -> Any:
    """Noise that returns to a level: a filter that reads the level forecasts it best."""
    random = np.random.default_rng(0)
    y = np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.5 * y[t - 1] + random.standard_normal()
    return y + level


def test_a_level_that_leaves_the_training_range_moves_the_forecast(tmp_path: Path) -> None:
    settings = {"data.length": 16, "model.width": 16, "model.depth": 1}
    run = threefold.train(
        {"y": around_a_level(2000, 50.0)}, target="y", horizon=2, mixers="gru", steps=2,
        folder=tmp_path, settings=settings,
    )  # fmt: skip
    start = json.loads((tmp_path / "summary.json").read_text())["linear_start"]
    assert not start["moves_with_level"] and start["moves_beyond_training"]
    model = threefold.load(tmp_path)
    same = threefold.evaluate(tmp_path, {"y": around_a_level(2000, 50.0)}, split="test")
    assert run.summary["bands"] == same["by_target"]["y"]["intervals"]  # training says it, too
    assert isinstance(model, Forecaster) and model.start is not None
    assert bool(model.start.reach.isfinite().all()) and bool(model.start.level.any())
    here, far = around_a_level(600, 50.0), around_a_level(600, 5000.0)
    forecasts = {
        name: np.concatenate([part.columns["y+1"] for part in threefold.stream(run.model, rows)])
        for name, rows in (("here", here), ("far", far))
    }
    errors = {
        "here": np.abs(forecasts["here"][40:-1] - here[41:]).mean(),
        "far": np.abs(forecasts["far"][40:-1] - far[41:]).mean(),
    }
    last = np.abs(here[40:-1] - here[41:]).mean()
    assert errors["far"] < 1.1 * errors["here"] < 0.97 * 1.1 * last
    # The same in a stream, in a forecast and in an evaluation.
    newest = threefold.predict(model, {"y": far})[0]
    assert abs(newest["y"] - forecasts["far"][-1]) < 1e-2
    again = threefold.evaluate(model, {"y": far}, split="test")
    assert again["mae"] < 1.3 * errors["here"]


def test_a_level_range_is_only_taken_where_it_does_no_harm() -> None:
    t = torch.arange(4000, dtype=torch.float64)
    growing = torch.exp(t / 800).view(-1, 1, 1)  # y_{t+1} = e^{1/800} y_t, which the level tells
    windows = growing.view(-1, 1).unfold(0, 8, 1).transpose(1, 2)
    parts = [
        ForecastWindows(windows[a:b], growing.view(-1)[a + 8 : b + 8].view(-1, 1, 1))
        for a, b in ((0, 3000), (3000, 3900))
    ]
    taps = torch.zeros(1, 1, 1, dtype=torch.float64)
    rate = torch.full((1, 1), float(np.exp(1 / 800) - 1), dtype=torch.float64)
    exact = LinearForecast("exact", taps, rate, torch.zeros(1, dtype=torch.float64), {})
    assert bounded(exact, *parts, rows=4).bounds is None
    inside = ForecastWindows(parts[0].inputs[::7], parts[0].targets[::7])
    moving = bounded(exact, parts[0], inside, rows=4)
    assert moving.bounds is not None
    assert torch.equal(moving.predict(inside.inputs), exact.predict(inside.inputs))
    far = inside.inputs + 1000.0
    shifted = moving.predict(far) - 1000.0
    further = moving.predict(far + 500.0) - 1500.0
    assert float((shifted - further).abs().max()) < 1e-9


def test_rare_spikes_do_not_set_the_scale() -> None:
    random = np.random.default_rng(0)
    y = random.standard_normal(3000)
    plain = Standardise.fit([y], ["y"], robust=True)
    assert plain == Standardise.fit([y], ["y"])  # nothing is far outside
    spiked = y.copy()
    spiked[::100] += 500.0
    robust = Standardise.fit([spiked], ["y"], robust=True)
    assert robust.deviation[0] < 3 < Standardise.fit([spiked], ["y"]).deviation[0]
    assert_close(
        torch.from_numpy(robust.invert(robust.apply(spiked[:, None]))[:, 0]),
        torch.from_numpy(spiked),
    )
    heavy = np.exp(4 * y)
    scale = Standardise.fit([heavy], ["y"], robust=True)
    assert np.abs(scale.apply(heavy[:, None])).max() <= 1000 * (1 + 1e-9)  # still believed


def test_a_level_far_away_costs_no_precision() -> None:
    random = np.random.default_rng(0)
    walk = np.cumsum(random.standard_normal(800))
    config = RunConfig(
        data={"name": "walk", "target": "y", "horizon": 2, "length": 16},
        model={"mixers": ("gru",), "width": 16, "depth": 1, "options": {"lags": 8}},
        training={"steps": 1},
    )
    run = prepare(config, open_data(config.data, source={"y": walk}))
    rows = run.data.task.rows("test", range(20)).inputs
    with torch.no_grad():
        here = run.model.eval().respond(rows, last=True)[0]
        far = run.model.respond(rows + 100.0, last=True)[0] - 100.0
    assert float(run.model.start.drifts) == 1.0
    assert float((here - far).abs().max()) < 1e-3
