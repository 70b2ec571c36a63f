"""Baselines of a race: each on data that it must do well on, and the verdict that names them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.lab.reports import report
from threefold.classical.hashed_ngrams import TextLogistic
from threefold.errors import ThreefoldError
from threefold.lab.race.baselines import baselines_for, run_baselines, season_of
from threefold.lab.race.planning import RaceRequest
from threefold.lab.race.probes import ProbeSizes
from threefold.lab.race.race import compare
from threefold.lab.report.markdown import markdown
from threefold.lab.report.page import page
from threefold.lab.report.report import BaselineResult
from threefold.training.config import DataSettings
from threefold.training.training_data import TrainingData, open_data


def scores(data: TrainingData, level: str = "strong") -> dict[str, float]:
    found = run_baselines(data, level, 1, 200, lambda _: None)
    return {result.name: result.scores[0] for result in found}


def test_forecasts_of_a_season(tmp_path: Path) -> None:
    t, random = np.arange(900), np.random.default_rng(0)
    phase = 2 * np.pi * (t + 0.5) / 12
    wave = 50 + 5 * np.sin(phase) + 3 * np.sign(np.sin(phase))
    rows = (wave + 0.1 * random.normal(size=len(t))).round(4)
    (tmp_path / "wave.csv").write_text("flow\n" + "\n".join(map(str, rows)))
    data = open_data(DataSettings(name=str(tmp_path / "wave.csv"), length=48, horizon=6))
    found = scores(data)
    assert set(found) == {"last value", "seasonal naive", "ridge", "Holt–Winters"}
    assert found["seasonal naive"] < 0.2 and found["ridge"] < 0.15 and found["Holt–Winters"] < 0.2
    assert found["last value"] > 2  # in the units of the file
    assert set(scores(data, "simple")) == {"last value", "seasonal naive"}
    assert scores(data, "none") == {}
    said: list[str] = []
    run_baselines(data, "simple", 1, 64, said.append)
    assert "seasonal naive repeats the last 12 rows" in said
    assert season_of(data.task.rows("train", range(100)).inputs[:, :, 0]) == 12


def test_a_smooth_noisy_wave_has_the_season_of_the_wave() -> None:
    noise = torch.from_numpy(np.random.default_rng(0).normal(0, 3, 1000))
    wave = 40 * torch.sin(2 * torch.pi * torch.arange(1000.0).double() / 24) + noise
    windows = wave.unfold(0, 75, 5)  # changes are alike at a lag of two, too
    assert season_of(windows) == 24
    assert season_of(noise.unfold(0, 75, 5)) == 0
    assert season_of(torch.tensor([[1.0, -1.0] * 20])) == 2


def test_series_with_classes() -> None:
    data = open_data(DataSettings(name="chords", batch_size=16, length=128))
    small = replace(data.task, sizes=(200, 32, 64))
    found = scores(TrainingData(small, data.data))
    assert found["MiniRocket"] > 0.9 > found["majority"]
    assert set(found) == {"majority", "MiniRocket", "time warping", "echo state network"}
    sizes = ProbeSizes(64, 8, 8)
    results = run_baselines(
        TrainingData(small, data.data), "strong", 1, 64, lambda _: None, sizes=sizes
    )
    errors = {b.name: b.extras.get("calibration", {}).get("error") for b in results}
    assert errors.pop("time warping") is None  # the nearest neighbour has no probabilities
    assert errors["MiniRocket"] < 0.15 and errors["majority"] < 0.15
    assert all(b.extras["memory_bytes"] > 0 and "robustness" in b.extras for b in results)


def test_texts_and_language(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = {"good": ["fine", "lovely", "great"], "bad": ["awful", "poor", "dull"]}
    lines = ["text,label"]
    for _ in range(120):
        label = str(random.choice(list(words)))
        text = " ".join(random.choice([*words[label], "the", "film", "was"], 8))
        lines.append(f"{text},{label}")
    (tmp_path / "mails.csv").write_text("\n".join(lines))
    found = scores(open_data(DataSettings(name=str(tmp_path / "mails.csv"))))
    assert found["logistic regression"] == 1.0 and found["majority"] < 0.8
    (tmp_path / "notes.txt").write_text("".join(line.split(",")[0] + ". " for line in lines) * 4)
    language = scores(open_data(DataSettings(name=str(tmp_path / "notes.txt"), length=32)))
    assert language["n-grams"] < 2.5 and math.isfinite(language["xz"])


def test_ngrams_of_unseen_words_are_ignored() -> None:
    texts = [np.array([1, 2, 3]), np.array([4, 5, 6])] * 10
    model = TextLogistic.fit(texts, np.array([0, 1] * 10), 2, order=2)
    assert model.scores([np.array([1, 2]), np.array([6, 9])]).argmax(1).tolist() == [0, 1]
    with pytest.raises(ThreefoldError, match="1 texts and 2 labels"):
        TextLogistic.fit(texts[:1], np.array([0, 1]), 2)


def test_what_has_no_baseline_has_none() -> None:
    data = open_data(DataSettings(name="reversal", batch_size=4))
    assert baselines_for(data.task, "strong") == [] == run_baselines(data, "strong", 1, 8, print)
    with pytest.raises(ThreefoldError, match="unknown baselines 'weak'"):
        RaceRequest("recall", baselines="weak")


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (0.9, "No sequence model beats n-grams here: it reaches a loss of 0.9 nats"),
        (1.9, "The best baseline, n-grams, reaches 1.9"),
        (1.4125, "A simple method, n-grams (1.412), is as good as mamba"),
        (1.43, "The best baseline, n-grams (1.430 ± 0.29), cannot be distinguished from mamba"),
        (1.39, "The best baseline, n-grams (1.39), is better than every run of mamba"),
    ],
)
def test_the_verdict_names_the_best_baseline(level: float, words: str) -> None:
    plain = report()
    spread = {1.4125: 0.002, 1.43: 0.05, 1.39: 0.016}.get(level, 0.0)
    jitter = (0.0, spread, -spread)
    best, worse = (
        BaselineResult(name, tuple((i, value + j) for i, j in enumerate(jitter)), 0.5, 1e-6)
        for name, value in (("n-grams", level), ("xz", level + 1))
    )
    named = replace(plain, baselines=(worse, best))
    assert words.split(" (")[0] in named.sentence
    assert words.rpartition("), ")[2] in named.sentence
    assert [b["name"] for b in named.to_dict()["baselines"]] == ["n-grams", "xz"]
    for text in (page(named), markdown(named)):
        assert "Baselines" in text and "xz" in text
    assert "baseline" not in plain.sentence


def test_a_race_of_forecasters_with_the_default_horizon(tmp_path: Path) -> None:
    """Longer contexts, on which the models are tried at the end, keep the horizon."""
    rows = [f"{100 + 5 * math.sin(i / 3):.3f}" for i in range(300)]
    (tmp_path / "flow.csv").write_text("flow\n" + "\n".join(rows))
    options = {"time": "2steps", "seeds": 1, "width": 16, "depth": 1}
    found = compare(tmp_path / "flow.csv", "gru", folder=tmp_path / "race", **options)
    assert found.ranked_baselines[0].name in ("ridge", "Holt–Winters")
    assert len(found.contenders[0].other_lengths) > 1
    assert set(found.baseline_margins) == {b.name for b in found.baselines}
    for one in found.baselines:  # the same test examples, the same mean
        margin = found.baseline_margins[one.name]
        assert margin.mean == pytest.approx(found.lead_over(one).mean, abs=1e-5)
        assert margin.count > 8 and margin.half > 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(ThreefoldError, match=r"contains notes\.txt and no race\.json"):
        compare(tmp_path / "flow.csv", "gru", folder=mine, **options)
