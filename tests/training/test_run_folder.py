"""A run that is interrupted, killed or damaged resumes to the same bits."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import runs
from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.training import Result, TrainingSettings, train
from threefold.training.run_folder import RunLog


@pytest.fixture(scope="module")
def uninterrupted() -> tuple[nn.Module, Result]:
    return runs.run(None)


def assert_same_bits(model: nn.Module, expected: nn.Module) -> None:
    for (name, mine), theirs in zip(
        model.state_dict().items(), expected.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, theirs), name


def logged(folder: Path) -> list[tuple[int, float]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]


def assert_same_as_uninterrupted(
    folder: Path, actual: tuple[nn.Module, Result], uninterrupted: tuple[nn.Module, Result]
) -> None:
    assert_same_bits(actual[0], uninterrupted[0])
    assert actual[1].losses == uninterrupted[1].losses
    assert actual[1].validation == uninterrupted[1].validation
    assert actual[1].tokens == uninterrupted[1].tokens
    assert logged(folder) == list(enumerate(uninterrupted[1].losses, 1))


@pytest.mark.parametrize(
    ("number", "at"),
    [
        (signal.SIGINT, 16),
        (signal.SIGTERM, 16),
        (signal.SIGTERM, 9),  # an evaluation is due
        (signal.SIGINT, runs.STEPS - 1),  # the run is over
    ],
)
def test_a_signal_saves_and_the_run_resumes(
    tmp_path: Path, monkeypatch: Any, uninterrupted: Any, number: int, at: int
) -> None:
    real = runs.rows

    def interrupting(step: int) -> Batch:
        if step == at:
            os.kill(os.getpid(), number)
        return real(step)

    monkeypatch.setattr(runs, "rows", interrupting)
    _, first = runs.run(tmp_path, save=10**6)
    assert first.stopped == "interrupted" and first.steps == at + 1
    monkeypatch.setattr(runs, "rows", real)
    assert_same_as_uninterrupted(tmp_path, runs.run(tmp_path, save=10**6), uninterrupted)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, uninterrupted: Any) -> None:
    runs.run(tmp_path)
    model = runs.make()
    settings = TrainingSettings(
        steps=runs.STEPS, carry_state=True, eval_every=10, save_every=3, seed=5
    )
    result = train(model, lambda step: pytest.fail("asked for a batch"), settings, folder=tmp_path)
    assert result.stopped == "steps"
    assert_same_as_uninterrupted(tmp_path, (model, result), uninterrupted)


def test_a_run_that_reached_its_target_is_not_resumed(tmp_path: Path) -> None:
    settings = TrainingSettings(steps=9, eval_every=2, target_score=0.0)
    options = {"validation": [runs.rows(99)], "folder": tmp_path}
    assert train(runs.make(), runs.rows, settings, **options).stopped == "target"
    result = train(runs.make(), lambda _: pytest.fail("asked for a batch"), settings, **options)
    assert result.stopped == "target" and result.steps == 2


def test_a_damaged_checkpoint_is_ignored(tmp_path: Path, uninterrupted: Any) -> None:
    runs.run(tmp_path, steps=runs.STEPS)
    newest = max((tmp_path / "checkpoints").iterdir())
    content = bytearray((newest / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "model.safetensors").write_bytes(bytes(content))
    assert_same_as_uninterrupted(tmp_path, runs.run(tmp_path), uninterrupted)


def test_a_run_without_an_intact_checkpoint_is_refused(tmp_path: Path) -> None:
    """Starting again would also lose the log."""
    runs.run(tmp_path, steps=4)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").write_bytes(b"")
    before = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(ThreefoldError, match="every checkpoint of this run is damaged"):
        runs.run(tmp_path, steps=4)
    assert before == (tmp_path / "log.jsonl").read_bytes() != b""


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    """With a line missing the run would resume at another step."""
    runs.run(tmp_path, steps=4)
    log = tmp_path / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b"\n", b" ", 1))
    with pytest.raises(ThreefoldError, match="a line for each of 4 steps"):
        runs.run(tmp_path, steps=4)


def test_a_log_on_a_full_disk_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with (
        RunLog(tmp_path / "log.jsonl") as log,
        pytest.raises(ThreefoldError, match="No space left"),
    ):
        log.append({"step": 1})


def test_the_log_is_json_whatever_the_loss(tmp_path: Path) -> None:
    """JSON has no NaN: a loss that is not finite is null, and is NaN again when read."""
    model, now = runs.make(), [0]

    def rows(step: int) -> Batch:
        now[:] = [step]
        return runs.rows(step)

    def spoil(module: nn.Module, inputs: Any, out: Any) -> Any:
        return (out[0] * torch.nan, out[1]) if now == [2] else out

    model.register_forward_hook(spoil)
    settings = TrainingSettings(steps=4, on_non_finite="skip")
    train(model, rows, settings, folder=tmp_path)
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [line["loss"] is None for line in entries] == [False, False, True, False]
    again = train(runs.make(), runs.rows, settings, folder=tmp_path)
    assert [math.isnan(loss) for loss in again.losses] == [False, False, True, False]


def test_a_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    runs.run(tmp_path, steps=4)
    with pytest.raises(
        ThreefoldError, match=r"already contains a run .*training\.steps was 4 and is 5"
    ):
        runs.run(tmp_path, steps=5)


def test_a_run_of_an_older_layer_is_refused(tmp_path: Path) -> None:
    """As a run of several rwkv7 layers from before their value residual."""
    spec = Spec("language", 16, 2, "rwkv7", 17)
    older = LanguageModel(replace(spec, mixers=(("rwkv7", {"value_residual": False}),)))
    older.spec = spec  # the same settings meant fewer parameters
    settings = TrainingSettings(steps=1)
    train(older, runs.rows, settings, folder=tmp_path)
    with pytest.raises(ThreefoldError, match="although the settings are the same: parameters was"):
        train(LanguageModel(spec), runs.rows, settings, folder=tmp_path)


def test_kills_at_random_moments(tmp_path: Path, uninterrupted: Any) -> None:
    """Five SIGKILLs at random moments; the run resumes and ends with the same bits."""
    draws = random.Random(0)
    command = [sys.executable, "-m", "tests.training.runs", str(tmp_path)]
    killed = 0
    while killed < 5:
        process = subprocess.Popen(command)
        log = tmp_path / "log.jsonl"
        size, deadline = log.stat().st_size if log.exists() else 0, time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and log.stat().st_size != size:
                break  # it is training
            time.sleep(0.002)
        time.sleep(draws.uniform(0, 0.03))
        process.kill()
        process.wait()
        killed += 1
    assert_same_as_uninterrupted(tmp_path, runs.run(tmp_path), uninterrupted)
