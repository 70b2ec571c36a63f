"""One entry for every run: what `threefold train` writes, Python writes as well."""

from __future__ import annotations

import json
import logging
import random
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.surfaces.test_train_commands import command
from threefold.errors import ThreefoldError
from threefold.training import curves, preparation
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.experiment import run
from threefold.training.preparation import prepare


def config(path: Path, **training: Any) -> RunConfig:
    path.write_text("so much depends upon a red wheel barrow\n" * 100)
    model = {"mixers": "min_gru", "width": 16, "depth": 1}
    data = {"name": str(path), "length": 16, "batch_size": 4, "eval_examples": 4}
    return RunConfig.read({"data": data, "model": model, "training": {"steps": 4, **training}})


def test_a_run_from_python_has_samples_figures_and_a_summary(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = run(config(tmp_path / "a.txt", eval_every=2), folder)
    assert (folder / "samples.txt").read_text(encoding="utf-8").count("--- step") == 2
    assert (folder / "figures" / "loss.svg").is_file()
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == trained.summary


def test_the_history_is_that_of_the_log_also_after_a_resume(tmp_path: Path) -> None:
    settings, folder = config(tmp_path / "a.txt", eval_every=2), tmp_path / "run"
    trained = run(settings, folder)
    for history in (trained.history, run(settings, folder).history):
        assert [entry["step"] for entry in history] == [1, 2, 3, 4]
        assert ["valid_loss" in entry for entry in history] == [False, True] * 2
        for entry, logged in zip(history, curves.read_history(folder), strict=True):
            assert entry == {key: logged[key] for key in entry}
    assert run(settings).history == trained.history  # without a folder


def test_a_plot_has_the_losses_and_can_be_written(tmp_path: Path) -> None:
    trained = run(config(tmp_path / "a.txt"))
    text = trained.plot(tmp_path / "loss.svg")
    assert text.startswith("<svg") and "validation" in text
    assert (tmp_path / "loss.svg").read_text(encoding="utf-8") == text


def test_the_plan_neither_reads_the_data_again_nor_changes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, opened = config(tmp_path / "a.txt"), []
    expected = run(settings).history
    (tmp_path / "a.toml").write_text(settings.to_toml(), encoding="utf-8")
    monkeypatch.setattr(
        preparation,
        "open_data",
        lambda data, **_: opened.append(data) or DataCache().open(data),
    )
    folder = tmp_path / "run"
    assert command("train", "--config", str(tmp_path / "a.toml"), "--folder", str(folder)) == 0
    assert len(opened) == 1
    losses = [entry["loss"] for entry in curves.read_history(folder)]
    assert losses == [entry["loss"] for entry in expected]


def test_too_little_memory_is_refused_from_python_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold.training.estimate.memory_of", lambda device: 1000)
    with pytest.raises(ThreefoldError, match=r"data.batch_size=4 needs about"):
        run(config(tmp_path / "a.txt"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_progress_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "threefold"):
        run(config(tmp_path / "a.txt"))
    assert {record.name for record in caplog.records} == {"threefold.training"}
    assert "min_gru on a.txt: 100%, step 4, loss" in caplog.messages[-1]


def test_data_are_opened_once_unless_their_files_change(tmp_path: Path) -> None:
    settings, cache = config(tmp_path / "a.txt").data, DataCache()
    first = cache.open(settings)
    other_seed = settings.model_copy(update={"seed": 1})
    assert cache.open(other_seed).task is first.task
    assert cache.open(other_seed).data.seed == 1
    assert cache.open(settings.model_copy(update={"length": 8})).task.length == 8
    (tmp_path / "a.txt").write_text("another text\n" * 100)
    assert cache.open(settings).task is not first.task
    assert prepare(config(tmp_path / "b.txt"), first).data is first


def test_a_test_that_is_late_takes_a_fair_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit is long over when the test begins: one batch, of examples from everywhere."""
    config = RunConfig.read(
        {
            "data": {"name": "recall", "batch_size": 4},
            "model": {"mixers": ["gru"], "width": 16, "depth": 1},
            "training": {"time": 5.0},
        }
    )
    monkeypatch.setattr("threefold.training.time_budget.MOST_GRACE", 0.0)
    late = replace(prepare(config, started=time.monotonic() - 100), test_examples=40)
    trained = run(config, tmp_path / "run", prepared=late, reporters=())
    assert trained.summary["test_examples"] == 4 and trained.test is not None
    batches = replace(late.split_batches("test", False), is_late=lambda: False)
    in_order = replace(batches, is_late=None)
    plain = [rows.inputs for rows in in_order]
    mixed = [rows.inputs for rows in batches]
    assert len(plain) == len(mixed) == 10 and not torch.equal(plain[0], mixed[0])
    order = [sorted(map(tuple, torch.cat(part).tolist())) for part in (plain, mixed)]
    assert order[0] == order[1]


def test_a_run_that_overfits_says_so(tmp_path: Path) -> None:
    """Labels at random can only be memorized; with `patience` the best weights are kept instead."""
    path, labels = tmp_path / "reviews.csv", random.Random(0).choices("ab", k=60)
    path.write_text("text,label\n" + "".join(f"text {i},{x}\n" for i, x in enumerate(labels)))
    values: dict[str, Any] = {
        "data": {"name": str(path)},
        "model": {"mixers": ["gru"], "width": 32, "depth": 1},
        "training": {"steps": 150, "learning_rate": 0.02},
    }
    summary = run(RunConfig.read(values), tmp_path / "last", reporters=()).summary
    assert summary["valid"]["loss"] > 2 * summary["loss"]
    assert "memorized" in summary["overfitting"]
    advice = re.findall(r"training\.\w+=\d+", summary["overfitting"])
    best = run(RunConfig.read(values, advice), tmp_path / "best", reporters=()).summary
    assert best["valid"]["loss"] < summary["valid"]["loss"] and "overfitting" not in best
