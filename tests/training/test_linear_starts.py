"""A forecaster starts at a linear filter, and training never leaves it worse on validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
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
