"""The commands train, resume, evaluate and runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from threefold.cli import main

TEXT = "so much depends upon a red wheel barrow glazed with rain water\n" * 60
SMALL = ["--steps", "6", "--set", "data.batch_size=4", "--set", "data.length=12"]
SIZE = ["--set", "model.width=16", "--set", "model.depth=1"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "notes.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: str) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_a_run_from_the_plan_to_its_evaluation(place: Path, capsys: Any) -> None:
    train = ["train", "notes.txt", "--mixers", "gla", *SMALL, *SIZE]
    assert command(*train, "--dry-run") == 0
    plan = capsys.readouterr().out
    for expected in ("parameters", "learning rate 0.003", "for evaluation", "metric      bits"):
        assert expected in plan
    assert not (place / "runs").exists()
    assert command(*train, "--set", "training.eval_every=3") == 0
    out = capsys.readouterr().out
    folder = place / "runs" / "gla-notes.txt-1"
    assert "finished: all steps done" in out and "validation loss" in out
    for name in ("config.toml", "run.json", "log.jsonl", "summary.json", "samples.txt"):
        assert (folder / name).is_file(), name
    for figure in ("loss", "learning_rate"):
        assert (folder / "figures" / f"{figure}.svg").read_text().startswith("<svg")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(
        {"loss", "learning_rate", "grad_norm", "tokens", "seconds"} <= set(line) for line in lines
    )
    assert [line["step"] for line in lines if "valid_loss" in line] == [3, 6]
    assert command("evaluate", str(folder), "--json") == 0
    evaluated = json.loads(capsys.readouterr().out)
    summary = json.loads((folder / "summary.json").read_text())
    assert evaluated["loss"] == pytest.approx(summary["test"]["loss"], rel=1e-6)
    assert {"n", "loss", "bits_per_byte", "perplexity", "baseline", "split"} <= set(evaluated)
    assert command("evaluate", str(folder / "model"), "notes.txt", "--set", "data.length=12") == 0
    out = capsys.readouterr().out
    assert "all of it" in out and "unigram entropy" in out
    assert command("evaluate", str(folder), "--page") == 0
    page = folder / "evaluation.html"
    assert str(page) in capsys.readouterr().out and "bits per byte" in page.read_text().lower()
    assert command("evaluate", str(folder), "--page", "--output", str(page)) == 2
    assert "exists already" in capsys.readouterr().err
    assert command("evaluate", str(folder / "model"), "notes.txt", "--page") == 2
    assert "--output FILE.html" in capsys.readouterr().err
    assert command("train", "notes.txt", "--mixers", "lstm", *SMALL, *SIZE) == 0
    capsys.readouterr()
    assert command("runs", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["steps"] for run in listed] == [6, 6]
    other = place / "runs" / "lstm-notes.txt-1"
    assert command("runs", "diff", str(folder), str(other)) == 0
    assert "model.mixers" in capsys.readouterr().out
    assert command("runs", "show", str(folder)) == 0
    assert "finished: all steps done" in capsys.readouterr().out


def test_a_configuration_by_file_and_by_set(place: Path, capsys: Any) -> None:
    (place / "run.toml").write_text(
        '[data]\nname = "notes.txt"\nlength = 12\nbatch_size = 4\n'
        '[model]\nmixers = ["gla"]\nwidth = 16\ndepth = 1\n[training]\nsteps = 3\n'
    )
    assert command("train", "--config", "run.toml", "--folder", "here", "--steps", "2") == 0
    text = (place / "here" / "config.toml").read_text()
    assert "steps = 2" in text and 'mixers = ["gla"]' in text
    assert command("train", "--config", "run.toml", "--folder", "here") == 2
    assert "training.steps was 2 and is now 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "DATA is missing"),
        (["train", "notez.txt"], "notez.txt: file or folder not found"),
        (["train", "notes.txt", "--mixers", "gla,lstm"], "write gla+lstm for a hybrid"),
        (["train", "notes.txt", "--time", "soon"], "expected a duration such as 10m"),
        (["train", "notes.txt", "--steps", "3", "--time", "4steps"], "give one of them"),
        (["train", "notes.txt", "--mixers", "mambo"], "did you mean 'mamba'"),
        (["train", "notes.txt", "--set", "training.stepz=1"], "did you mean 'training.steps'"),
        (["train", "--config", "flat.toml"], "DATA is missing"),
        (["train", "notes.txt", "--config", "flat.toml"], "data is 5, expected [data]"),
        (
            ["train", "--config", "dated.toml"],
            "2020-01-01: neither a file nor a task",
        ),
        (["train", "notes.txt", "--set", 'data.options={"x"=1}'], "notes.txt is a file"),
        (
            ["train", "notes.txt", *SMALL, "--set", "training.scheduled_sampling=0.5"],
            "only seq2seq and captioner models use it",
        ),
        (
            ["train", "notes.txt", *SMALL, *SIZE, "--set", "data.batch_size=999999999"],
            "but this machine has",
        ),
        (["train", ""], "DATA is empty"),
        (["train", "notes.txt", "--folder", ""], "--folder is empty; expected a path"),
        (["train", "notes.txt", "--folder="], "--folder is empty; expected a path"),
        (["resume", ""], "FOLDER is empty; expected a path"),
        (["runs", "show", ""], "FOLDER is empty; expected a path"),
        (["predict", "", "x"], "MODEL is empty; expected a path"),
        (["info", ""], "PATH is empty; expected a path"),
        (["runs", "list", "notes.txt"], "notes.txt: is a file; expected a folder"),
        (["resume", "nowhere"], "folder not found"),
        (["evaluate", "nowhere"], "nowhere: no such folder"),
        (["runs", "show", "nowhere"], "folder not found"),
        (["resume", "old"], "a run in format 1"),
    ],
)
def test_bad_input_is_one_line(
    place: Path, capsys: Any, arguments: list[str], message: str
) -> None:
    (place / "flat.toml").write_text("data = 5\n")
    (place / "dated.toml").write_text("[data]\nname = 2020-01-01\n")
    (place / "old").mkdir()
    (place / "old" / "config.toml").write_text('[data]\nname = "notes.txt"\nbatch = 4\n')
    assert command(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (place / "runs").exists()


def test_runs_are_listed_among_folders_that_are_not_runs(place: Path, capsys: Any) -> None:
    """An incomplete last line of a log, and the config.toml of another program."""
    assert (
        command("train", "notes.txt", "--mixers", "gla", *SMALL, *SIZE, "--folder", "runs/a") == 0
    )
    with open(place / "runs" / "a" / "log.jsonl", "a") as log:
        log.write('{"step": 7, "lo')
    (place / "runs" / "other").mkdir()
    (place / "runs" / "other" / "config.toml").write_text("[server]\nport = 1\n")
    capsys.readouterr()
    assert command("runs", "list", "--json") == 0
    printed = capsys.readouterr()
    assert [run["steps"] for run in json.loads(printed.out)] == [6]
    assert "skipped runs/other/config.toml: not the configuration of a run" in printed.err
    assert command("runs", "show", "runs/other") == 2
    (place / "runs" / "a" / "summary.json").write_text("[]")
    assert command("runs", "show", "runs/a") == 2


def test_a_finished_run_that_lost_its_model_saves_it_again(place: Path, capsys: Any) -> None:
    assert command("train", "notes.txt", "--mixers", "gla", *SMALL, *SIZE, "--folder", "it") == 0
    weights = (place / "it/model/model.safetensors").read_bytes()
    assert command("resume", "it") == 0 and "already finished" in capsys.readouterr().out
    shutil.rmtree(place / "it" / "model")
    assert command("predict", "it", "x") == 2  # and says: threefold resume it
    assert "threefold resume it" in capsys.readouterr().err
    assert command("resume", "it") == 0
    assert (place / "it/model/model.safetensors").read_bytes() == weights


def test_ctrl_c_says_how_to_resume(place: Path) -> None:
    call = [sys.executable, "-m", "threefold", "train", "notes.txt", "--mixers", "gla"]
    call += ["--steps", "100000", *SMALL[2:], "--folder", "it", *SIZE]
    process = subprocess.Popen(
        call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    )
    log = place / "it" / "log.jsonl"
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.stat().st_size:
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "threefold resume it" in out
    steps = len(log.read_text().splitlines())
    assert (place / "it" / "checkpoints" / f"step-{steps:09}").is_dir()
    assert (place / "it" / "model" / "config.json").is_file()


def test_a_folder_that_cannot_be_written(place: Path, capsys: Any) -> None:
    (place / "taken").write_text("a file")
    assert command("train", "notes.txt", "--folder", "taken/run", *SMALL, *SIZE) == 2
    assert "taken" in capsys.readouterr().err


def houses(path: Path) -> Path:
    """Texts with two numbers in different units that follow from the number of rooms."""
    rows = [f"a house with {'room ' * n},{1000 * n + 0.5},{20 * n + 0.25}" for n in range(1, 9)]
    path.write_text("\n".join(["text,price,area", *rows * 10]) + "\n")
    return path


@pytest.mark.parametrize("target", ["price", "price,area"])
def test_numbers_are_predicted_in_their_own_units(place: Path, capsys: Any, target: str) -> None:
    houses(place / "houses.csv")
    train = ["train", "houses.csv", "--kind", "regressor", "--target", target, "--features", "text"]
    limits = ["--steps", "60", "--mixers", "min_gru", *SIZE, "--seed", "1", "--folder", "run"]
    assert command(*train, *limits) == 0
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["metric"] == "absolute_error"
    assert summary["test"]["metric"] < summary["chance"] / 2
    # The mean of both errors, whose deviations differ by a factor of 50.
    assert summary["chance"] == pytest.approx(2000 if target == "price" else 1020, rel=0.3)
    capsys.readouterr()
    call = [sys.executable, "-m", "threefold", "predict", "run", "--json"]
    texts = [f"a house with {'room ' * n}" for n in (2, 7)]
    done = subprocess.run([*call, *texts], capture_output=True, text=True, check=True, cwd=place)
    names = ["value"] if target == "price" else ["price", "area"]
    given = json.loads(done.stdout)
    assert list(given[0]) == ["input", "text", *names]
    answers = [dict(zip(("price", "area"), (a[n] for n in names), strict=False)) for a in given]
    for answer, rooms in zip(answers, (2, 7), strict=True):
        assert answer["price"] == pytest.approx(1000 * rooms, abs=1000)
        assert answer.get("area", 20 * rooms) == pytest.approx(20 * rooms, abs=20)
    assert command("evaluate", "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["absolute_error"] == summary["test"]["metric"]
    (place / "house.txt").write_text(texts[0])
    assert command("stream", "run", "house.txt", "--mode", "predict") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    named = last if target == "price,area" else {"price": last["value"]}
    assert named["price"] == pytest.approx(answers[0]["price"], rel=1e-4)
    assert command("stream", "run", "house.txt", "--mode", "anomaly") == 2
    assert "use mode predict" in capsys.readouterr().err
