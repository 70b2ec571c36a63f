"""A baseline that wins a race: saved, loaded, and used on new data as a model is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.lab.reports import report as plain_report
from threefold.errors import ThreefoldError
from threefold.lab.race.baseline_fits import TestFacts as Asked
from threefold.lab.race.baseline_fits import WholeAnswer
from threefold.lab.race.baselines import baselines_for
from threefold.lab.race.best_baseline import keep_baseline, saved_form
from threefold.lab.race.folder import RaceFolder
from threefold.lab.race.race import compare
from threefold.lab.report.evidence import use_commands
from threefold.lab.report.recommendation import recommended
from threefold.lab.report.report import BaselineResult, Report
from threefold.models.saving import load
from threefold.models.simple import METHODS
from threefold.training.config import DataSettings
from threefold.training.training_data import TrainingData, open_data


def chirps(path: Path, count: int, seed: int) -> list[str]:
    """A table of rising and falling frequencies; returns the labels."""
    random, t = np.random.default_rng(seed), np.linspace(0, 1, 60)
    lines, labels = [",".join(["label", *(f"t{i}" for i in range(60))])], []
    for _ in range(count):
        wave = np.sin(2 * np.pi * (2 + 10 * t) * t + random.uniform(0, 6))
        labels.append(["down", "up"][random.integers(2)])
        row = (wave if labels[-1] == "up" else wave[::-1]) + 0.3 * random.normal(size=60)
        lines.append(",".join([labels[-1], *(f"{value:.4f}" for value in row)]))
    path.write_text("\n".join(lines))
    return labels


def opened(name: str, **settings: Any) -> TrainingData:
    data = open_data(DataSettings(name=name, batch_size=8, **settings))
    return TrainingData(replace(data.task, sizes=(60, 8, 8)), data.data)


def test_every_method_is_saved_and_answers_as_in_the_race(tmp_path: Path) -> None:
    rows = [
        "text,label",
        *(f"{'good' if n % 3 else 'bad'} film {n},{n % 3 > 0}" for n in range(80)),
    ]
    (tmp_path / "texts.csv").write_text("\n".join(rows))
    names = ("chords", "digits8-images", "adding", str(tmp_path / "texts.csv"))
    found = set()
    for name in names:
        data = opened(name, **({"length": 40} if name in ("chords", "adding") else {}))
        batch = data.task.rows("test", range(8))
        for baseline in baselines_for(data.task, "strong"):
            answer = baseline.fit(data.task, 0, Asked(8, data.task.length))
            assert isinstance(answer, WholeAnswer)
            expected = answer(batch)
            folder = tmp_path / baseline.name
            saved_form(baseline.name, answer, data).save(folder)
            outputs = load(folder)(batch.inputs, mask=batch.mask)[0]
            if baseline.name == "time warping":  # its probabilities are of neighbours
                assert torch.equal(outputs.sign(), expected.reshape(outputs.shape).sign())
            else:
                assert torch.equal(outputs, expected.reshape(outputs.shape)), baseline.name
            found.add(baseline.name)
    assert found == set(METHODS)


def test_the_winner_is_used_in_another_process(tmp_path: Path) -> None:
    chirps(tmp_path / "chirps.csv", 100, 0)
    truth = chirps(tmp_path / "new.csv", 12, 1)
    race = tmp_path / "race"
    options: dict[str, Any] = {"time": "2steps", "seeds": 2, "width": 16, "batch_size": 8}
    sets = ("data.kind=classifier", "data.target=label")
    arguments = (str(tmp_path / "chirps.csv"), "rnn")
    report = compare(*arguments, **options, folder=race, overrides=sets)
    saved = report.best_baseline
    assert saved is not None and saved.name == "MiniRocket" and not saved.refitted
    assert report.best is not None and report.best.name == "rnn"
    assert saved.folder == str(race / "best-baseline")
    assert Report.load(race).best_baseline == saved
    page = (race / "report.html").read_text()
    assert saved.command in page and report.best.command in page and "not saved" not in page
    command = shlex.split(saved.command)
    assert command == ["threefold", "predict", saved.folder, str(tmp_path / "chirps.csv")]
    command[-1] = str(tmp_path / "new.csv")
    run = subprocess.run(
        [sys.executable, "-m", *command, "--json"], capture_output=True, check=True, timeout=100
    )
    answers = [row["label"] for row in json.loads(run.stdout)]
    assert np.mean([a == b for a, b in zip(answers, truth, strict=True)]) > 0.9
    scores = threefold.evaluate(saved.folder, tmp_path / "new.csv")
    assert scores["accuracy"] > 0.9 and scores["n"] == 12
    with pytest.raises(ThreefoldError, match="simple model cannot read a stream"):
        load(saved.folder).check_streams()
    with pytest.raises(ThreefoldError, match="MiniRocket reads whole sequences"):
        load(saved.folder)(torch.zeros(1, 60, 1), {"x": torch.zeros(1)})
    again = compare(*arguments, **options, folder=race, overrides=sets, then_train="2steps")
    assert again.best_baseline is not None and again.best_baseline.refitted == "2steps"
    assert "fitted to all data" in (race / "report.md").read_text()


def test_a_baseline_that_ties_is_saved(tmp_path: Path) -> None:
    """It is what the page recommends, so its command has to be there."""
    chirps(tmp_path / "chirps.csv", 100, 0)
    data = opened(str(tmp_path / "chirps.csv"), kind="classifier", target="label")
    models = tuple(
        replace(c, runs=tuple(replace(r, score=s) for r, s in zip(c.runs, (0.8, 1.0), strict=True)))
        for c in plain_report("lstm", seeds=2).contenders
    )
    subject = replace(plain_report().subject, metric="accuracy", lower=False)
    rocket = BaselineResult("MiniRocket", ((0, 0.9), (1, 0.95)), 0.1, 1e-6)
    tie = Report(subject, models, (rocket,))
    assert "cannot be distinguished" in tie.sentence and recommended(tie) is rocket
    saved = keep_baseline(tie, RaceFolder(tmp_path / "race"), data, 8)
    assert saved is not None and use_commands(replace(tie, best_baseline=saved))[0] == saved.command
    assert load(saved.folder).spec.option("method") == "MiniRocket"


def test_probabilities_of_a_nearest_neighbour_are_those_of_other_examples() -> None:
    data = opened("chords", length=40)
    baseline = next(b for b in baselines_for(data.task, "strong") if b.name == "time warping")
    answer = baseline.fit(data.task, 0, Asked(8, 40))
    assert isinstance(answer, WholeAnswer)
    model = saved_form("time warping", answer, data)
    likely = model.interpret(model(data.task.rows("test", range(8)).inputs)[0]).max(1).values
    known: Any = answer.fitted
    table = known(known.inputs)  # each finds itself, so leave-one-out is written out here
    assert torch.equal(table.sign(), known.answers.float().sign())
    right = 0
    for number in range(len(known.inputs)):
        rest = [n for n in range(len(known.inputs)) if n != number]
        others = replace(
            known, **{f: getattr(known, f)[rest] for f in ("inputs", "lengths", "answers")}
        )
        right += int(others(known.inputs[number : number + 1]).argmax()) == int(
            known.answers[number].argmax()
        )
    classes = known.answers.shape[1]
    expected = min(max(right / len(known.inputs), (1 + 1e-3) / classes), 0.999)
    assert likely.tolist() == pytest.approx([expected] * 8, abs=1e-6)
