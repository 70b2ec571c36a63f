"""`threefold.evaluate` on trained models: new files, other columns, signals, and the page."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.tolerances import TOLERANCES
from threefold.errors import ThreefoldError
from threefold.runtime.interrupts import InterruptedByUser
from threefold.training.config import RunConfig
from threefold.training.evaluations import Evaluation
from threefold.training.evaluations.forecast_measure import origins_of
from threefold.training.experiment import finished_steps, run
from threefold.training.preparation import prepare
from threefold.training.training_data import open_data

EXACT = TOLERANCES[torch.float32, "output"]
WORDS = {"bad": "awful", "fine": "decent", "good": "lovely"}
SMALL = {"model.width": 16, "model.depth": 1}


def write(path: Path, header: Sequence[str], rows: Any) -> Path:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def reviews(labels: Sequence[str], count: int) -> list[tuple[str, str]]:
    names = [labels[i % len(labels)] for i in range(count)]
    return [(f"{WORDS[name]} film {i}", name) for i, name in enumerate(names)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that tells three words apart; from the folder of its data."""
    place = tmp_path_factory.mktemp("classifier")
    write(place / "reviews.csv", ("text", "label"), reviews(list(WORDS), 120))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        settings = {**SMALL, "data.batch_size": 24, "training.learning_rate": 0.02}
        threefold.train("reviews.csv", mixers="gru", steps=40, folder="run", settings=settings)
    return place / "run"


