"""The second look at forecasts: an anomaly does not make the elements behind it surprising."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from threefold.runtime.scores.scorers import ResidualScorer
from threefold.runtime.scores.second_look import SURPRISING
from threefold.runtime.streaming import stream

CONTEXT, ROWS, BEGIN = 16, 400, 200
ANOMALY = slice(BEGIN, BEGIN + 5)


def wave(rows: int = ROWS, seed: int = 1) -> Any:
    noise = np.random.default_rng(seed).standard_normal(rows)
    return np.sin(np.arange(rows) / 3) + 0.05 * noise


def walk(rows: int = ROWS, seed: int = 1) -> Any:
    return np.cumsum(np.random.default_rng(seed).standard_normal(rows))


@cache
def trained(series: Any = wave) -> Any:
    settings = {"model.width": 16, "model.depth": 1, "data.length": CONTEXT}
    run = threefold.train(
        {"y": series(2000, 0)}, target="y", horizon=1, steps=2, mixers="gru", settings=settings
    )
    return run.model


def scores(model: Any, rows: Any) -> Any:
    parts = list(stream(model, rows[:, None], mode="anomaly"))
    return np.concatenate([part.columns["score"] for part in parts])


def test_only_the_anomaly_is_surprising(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = wave()
    rows[ANOMALY] += (3.0, -3.0, 4.0, 3.0, 5.0)
    twice = scores(trained(), rows)
    monkeypatch.setattr(ResidualScorer, "look_twice", lambda self, context: None)
    once = scores(trained(), rows)
    calm = slice(4 * CONTEXT, BEGIN + 1)  # the first forecasts have read little
    assert np.array_equal(once[calm], twice[calm])
    assert bool((twice[1:] <= once[1:] + 1e-9).all())
    assert twice[ANOMALY].min() > SURPRISING
    behind = slice(ANOMALY.stop, ANOMALY.stop + CONTEXT)
    assert twice[behind].max() < SURPRISING < once[behind].max()
    assert np.array_equal(once[behind.stop :], twice[behind.stop :])


def test_a_lasting_change_is_not_surprising_for_ever() -> None:
    rows = walk()
    rows[BEGIN:] += 50.0
    found = scores(trained(walk), rows)
    assert found[BEGIN] > SURPRISING
    assert found[BEGIN + CONTEXT :].max() < SURPRISING


def test_it_continues_to_the_same_bits_from_any_place() -> None:
    rows = wave(60)
    rows[20:24] += 4.0
    model = trained()
    inputs = torch.from_numpy(rows[:, None]).float()
    forecasts = torch.randn(60, 1, model.outputs, generator=torch.Generator().manual_seed(0))
    forecasts = forecasts.double().sort(-1).values

    def looked(cuts: tuple[int, ...]) -> torch.Tensor:
        scorer, parts = ResidualScorer(model, ""), []
        scorer.look_twice(CONTEXT)
        for begin, end in zip((0, *cuts), (*cuts, 60), strict=True):
            before = json.loads(json.dumps(scorer.state()))
            scorer = ResidualScorer(model, "")
            scorer.look_twice(CONTEXT)
            scorer.restore(before)
            assert scorer.second_look is not None
            values = inputs[begin:end].double()
            parts.append(scorer.second_look.better(values, forecasts[begin:end], inputs[begin:end]))
        return torch.cat(parts)

    whole = looked(())
    assert not torch.equal(whole, forecasts)
    for cuts in ((21,), (5, 22, 23, 40), tuple(range(1, 60))):
        assert torch.equal(looked(cuts), whole)