def flow(hour: int, noise: float) -> tuple[str, float, float]:
    stamp = f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00"
    wave = math.sin(hour * math.pi / 12)
    return stamp, 1000 + 50 * wave + noise, 0.01 * wave


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that forecasts one of two columns with very different scales."""
    place = tmp_path_factory.mktemp("forecaster")
    noise = np.random.default_rng(0).normal(0, 3, 720)
    rows = [flow(hour, noise[hour]) for hour in range(720)]
    write(place / "flow.csv", ("time", "flow", "level"), rows)
    settings = {**SMALL, "data.length": 24, "data.horizon": 4, "data.batch_size": 16}
    threefold.train(
        place / "flow.csv",
        target="flow",
        mixers="gru",
        steps=40,
        folder=place / "run",
        settings={**settings, "training.learning_rate": 0.02},
    )
    return place / "run"


def test_a_file_that_lacks_a_class_keeps_the_models_labels(
    classifier: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / "new.csv", ("text", "label"), reviews(["fine", "good"], 40))
    values = threefold.evaluate(classifier, path)
    assert values["accuracy"] == 1.0 and values["n"] == 40 and values["split"] == "all"
    assert [row["label"] for row in values["classes"]] == sorted(WORDS)
    assert values["classes"][0]["support"] == 0 and values["classes"][0]["recall"] is None
    assert values["baseline"]["accuracy"] == 0.5
    assert json.loads(json.dumps(values)) == values


def test_the_test_split_of_the_run_is_what_training_evaluated(classifier: Path) -> None:
    summary = json.loads((classifier / "summary.json").read_text())
    values = threefold.evaluate(classifier)  # from another working directory
    assert values["loss"] == pytest.approx(summary["test"]["loss"], rel=EXACT)
    assert (values["n"], values["split"], values["notes"]) == (12, "test", [])
    part = threefold.evaluate(classifier, classifier.parent / "reviews.csv", split="test")
    assert part["loss"] == pytest.approx(values["loss"], rel=EXACT) and part["n"] == 12
    whole = threefold.evaluate(classifier, classifier.parent / "reviews.csv")
    assert whole["n"] == 120 and "trained on most of these data" in whole["notes"][0]


def test_batches_do_not_change_the_answer(classifier: Path, forecaster: Path) -> None:
    for folder, names in (
        (classifier, ("loss", "accuracy", "calibration_error")),
        (forecaster, ("loss", "mae", "pinball", "coverage")),
    ):
        one, many = (
            threefold.evaluate(folder, settings=[f"data.batch_size={size}"]) for size in (1, 50)
        )
        for name in names:
            assert one[name] == pytest.approx(many[name], rel=EXACT), name


def test_unknown_labels_are_refused_or_skipped(classifier: Path, tmp_path: Path) -> None:
    rows = [*reviews(["good"], 9), ("odd film", "odd")]
    path = write(tmp_path / "new.csv", ("text", "label"), rows)
    message = r"new.csv:11, column 'label': unknown label 'odd'; .* 'bad', 'fine', 'good'"
    with pytest.raises(ThreefoldError, match=message):
        threefold.evaluate(classifier, path)
    values = threefold.evaluate(classifier, path, unknown="skip")
    assert values["n"] == 9 and "new.csv:11" in values["notes"][0]
    write(tmp_path / "odd.csv", ("text", "label"), rows[-1:] * 3)
    with pytest.raises(ThreefoldError, match="no example has a label that the model knows"):
        threefold.evaluate(classifier, tmp_path / "odd.csv", unknown="skip")


def test_columns_of_a_new_series_are_found_by_name(forecaster: Path, tmp_path: Path) -> None:
    rows = [flow(hour, 0.0) for hour in range(200)]
    ordered = write(tmp_path / "a.csv", ("time", "flow", "level"), rows)
    swapped = write(
        tmp_path / "b.csv", ("level", "extra", "flow", "time"), [(c, 7, b, a) for a, b, c in rows]
    )
    values, others = (threefold.evaluate(forecaster, path) for path in (ordered, swapped))
    assert others["mae"] == pytest.approx(values["mae"], rel=EXACT)
    assert values["mae"] < 20 and values["origins"] == 200 - 24 - 4 + 1
    assert values["mase_scale"]["rows"] == 24
    assert values["mase_scale"]["source"] == "training data"
    assert values["mase"] == pytest.approx(values["mae"] / values["mase_scale"]["values"][0])
    assert [line["step"] for line in values["by_horizon"]] == [1, 2, 3, 4]
    assert np.mean([line["mae"] for line in values["by_horizon"]]) == pytest.approx(values["mae"])
    naive = values["baselines"]
    assert naive["value of a season ago"]["mae"] == pytest.approx(0, abs=1e-3)
    last = np.array([row[1] for row in rows])
    expected = np.mean([np.abs(last[t : t + 4] - last[t - 1]).mean() for t in range(24, 197)])
    assert naive["last value"]["mae"] == pytest.approx(expected, rel=EXACT)


def test_a_backtest_with_a_stride_and_another_season(forecaster: Path) -> None:
    every = threefold.evaluate(forecaster)
    third = threefold.evaluate(forecaster, stride=3, season=6)
    assert third["origins"] == -(-every["origins"] // 3)
    assert third["mase_scale"]["rows"] == 6 and third["mase_scale"]["source"] == "these data"
    task = open_data(str(forecaster.parent / "flow.csv"), target="flow").task
    numbers = origins_of(task.windows, "test", task.size("test"), 5)
    assert set(np.diff(task.windows.begins["test"][numbers])) == {5}


def test_several_series_are_listed_and_never_mixed(tmp_path: Path) -> None:
    rows = [(f"s{s}", 100.0 * s + i % 5) for s in (1, 2) for i in range(60)]
    path = write(tmp_path / "many.csv", ("name", "y"), rows)
    settings = {**SMALL, "data.series_column": "name", "data.length": 5, "data.horizon": 2}
    trained = threefold.train(path, target="y", mixers="gru", steps=2, settings=settings)
    values = threefold.evaluate(trained, path, season=10)  # longer than the context
    assert {row["series"]: row["n"] for row in values["by_series"]} == {"s1": 54, "s2": 54}
    assert values["baselines"]["value of a season ago"]["mae"] == pytest.approx(0, abs=1e-4)
    assert values["baselines"]["last value"]["mae"] < 4  # not the jump between the series
    other = write(tmp_path / "other.csv", ("name", "y"), [("s3", float(i % 5)) for i in range(60)])
    assert (
        "1 series were not in the training data (s3)"
        in threefold.evaluate(trained, other)["notes"][0]
    )


def test_unseen_categories_and_missing_numbers_are_told(tmp_path: Path) -> None:
    towns = {"town": ["Ulm", "Bonn"] * 30, "area": np.arange(60.0), "price": np.arange(60.0)}
    trained = threefold.train(
        towns, target="price", kind="regressor", mixers="gru", steps=2, settings=SMALL
    )
    new = {"town": ["Rome", "Bonn"], "area": [3.0, None], "price": [1.0, 2.0]}
    notes = threefold.evaluate(trained, new)["notes"]
    assert notes == trained.model.predict(new).notes
    assert "town: 1 cell has a category that training has not seen" in notes[0]
    assert "numbers are missing or absurd in 1 inputs (area 1;" in notes[1]


def test_numbers_texts_and_translations(tmp_path: Path) -> None:
    targets = np.arange(60) / 7 + 500
    numbers = ([f"no {i}" for i in range(60)], targets)
    trained = threefold.train(numbers, mixers="gru", steps=3, settings=SMALL)
    values = threefold.evaluate(trained, numbers)
    assert trained.data is not None and trained.data.preprocessing is not None
    mean = trained.data.preprocessing.outputs.steps[0].mean[0]
    assert values["baseline"]["mae"] == pytest.approx(np.abs(targets - mean).mean(), rel=EXACT)
    assert values["mae"] < 100 and values["worst"][0]["target"] > 499  # in original units
    text = "abcd" * 300
    (tmp_path / "t.txt").write_text(text)
    trained = threefold.train(
        tmp_path / "t.txt", mixers="gru", steps=3, settings={**SMALL, "data.length": 16}
    )
    values = threefold.evaluate(trained, tmp_path / "t.txt")
    assert values["tokens"] == values["bytes"] == 1199  # every token but the first
    assert values["bits_per_byte"] == pytest.approx(values["nats_per_token"] / math.log(2))
    assert values["perplexity"] == pytest.approx(math.exp(values["nats_per_token"]))
    assert values["baseline"]["bits_per_token"] == pytest.approx(2, rel=1e-4)  # four letters
    short = threefold.evaluate(trained, ["abc"])
    assert short["tokens"] == 2
    pairs = tmp_path / "p.tsv"
    pairs.write_text("".join(f"{i:03}\t{i:03}\n" for i in range(40)))
    trained = threefold.train(pairs, kind="seq2seq", mixers="gru", steps=2, settings=SMALL)
    values = threefold.evaluate(trained, pairs)
    assert values["n"] == 40 and 0 <= values["bleu"] <= 100 and 0 <= values["chrf"] <= 100
    assert values["worst"][0]["target"].isdigit()
    assert values["bleu_order"] < 4 and "so BLEU counts" in values["notes"][-1]


def test_translations_without_sacrebleu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = tmp_path / "p.tsv"
    pairs.write_text("".join(f"{i:03}\t{i:03}\n" for i in range(40)))
    trained = threefold.train(pairs, kind="seq2seq", mixers="gru", steps=1, settings=SMALL)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    values = threefold.evaluate(trained)
    assert values["bleu"] is None and "threefold[translate]" in values["notes"][0]
    assert values["exact_match"] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_after_the_batch(classifier: Path, number: int) -> None:
    seen = []

    def on_progress(done: int, total: int) -> None:
        seen.append((done, total))
        os.kill(os.getpid(), number)

    with pytest.raises(InterruptedByUser, match="after 4 of 12 examples"):
        threefold.evaluate(classifier, settings=["data.batch_size=4"], on_progress=on_progress)
    assert seen == [(4, 12)]


def test_a_signal_during_the_last_evaluations_of_a_run(classifier: Path, tmp_path: Path) -> None:
    data = {"name": str(classifier.parent / "reviews.csv"), "batch_size": 4}
    config = RunConfig.read(
        {"data": data, "model": {"mixers": ["gru"], "width": 16}, "training": {"steps": 2}}
    )
    expected = run(config, samples=False)
    prepared = prepare(config)
    draw, drawn = prepared.data.task.draw, []

    def interrupting(split: str, numbers: Any) -> Any:
        drawn.append(split)
        if drawn.count(split) == 1 and split in ("valid", "test"):
            os.kill(os.getpid(), signal.SIGINT)
        return draw(split, numbers)

    object.__setattr__(prepared.data.task, "draw", interrupting)
    for evaluations in ({"valid": 1}, {"valid": 4, "test": 1}):  # of three batches each
        stopped = run(config, tmp_path / "run", prepared=prepared)
        assert not stopped.finished and stopped.test is None
        assert {s: drawn.count(s) for s in evaluations} == evaluations
        assert finished_steps(tmp_path / "run") is None
        prepared = prepare(config)
        object.__setattr__(prepared.data.task, "draw", interrupting)
    resumed = run(config, tmp_path / "run", prepared=prepare(config))
    assert resumed.finished and resumed.test == expected.test
    assert resumed.result.validation == expected.result.validation


def test_a_time_limit_includes_the_evaluations(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"name": str(classifier.parent / "reviews.csv"), "batch_size": 4}
    values = {"data": data, "model": {"mixers": ["gru"], "width": 16}, "training": {"time": 10}}
    config = RunConfig.read(values)
    monkeypatch.setattr("threefold.training.preparation.judging_seconds", lambda *_: (1.0, 1.5))
    prepared = prepare(config)
    assert prepared.budget is not None and prepared.budget.judging == pytest.approx(2.5)
    assert prepared.test_examples is None
    monkeypatch.setattr("threefold.training.preparation.judging_seconds", lambda *_: (4.0, 6.0))
    prepared = prepare(config)
    assert prepared.budget is not None
    assert prepared.budget.judging == pytest.approx(3)  # a sample, so that time is left to train
    assert (prepared.valid_examples, prepared.test_examples) == (3, 3)
    monkeypatch.setattr("threefold.training.preparation.judging_seconds", lambda *_: (4.0, 1.0))
    prepared = prepare(config)
    assert prepared.budget is not None and prepared.budget.judging == pytest.approx(3)
    assert (prepared.valid_examples, prepared.test_examples) == (6, None)  # a short test is whole


def test_the_page_contains_the_figures_and_loads_nothing(
    classifier: Path, forecaster: Path, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "new.csv",
        ("text", "label"),
        [*reviews(["fine", "good"], 9), ("lovely <script>alert(1)</script>", "bad")],
    )
    classes, series = threefold.evaluate(classifier, path), threefold.evaluate(forecaster)
    pages = [classes.page(tmp_path / "classes.html"), series.page()]
    assert (tmp_path / "classes.html").read_text() == pages[0]
    for page in pages:
        assert "<script" not in page and not re.search(r'(?:src|href)="(?!#)|url\(|@import', page)
        colours = re.sub(r"--[\w-]+: #[0-9a-f]{6}", "", page)
        assert not re.search(r"(?:fill|stroke|color)[:=]\s*\"?#", colours)
    assert "Accuracy 90.0 %, against 50.0 % for the baseline" in pages[0]
    for text in ("Confusion matrix", "Reliability", "alert(1)", "new.csv:11", "always fine"):
        assert text in pages[0], text
    assert f"MAE {series['mae']:.4g}" in pages[1]
    assert "<dt>loss, nats</dt>" in pages[0] and "<dt>loss, of scaled values</dt>" in pages[1]
    assert "(9\u00a0of\u00a010)" in pages[0]
    for text in ("A typical forecast", "Errors by step ahead", "value of a season ago"):
        assert text in pages[1], text
    assert Evaluation(json.loads(json.dumps(series))).page() == pages[1]


def test_what_is_wrong_is_said(
    classifier: Path, forecaster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = threefold.load(classifier)
    numbers = write(tmp_path / "n.csv", ("text", "other"), [("a", 1), ("b", 2)])
    slow = write(
        tmp_path / "s.csv", ("time", "flow", "level"), [flow(3 * n, 0.0) for n in range(60)]
    )
    for subject, data, options, message in (
        (tmp_path / "nope", None, {}, "nope: no such folder"),
        (classifier / "model", None, {}, r"give DATA as well: .*or evaluate the run"),
        (model, None, {}, "does not know its data"),
        (tmp_path, numbers, {}, "neither a run of `threefold train` nor a saved model"),
        (classifier, "nowhere.csv", {}, "nowhere.csv: file or folder not found"),
        (classifier, numbers, {}, "the column label is missing; the model was trained on text"),
        (classifier, None, {"split": "tests"}, "did you mean 'test'"),
        (classifier, None, {"stride": 2}, "stride is 2, but this is a classifier model"),
        (classifier, None, {"season": 2}, "season is 2, but this is a classifier model"),
        (forecaster, None, {"stride": 0}, "stride is 0, expected at least 1"),
        (classifier, None, {"unknown": "drop"}, "expected 'refuse' or 'skip'"),
        (classifier, None, {"settings": ["training.steps=1"]}, "only change settings of the data"),
        (forecaster, slow, {}, "s.csv: one row every 3 hours .* trained on one every 1 hour"),
        (classifier, "", {}, "DATA is empty"),
        (classifier, "recall", {}, "is a classifier model, but recall needs a"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            threefold.evaluate(subject, data, **options)


def test_data_that_moved_or_changed_are_named(classifier: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    for name in ("config.toml", "run.json", "summary.json", "model"):
        source = classifier / name
        if source.is_dir():
            (copy / name).mkdir(parents=True)
            for file in source.iterdir():
                (copy / name / file.name).write_bytes(file.read_bytes())
        else:
            copy.mkdir(exist_ok=True)
            (copy / name).write_bytes(source.read_bytes())
    path = tmp_path / "elsewhere" / "reviews.csv"
    lines = (copy / "config.toml").read_text().splitlines(keepends=True)
    assert lines[0].startswith("data_path = ")
    (copy / "config.toml").write_text("".join([f'data_path = "{path}"\n', *lines[1:]]))
    with pytest.raises(ThreefoldError, match=rf"there is no {path} and no reviews.csv"):
        threefold.evaluate(copy)
    path.parent.mkdir()
    write(path, ("text", "label"), reviews(list(WORDS), 100))
    assert "has changed since the model was trained" in threefold.evaluate(copy)["notes"][0]


def test_a_model_in_memory_and_data_in_memory(classifier: Path) -> None:
    model = threefold.load(classifier)
    texts, labels = zip(*reviews(["bad", "good"], 20), strict=True)
    values = threefold.evaluate(model, {"text": list(texts), "label": list(labels)})
    assert values["accuracy"] == 1 and values["n"] == 20
    assert not torch.is_grad_enabled() or not model.training
    assert "always bad" in repr(values)
