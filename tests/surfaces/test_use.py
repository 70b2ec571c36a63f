"""From a user's file to answers: train, save, load in another process, predict from raw input.

What the other process answers must be what training's evaluation saw: the scores of its answers on
the test split are those of the run, and every answer is that of the evaluation of the whole file.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.surfaces import own_data
from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.cli import main, output
from threefold.data.readers import read_pairs
from threefold.runtime.interrupts import Interrupts
from threefold.tasks.user_data.splits import shuffled_split, stratified_split
from threefold.training.experiment import TrainedRun

# Reads jobs (a run's folder, and inputs or the path of a file) and prints the answers.
CHILD = """
import json, sys
from pathlib import Path
import threefold
answers = []
for folder, inputs in json.load(sys.stdin):
    model = threefold.load(folder)
    read = [Path(x[5:]) if isinstance(x, str) and x.startswith("file:") else x for x in inputs]
    answers.append([list(model.predict(one)) for one in read])
json.dump(answers, sys.stdout)
"""


@dataclass(frozen=True)
class Case:
    """Data, how to train on them, and what a new process is asked."""

    data: str
    steps: int = 25
    options: dict[str, Any] = field(default_factory=dict)
    inputs: Callable[[Path], list[Any]] = lambda folder: []


def whole(name: str) -> Callable[[Path], list[Any]]:
    """The file that was trained on, as raw input."""
    return lambda folder: [f"file:{folder / name}"]


CASES = {
    "text": Case("notes.txt", 10, inputs=lambda folder: [["film 3 was"]]),
    "labels": Case("reviews.csv", inputs=lambda folder: [f"file:{folder / 'other_order.csv'}"]),
    "pairs": Case(
        "pairs.tsv",
        60,
        {"kind": "seq2seq", "settings": {"training.learning_rate": 0.01}},
        lambda folder: [[source for source, _ in read_pairs(folder / "pairs.tsv")]],
    ),
    "conll": Case("words.conll", inputs=lambda folder: [[" ".join(s) for s in _sentences()]]),
    "tagged table": Case(
        "tags.csv",
        options={"kind": "tagger", "target": "tag", "settings": {"data.group_column": "sentence"}},
        inputs=whole("tags.csv"),
    ),
    "ts": Case("shapes.ts", inputs=whole("shapes.ts")),
    "sounds": Case("sounds", inputs=whole("sounds")),
    "images": Case("images", inputs=whole("images")),
    "pictures": Case("images", 20, {"kind": "vision"}, whole("images")),
    "convolutional": Case("images", 20, {"kind": "convolutional", "mixers": None}, whole("images")),
    "swin": Case("images", 20, {"kind": "swin", "mixers": None}, whole("images")),
    "regression": Case(
        "houses.csv", 60, {"kind": "regressor", "target": "price"}, whole("houses_order.csv")
    ),
    "column": Case("flow.csv", 20, {"settings": {"data.horizon": 3}}),
    "columns": Case("sensors.csv", 60, {"target": "flow", "settings": {"data.horizon": 4}}),
    "several series": Case(
        "shops.csv", 20, {"target": "sales", "settings": {"data.series_column": "shop"}}
    ),
}
IMAGES = ("images", "pictures", "convolutional", "swin")
FORECASTS = ("column", "columns", "several series")


def _sentences() -> list[list[str]]:
    return own_data.sentences(60)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models are tiny, and threads that wait for each other are slow beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    own_data.make_files(folder)
    for name, new in (("reviews", "other_order"), ("houses", "houses_order")):
        rows = list(csv.reader((folder / f"{name}.csv").open()))
        # Other columns, in the opposite order; those of labels stay, for the scores.
        others = [["remark", *reversed(rows[0])], *(["x", *reversed(row)] for row in rows[1:])]
        own_data.write_table(folder / f"{new}.csv", others[0], others[1:])
    return folder


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, TrainedRun]:
    return {
        name: threefold.train(
            place / case.data,
            steps=case.steps,
            folder=place / "runs" / name,
            **{
                "mixers": "gru",
                **case.options,
                "settings": {"model.width": 24, "model.depth": 1, **_settings(case)},
            },
        )
        for name, case in CASES.items()
    }


def _settings(case: Case) -> dict[str, Any]:
    settings: dict[str, Any] = case.options.get("settings", {})
    return settings


@pytest.fixture(scope="module")
def answers(place: Path, runs: dict[str, TrainedRun]) -> dict[str, list[Any]]:
    """What a new process answers, for each case and input."""
    jobs = {name: case.inputs(place) for name, case in CASES.items() if name not in FORECASTS}
    jobs |= {name: histories(place, runs[name], name) for name in FORECASTS}
    request = [(str(place / "runs" / name), inputs) for name, inputs in jobs.items()]
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(request),
        text=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(jobs, json.loads(done.stdout), strict=True))


def histories(place: Path, run: TrainedRun, name: str) -> list[dict[str, list[Any]]]:
    """The rows before some windows of the test split, with the columns in the opposite order."""
    with (place / CASES[name].data).open() as file:
        rows = list(csv.DictReader(file))
    if name == "several series":
        rows = [row for row in rows if row["shop"] == "south"]
    horizon = run.model.preprocessing.horizon  # type: ignore[union-attr]
    assert horizon is not None
    first = int(len(rows) * 0.8)
    return [
        {column: [row[column] for row in rows[:end]] for column in reversed(rows[0])}
        for end in range(first, len(rows) - horizon + 1)
    ]


def test_numbers(name: str, answers: list[Any]) -> list[int]:
    """The examples of the test split: of every class, if there are classes."""
    if name in ("labels", "ts", "sounds", *IMAGES):
        splits = stratified_split(answers, ())
        assert splits is not None
        return splits["test"].tolist()
    return shuffled_split(len(answers), ())["test"].tolist()


test_numbers.__test__ = False  # type: ignore[attr-defined]


def truth(place: Path, name: str) -> list[Any]:
    """What every example of a file is labelled with, in its order."""
    if name in ("labels", "regression"):
        column = {"labels": "sentiment", "regression": "price"}[name]
        with (place / CASES[name].data).open() as file:
            return [row[column] for row in csv.DictReader(file)]
    if name in ("sounds", *IMAGES):
        return [file.parent.name for file in sorted((place / CASES[name].data).rglob("*.*"))]
    if name == "ts":
        lines = (place / "shapes.ts").read_text().split("@data\n")[1].split()
        return [line.rpartition(":")[2] for line in lines]
    if name == "pairs":
        return [target for _, target in read_pairs(place / "pairs.tsv")]
    return [[own_data.WORDS[word] for word in sentence] for sentence in _sentences()]


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("text", *FORECASTS)])
def test_answers_of_another_process_have_the_scores_of_the_run(
    name: str, place: Path, runs: dict[str, TrainedRun], answers: dict[str, list[Any]]
) -> None:
    given, expected = answers[name][0], truth(place, name)
    assert len(given) == len(expected)
    numbers = test_numbers(name, expected)
    if name == "regression":
        scores = [abs(given[n]["value"] - float(expected[n])) for n in numbers]
    elif "tags" in given[0]:
        pairs = [pair for n in numbers for pair in zip(given[n]["tags"], expected[n], strict=True)]
        scores = [float(a == b) for a, b in pairs]
    else:
        key = "text" if name == "pairs" else "label"
        scores = [float(given[n][key] == expected[n]) for n in numbers]
    assert np.mean(scores) == pytest.approx(runs[name].summary["test"]["metric"], rel=1e-5)
    assert name == "sounds" or runs[name].summary["test"]["metric"] != runs[name].summary["chance"]


@pytest.mark.parametrize("name", ["labels", "ts", "sounds", "images"])
def test_probabilities_are_those_of_the_evaluation(
    name: str, place: Path, runs: dict[str, TrainedRun], answers: dict[str, list[Any]]
) -> None:
    from threefold.tasks.user_data import user_task

    model = runs[name].model
    task = user_task(place / CASES[name].data, preprocessing=model.preprocessing, split=False)
    rows = task.rows("test", range(task.size("test")))
    with torch.no_grad():
        expected = model(rows.inputs, mask=rows.mask)[0].softmax(-1)
    names = model.preprocessing.labels  # type: ignore[union-attr]
    given = [[answer["probabilities"][label] for label in names] for answer in answers[name][0]]
    assert_close(torch.tensor(given, dtype=torch.float32), expected)


@pytest.mark.parametrize("name", FORECASTS)
def test_forecasts_of_new_rows_have_the_error_of_the_evaluation(
    name: str, place: Path, runs: dict[str, TrainedRun], answers: dict[str, list[Any]]
) -> None:
    run, target = runs[name], {"several series": "sales"}.get(name, "flow")
    with (place / CASES[name].data).open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("shop", "south") == "south"]
    values = [float(row[target]) for row in rows]
    first = int(len(values) * 0.8)
    errors = [
        abs(answer[target] - values[first + number + step])
        for number, given in enumerate(answers[name])
        for step, answer in enumerate(given)
    ]
    expected = run.summary["test"]["metric"]
    if name == "several series":  # training reports deviations, over both series
        expected = _error_of_one_series(run, place)
    assert np.mean(errors) == pytest.approx(expected, rel=1e-4)
    # Time stamps go on as the file has them, and quantiles surround the forecast of most steps.
    last = answers[name][-1][0]
    assert {f"{target}_q0.1", f"{target}_q0.9"} <= set(last)
    if name == "columns":
        horizon = run.model.preprocessing.horizon  # type: ignore[union-attr]
        assert last["time"] == rows[len(rows) - horizon]["time"]


def _error_of_one_series(run: TrainedRun, place: Path) -> float:
    from threefold.tasks.user_data import ReadSettings, user_task

    settings = ReadSettings(target="sales", series_column="shop")
    task = user_task(place / "shops.csv", settings)
    windows = task.size("test") // 2
    rows = task.rows("test", range(windows, 2 * windows))
    model: Any = run.model
    with torch.no_grad():
        forecast = model.point_forecast(model.respond(rows.inputs, last=True)[0])
    scale = model.preprocessing.of_series("south").outputs.steps[0].deviation[0]
    return float((forecast.reshape(rows.targets.shape) - rows.targets).abs().mean()) * scale


def test_a_language_model_continues_as_in_the_process_that_trained_it(
    runs: dict[str, TrainedRun], answers: dict[str, list[Any]]
) -> None:
    expected = threefold.generate(runs["text"].model, "film 3 was", max_tokens=128, temperature=0.0)
    assert answers["text"][0] == [{"text": expected.text}]


@pytest.mark.parametrize("name", ["labels", "conll", "regression"])
def test_answers_do_not_depend_on_the_batch(
    name: str, place: Path, runs: dict[str, TrainedRun]
) -> None:
    model = runs[name].model
    inputs = {
        "labels": [text for text, _ in own_data.reviews(20)],
        "conll": [" ".join(sentence) for sentence in _sentences()[:20]],
        "regression": np.random.default_rng(0).random((20, 3)) * 50,
    }[name]
    alone, together = (model.predict(inputs, batch_size=size) for size in (1, 20))
    if name == "conll":
        assert alone == together
        return
    key = "probability" if name == "labels" else "value"
    numbers = [torch.tensor([row[key] for row in rows]) for rows in (alone, together)]
    assert_close(numbers[0].float(), numbers[1].float())


# ------------------------------------------------------------------------------ commands


def command(*arguments: object) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return int(ended.value.code or 0)


def test_predict_prints_and_writes(
    place: Path, runs: dict[str, TrainedRun], tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    folder = place / "runs" / "labels"
    texts = ["film 3 was great", "awful, just awful"]
    assert command("predict", folder, *texts, "--json") == 0
    given = json.loads(capsys.readouterr().out)
    answers = threefold.predict(folder, texts)
    assert given == answers.to_json() and [row["text"] for row in given] == texts
    assert [{key: row[key] for key in answers[0]} for row in given] == answers
    assert set(answers[0]) == {"label", "probability", "probabilities"}
    assert command("predict", folder, "great", "--attention", tmp_path / "a.svg") == 2
    assert "no layer of this model has attention weights" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()
    monkeypatch.setattr("sys.stdin", Stdin(b"great\n\nawful\n"))
    assert command("predict", folder, "-") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["input", "text", "prediction"]
    assert [row.split()[2] for row in rows] == ["great", "awful"]
    monkeypatch.setattr("sys.stdin", Stdin((place / "houses.csv").read_bytes()))
    assert command("predict", place / "runs" / "regression", "-", "--json") == 0
    last = json.loads(capsys.readouterr().out)[149]
    assert list(last) == ["input", "rooms", "area", "age", "price", "value"]


def test_answers_stand_beside_the_rows_they_belong_to(
    place: Path, runs: dict[str, TrainedRun], tmp_path: Path, capsys: Any
) -> None:
    """One rule for .csv, .jsonl and the table: input, own columns, prediction; --json nests it."""
    folder, table = place / "runs" / "labels", tmp_path / "mine.csv"
    rows = [("007", "great", "a, b"), ("008", "awful", "")]
    own_data.write_table(table, ("id", "review", "prediction"), rows)
    for name in ("x.csv", "x.jsonl"):
        assert command("predict", folder, table, "--output", tmp_path / name) == 0
    capsys.readouterr()
    assert command("predict", folder, table, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    with (tmp_path / "x.csv").open() as file:
        written = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    nested = ("label", "probability", "probabilities")
    answers = [{name: row.pop(name) for name in nested} for row in printed]
    own = [(f"{table}:{line}", *row) for line, row in enumerate(rows, 2)]
    assert [tuple(row.values()) for row in printed] == own
    assert list(printed[0]) == ["input", "id", "review", "prediction"]
    assert [answer["label"] for answer in answers] == [row["prediction"] for row in lines]
    assert [{k: str(v) for k, v in row.items()} for row in lines] == written
    names = ["input", "id", "review", "input_prediction", "prediction", "probability"]
    assert list(written[0]) == [*names, "probability_negative", "probability_positive"]
    assert [row["input"] for row in written] == [f"{table}:2", f"{table}:3"]
    assert [tuple(row.values())[1:4] for row in written] == rows
    assert command("predict", folder, table) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == list(written[0])


def test_answers_of_taggers_have_a_row_per_word_in_tables(
    place: Path, runs: dict[str, TrainedRun], tmp_path: Path
) -> None:
    tagged = tmp_path / "t.csv"
    assert command("predict", place / "runs" / "conll", "the dog", "--output", tagged) == 0
    with tagged.open() as file:
        assert [tuple(row.values())[1:] for row in csv.DictReader(file)] == [
            ("1", "the", "D"),
            ("2", "dog", "N"),
        ]
    words = {"word": ["the", "dog", "eats"], "sentence": ["a", "a", "b"], "at": [0, 4, 0]}
    answers = threefold.predict(place / "runs" / "tagged table", words)
    assert [record["sentence"] for record in answers.records()] == ["a", "b"]
    assert [(row["at"], row["word"]) for row in answers.table()] == [
        (0, "the"),
        (4, "dog"),
        (0, "eats"),
    ]
    assert {tuple(row) for row in answers.table()} == {
        ("input", "sentence", "element", "word", "at", "prediction")
    }


class Stdin:
    """Standard input with some bytes."""

    def __init__(self, content: bytes) -> None:
        import io

        self.buffer = io.BytesIO(content)


def test_forecast_beyond_the_trained_horizon_is_told(
    place: Path, runs: dict[str, TrainedRun], tmp_path: Path, capsys: Any
) -> None:
    folder, plot = place / "runs" / "columns", tmp_path / "f.svg"
    history = place / "sensors.csv"
    assert command("forecast", folder, history, "--horizon", "9", "--plot", plot, "--json") == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert set(rows[0]) == {"step", "time", "flow", "flow_q0.1", "flow_q0.9"}
    assert rows[0]["time"] == "2024-01-17 16:00" and "trained to forecast 4 steps" in err
    drawn = plot.read_text()
    assert drawn.startswith("<svg") and ">17 Jan" in drawn and "steps from" not in drawn
    assert rows[:4] == list(threefold.predict(folder, history))


def test_the_whole_plan_is_told_before_training(place: Path, capsys: Any) -> None:
    arguments = (place / "sensors.csv", "--target", "flow", "--horizon", 4)
    small = ("--set", "model.width=16", "--set", "model.depth=1", "--steps", 2)
    assert command("data", "check", *arguments) == 0
    check = capsys.readouterr().out
    assert command("train", *arguments, *small, "--dry-run") == 0
    plan = capsys.readouterr().out
    for fact in ("kind", "target", "inputs", "horizon", "time", "split"):
        line = next(line for line in check.splitlines() if line.startswith(f"{fact} "))
        assert line.split(maxsplit=1)[1] in plan
    assert "--series-column" in check and "--series-column" in plan
    assert command("data", "check", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "forecaster"


# ------------------------------------------------------------------------------- bad input


BAD_INPUTS = [
    ("labels", "empty.csv", "empty.csv:2: the input is empty"),
    ("conll", "reviews.csv", "trained on texts that were not in a table"),
    ("labels", "sensors.csv", "the column review is missing; the model was trained on review"),
    ("columns", "flow.csv", "the columns pressure, time are missing; the model was trained on"),
    ("columns", "broken.csv", "broken.csv:3: flow is 'broken'; expected a number"),
    ("columns", "slow.csv", "one row every 3 hours .* trained on one every 1 hour"),
    ("regression", "reviews.csv", "the columns rooms, area, age are missing"),
    ("sounds", "fast.wav", "16000 samples per second, but the model was trained on 8000"),
    ("images", "large.png", "9 × 5 pixels, but the model was trained on 4 × 5"),
    ("ts", "reviews.csv", "trained on sequences that were not in a table"),
    ("ts", "two.ts", r"two.ts, series 1: has the shape \(3, 2\), .* of 1 numbers per element"),
    ("sounds", "images", "trained on sounds, not .*images"),
    ("images", "nothing.png", "nothing.png: file or folder not found"),
]


@pytest.mark.parametrize(("name", "file", "message"), BAD_INPUTS)
def test_new_data_that_do_not_fit_are_refused_in_one_message(
    name: str,
    file: str,
    message: str,
    place: Path,
    runs: dict[str, TrainedRun],
    tmp_path: Path,
    capsys: Any,
) -> None:
    _write_bad_inputs(place)
    verb = "forecast" if name == "columns" else "predict"
    output = tmp_path / "out.csv"
    assert command(verb, place / "runs" / name, place / file, "--output", output) == 2
    error = capsys.readouterr().err
    with pytest.raises(ThreefoldError, match=message):
        raise ThreefoldError(error)
    assert error.count("\n") == 1 and not output.exists()


def _write_bad_inputs(place: Path) -> None:
    from PIL import Image

    rows = [list(row) for row in own_data.series(60)]
    header = ("time", "flow", "pressure")
    own_data.write_table(place / "slow.csv", header, rows[::3])
    rows[1][1] = "broken"
    own_data.write_table(place / "broken.csv", header, rows)
    (place / "two.ts").write_text("@univariate false\n@classLabel true up\n@data\n1,2,3:4,5,6:up\n")
    own_data.write_table(place / "empty.csv", ("review", "n"), [("", 1), ("", 2)])
    own_data.write_sound(place / "fast.wav", np.zeros(100), 16_000)
    Image.fromarray(np.zeros((5, 9), "uint8")).save(place / "large.png")


def test_folders_without_a_model(place: Path, runs: dict[str, TrainedRun], capsys: Any) -> None:
    (place / "started").mkdir()
    (place / "started" / "config.toml").touch()
    for folder, message in (
        ("nothing", "folder not found"),
        ("started", "has not saved its model yet"),
        ("sounds", "config.json: file not found; expected a folder written by"),
    ):
        assert command("predict", place / folder, "x") == 2
        assert message in capsys.readouterr().err
    for arguments, message in (
        (("x", "--output", place / "reviews.csv"), "exists already"),
        (("x", "--output", place / "x.txt"), "expected a name that ends in .csv or .jsonl"),
        (("missing.csv",), "missing.csv: file or folder not found"),
    ):
        assert command("predict", place / "runs" / "labels", *arguments) == 2
        assert message in capsys.readouterr().err


# ------------------------------------------------------------------------------- in Python


def _frame(kind: str, columns: dict[str, Any]) -> Any:
    return pytest.importorskip(kind, reason=f"{kind} is not installed").DataFrame(columns)


SMALL: dict[str, Any] = {
    "mixers": "gru",
    "steps": 15,
    "settings": {"model.width": 24, "model.depth": 1},
}


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_data_frames(kind: str) -> None:
    rows = own_data.reviews(80)
    columns = {"review": [text for text, _ in rows], "sentiment": [label for _, label in rows]}
    run = threefold.train(_frame(kind, columns), **SMALL)
    new = _frame(kind, {"other": [1, 2], "review": ["great", "awful"]})
    answers = run.model.predict(new)
    assert answers == run.model.predict(["great", "awful"])
    assert set(answers[0]["probabilities"]) == {"positive", "negative"}
    if kind == "pandas":
        assert list(answers.to_pandas()["prediction"]) == [answer["label"] for answer in answers]


def test_texts_arrays_and_mappings() -> None:
    texts, labels = zip(*own_data.reviews(80), strict=True)
    run = threefold.train((list(texts), list(labels)), **SMALL)
    assert run.model.predict(["wonderful"])[0]["label"] in ("positive", "negative")
    assert [row["step"] for row in run.history] == list(range(1, 16))
    assert run.plot().startswith("<svg")
    text = threefold.train(list(texts), **SMALL)
    assert len(threefold.generate(text.model, "film 3", max_tokens=5).text) > 0
    draw = np.random.default_rng(0).normal(size=(60, 8, 2))
    several = threefold.train((draw, draw.sum(1)), **SMALL)
    assert set(several.model.predict(draw[:1])[0]) == {"value_1", "value_2"}
    waves = np.sin(np.arange(200) / 3)
    series = threefold.train(waves, **SMALL)
    columns = threefold.train({"a": waves, "b": waves**2}, target="a", **SMALL)
    assert set(series.model.predict(waves)[0]) == {"step", "c1", "c1_q0.1", "c1_q0.9"}
    assert "a_q0.9" in columns.model.predict({"b": waves**2, "a": waves})[0]
    for data in (None, 3, [], [1, 2]):
        with pytest.raises(ThreefoldError, match="expected a path, a task's name"):
            threefold.train(data, **SMALL)


def test_options_of_the_data_are_keywords() -> None:
    waves, names = np.sin(np.arange(240) / 3), ["a", "b"] * 120
    hours = [f"2024-01-{1 + i // 48:02} {i // 2 % 24:02}:00" for i in range(240)]
    data = {0: waves, "y": waves**2, "n": waves**3, "name": names, "t": hours}
    options = {"series_column": "name", "time_column": "t", "horizon": 3}
    run = threefold.train(data, target=[0, "y"], features=["n"], **options, **SMALL)
    preprocessing = run.model.preprocessing
    roles = preprocessing.roles
    assert (roles.targets, roles.features, preprocessing.horizon) == (("0", "y"), ("n",), 3)
    assert (roles.series, roles.time) == ("name", "t")
    series = {"series_column": "name", **SMALL}
    assert threefold.train(data, target=0, **series).model.preprocessing.roles.targets == ("0",)
    with pytest.raises(ThreefoldError, match="no column 'a,b'"):
        threefold.train(data, target="y", features=["a,b"], **series)


def test_inputs_longer_than_those_of_training_are_told() -> None:
    texts, labels = zip(*own_data.reviews(60), strict=True)
    settings = {**SMALL["settings"], "data.length": 30}
    run = threefold.train((list(texts), list(labels)), **{**SMALL, "settings": settings})
    answers = run.model.predict(["great", "x" * 31])
    assert "1 inputs are longer than the 30 elements" in answers.notes[0]
    assert run.model.predict(["great", "x" * 30]).notes == []


def test_attention_weights_reproduce_the_layer(place: Path, tmp_path: Path) -> None:
    options = {**SMALL, "mixers": "gru+attention", "steps": 5}
    settings = {**options["settings"], "model.depth": 2}
    run = threefold.train(place / "reviews.csv", **{**options, "settings": settings})
    weights = threefold.attention_weights(run.model, "a great film")
    assert list(weights.layers) == ["1"] and weights.keys == list("a great film")
    table = weights.layers["1"]
    assert_close(table.sum(-1), torch.ones(table.shape[:2]))
    assert not table.triu(1).any()  # it looks back only
    weights.draw(tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    for options in ({}, {"window": 3}, {"positions": "alibi"}, {"causal": False}):
        mixer: Any = threefold.mixer("attention", width=32, heads=2, groups=1, **options).eval()
        x = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            value = mixer.heads(mixer.positions(x, torch.zeros(1).long(), None))[2]
            read = torch.einsum("bhls,bskv->blhv", mixer.weights(x), value)
            assert_close(mixer.heads.join(read), mixer(x)[0])
    spec = {"attention": "bahdanau"}
    pairs = threefold.train(
        place / "pairs.tsv",
        kind="seq2seq",
        mixers="gru",
        steps=5,
        settings={"model.width": 16, "model.depth": 1, "model.options": spec},
    )
    aligned = threefold.attention_weights(pairs.model, "one two")
    shape = (1, len(aligned.queries), len(aligned.keys))
    assert aligned.layers["decoder"].shape == shape


# ------------------------------------------------------------------------------ interrupts

INTERRUPTED_IMPORT = """
import os, signal, sys
from threefold.cli import main

module, number = sys.argv[1:3]
del sys.argv[1:3]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), getattr(signal, number))

sys.meta_path.insert(0, Interrupting())
main()
"""


@pytest.mark.parametrize("module", ["typer", "torch.functional", "threefold.models.files"])
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_while_a_command_starts_ends_it_without_a_traceback(
    module: str, number: str
) -> None:
    words = ["forecast", "nothing", "x y"]
    arguments = [sys.executable, "-c", INTERRUPTED_IMPORT, module, number, *words]
    done = subprocess.run(arguments, capture_output=True, text=True)
    said = "Error: interrupted; to run it again: threefold forecast nothing 'x y'\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


@pytest.mark.parametrize("where", ["Race._plan", "Race._train_all", "measure_costs"])
def test_a_race_that_is_interrupted_says_how_to_go_on(
    where: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"threefold.lab.race.race.{where}", interrupted)
    words = ["compare", "recall", "--mixers", "gru,rnn", "--time", "1steps", "--seeds", "2"]
    words += ["--width", "16", "--depth", "1", "--folder", str(tmp_path / "race")]
    assert command(*words) == 130
    assert capsys.readouterr().err.endswith(
        "Error: interrupted; finished runs are kept; to run it again: threefold "
        f"{shlex.join(words)}\n"
    )


def test_a_run_on_a_relative_path_resumes_from_another_folder(
    place: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    from threefold.training.loop import Trainer

    step = Trainer.step

    def interrupt(trainer: Trainer, *arguments: Any) -> Any:
        if trainer.result.steps == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return step(trainer, *arguments)

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "reviews.csv").write_bytes((place / "reviews.csv").read_bytes())
    monkeypatch.chdir(tmp_path)
    train = ["train", "data/reviews.csv", "--mixers", "gru", "--size", "tiny", "--steps", 3]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupt)
        assert command(*train, "--folder", "run") == 130
    monkeypatch.chdir(tmp_path / "data")
    assert command("resume", tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 3
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "data" / "reviews.csv").unlink()
    capsys.readouterr()
    assert command("resume", tmp_path / "run") == 2
    assert f"was trained on data/reviews.csv, but there is no {tmp_path}/data/reviews.csv" in (
        capsys.readouterr().err
    )


def test_an_interrupted_study_ends(capsys: Any, monkeypatch: Any) -> None:
    from threefold.training.loop import Trainer

    step = Trainer.step

    def interrupt(trainer: Trainer, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "step", interrupt)
    assert command("lab", "delay", "--elements", "4") == 130
    assert "Error: stopped after step 1; to run it again: threefold lab delay --elements 4" in (
        capsys.readouterr().err
    )


def test_a_second_ctrl_c_says_what_is_left(
    place: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("threefold.training.experiment.run", interrupted)
    train = ["train", place / "notes.txt", "--mixers", "gru", "--size", "tiny", "--steps", 1]
    assert command(*train, "--folder", tmp_path) == 130
    assert "nothing is left to resume" in capsys.readouterr().err
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    assert command(*train, "--folder", tmp_path) == 130
    assert f"threefold resume {tmp_path}" in capsys.readouterr().err


def test_a_signal_that_nobody_saw_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    with Interrupts() as outer:
        with Interrupts() as seen:
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen.asked
        assert not outer.asked
        with Interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
        assert outer.asked


@pytest.mark.parametrize("name", ["labels", "sounds", "columns"])
def test_an_empty_argument_is_not_the_current_folder(
    name: str, place: Path, runs: dict[str, TrainedRun], capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(place)
    assert command("predict", place / "runs" / name, "") == 2
    assert "input 1 is empty" in capsys.readouterr().err
    if name == "sounds":
        with pytest.raises(ThreefoldError, match="an input is empty"):
            threefold.predict(place / "runs" / name, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_predict_says_that_nothing_was_written(
    number: int,
    place: Path,
    runs: dict[str, TrainedRun],
    tmp_path: Path,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    def show(meter: Any, done: int, total: int) -> None:
        os.kill(os.getpid(), number)

    monkeypatch.setattr("threefold.data.progress.CountMeter.show", show)
    words = ["predict", place / "runs" / "labels", place / "reviews.csv", "--batch-size", 40]
    words += ["--output", tmp_path / "o.csv"]
    assert command(*words) == 130
    assert capsys.readouterr().err == (
        "Error: stopped after 40 of 120 inputs; nothing was written; to run it again: threefold "
        f"{shlex.join(map(str, words))}\n"
    )
    assert not (tmp_path / "o.csv").exists()


def test_missing_numbers_are_told_with_the_answers(runs: dict[str, TrainedRun]) -> None:
    rows = {"age": [5, 7], "rooms": [3, None], "area": [50, 1e20]}
    answers = runs["regression"].model.predict(rows)
    assert len(answers) == 2 and len(answers.notes) == 1
    assert (
        "missing or absurd in 1 inputs (rooms 1, area 1; the first: dict, row 2)"
        in (answers.notes[0])
    )
    assert not runs["regression"].model.predict({"age": [5], "rooms": [3], "area": [50]}).notes


def test_an_empty_text_has_an_empty_answer(
    place: Path, runs: dict[str, TrainedRun], tmp_path: Path, capsys: Any
) -> None:
    rows = [("great film", "positive"), ("", "negative"), ("sad film", "negative")]
    table = tmp_path / "new.csv"
    own_data.write_table(table, ("review", "sentiment"), rows)
    assert command("predict", place / "runs/labels", table, "--output", tmp_path / "out.csv") == 0
    assert "new.csv:3 is empty; its answer is left empty" in capsys.readouterr().err
    written = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [bool(row["prediction"]) for row in written] == [True, False, True]
    model = runs["labels"].model
    answers = model.predict(["great film", None, "sad film"])
    empty = {"negative": None, "positive": None}
    assert answers[1] == {"label": None, "probability": None, "probabilities": empty}
    assert [answers[0], answers[2]] == list(model.predict(["great film", "sad film"]))
    assert answers.notes == ["input 2 is empty; its answer is left empty"]
    assert runs["conll"].model.predict(["", "the dog"])[0] == {"words": [], "tags": []}
    values = threefold.evaluate(runs["labels"], table)
    assert values["n"] == 2 and "rows without a text are left out: 1" in values["notes"][0]


def _write_tone(path: Path, pitch: float, rate: int, noise: float = 100) -> Path:
    draw = np.random.default_rng(round(pitch))
    path.parent.mkdir(parents=True, exist_ok=True)
    waves = np.sin(2 * np.pi * pitch * np.arange(rate // 4) / rate + draw.random())
    samples = draw.uniform(3000, 15000) * waves + noise * draw.normal(size=len(waves))
    own_data.write_sound(path, samples, rate)
    return path


@pytest.mark.parametrize("rate", [8000, 16000])
def test_tones_are_told_apart_by_their_pitch(rate: int, tmp_path: Path) -> None:
    pitches = {"low": np.linspace(100, 300, 20), "high": np.linspace(800, 1600, 20)}
    for label, tones in pitches.items():
        for pitch in tones:
            _write_tone(tmp_path / "tones" / label / f"{pitch:.0f}.wav", float(pitch), rate)
    settings = {"model.width": 32, "model.depth": 1, "training.learning_rate": 0.01}
    trained = threefold.train(tmp_path / "tones", mixers="gru", steps=12, settings=settings)
    new = {pitch: _write_tone(tmp_path / f"{pitch}.wav", pitch, rate) for pitch in (160, 240, 900)}
    new[1300] = _write_tone(tmp_path / "clean.wav", 1300, rate, noise=0)
    new[210] = _write_tone(tmp_path / "clean_low.wav", 210, rate, noise=0)
    answers = trained.model.predict(list(new.values()))
    assert [a["label"] for a in answers] == ["low" if pitch < 500 else "high" for pitch in new]
    data = new[160].read_bytes()  # a stream of samples ends with the answer to the whole sound
    parts = threefold.stream(trained.model, [data[:999], data[999:1500], data[1500:]])
    last = [row for part in parts for row in part.rows()][-1]
    assert last["label"] == "low" and last["seconds"] == pytest.approx(0.22, abs=0.01)
    assert last["probability"] == pytest.approx(answers[0]["probability"], rel=1e-5)


def test_a_tagged_file_is_read_without_its_tags(
    place: Path, runs: dict[str, TrainedRun], answers: dict[str, list[Any]]
) -> None:
    again = runs["conll"].model.predict(place / "words.conll")
    assert [answer["words"] for answer in again] == _sentences()
    assert list(again) == answers["conll"][0]


def test_inputs_that_cannot_be_read_are_named(place: Path, runs: dict[str, TrainedRun]) -> None:
    with pytest.raises(ThreefoldError, match="the inputs are None; expected one input"):
        runs["labels"].model.predict(None)
    with pytest.raises(ThreefoldError, match=r"trained on sounds, not array.*Sound\(samples, rate"):
        runs["sounds"].model.predict(np.zeros(4))
    with pytest.raises(ThreefoldError, match=r"images: contains images, .* trained on sounds"):
        threefold.evaluate(runs["sounds"], place / "images")
    for name, trained in (
        ("sounds", "sounds"),
        ("images", "images"),
        ("ts", "sequences of numbers"),
        ("conll", "tagged words"),
        ("pairs", "texts"),
    ):
        message = f"houses.csv: a table, but the model was trained on {trained} that were not"
        with pytest.raises(ThreefoldError, match=message):
            threefold.evaluate(runs[name], place / "houses.csv")


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_too_few_to_show_a_step_go_on_in_that_of_training(
    rows: int, runs: dict[str, TrainedRun]
) -> None:
    columns = zip(*own_data.series(30)[:: rows + 1][:rows], strict=True)
    history = dict(zip(("time", "flow", "pressure"), map(list, columns), strict=True))
    last = int(history["time"][-1][11:13])
    answers = runs["columns"].model.predict(history, horizon=2)
    assert [answer["time"] for answer in answers] == [
        f"2024-01-01 {last + step:02d}:00" for step in (1, 2)
    ]


def test_an_empty_target_is_named(place: Path, runs: dict[str, TrainedRun]) -> None:
    with (place / "sensors.csv").open() as file:
        rows = [(row["time"], "", row["pressure"]) for row in csv.DictReader(file)]
    own_data.write_table(place / "untold.csv", ("time", "flow", "pressure"), rows)
    with pytest.raises(ThreefoldError, match="the target flow has no usable number in 400 rows"):
        threefold.evaluate(runs["columns"], place / "untold.csv")


def test_errors_of_several_targets_have_their_own_units(place: Path, capsys: Any) -> None:
    settings = ["--set", "model.width=16", "--set", "model.depth=1", "--mixers", "gru"]
    limits = ["--steps", "5", "--target"]
    for data, kind, targets in (
        ("houses.csv", ["--kind", "regressor"], ("price", "age")),
        ("sensors.csv", ["--horizon", "2"], ("flow", "pressure")),
    ):
        folder = place / "runs" / f"two {data}"
        train = ["train", place / data, *kind, *settings, *limits, ",".join(targets)]
        assert command(*train, "--folder", folder) == 0
        told = capsys.readouterr().out
        assert command("evaluate", folder, "--json") == 0
        values = json.loads(capsys.readouterr().out)
        errors = values.get("outputs") or values["by_target"]
        summary = json.loads((folder / "summary.json").read_text())
        for name in targets:
            assert summary["by_target"][name] == pytest.approx(errors[name]["mae"], rel=1e-4)
            naive = errors[name].get("baseline") or errors[name]["baselines"]["last value"]
            assert summary["chance_by_target"][name] == pytest.approx(naive["mae"], rel=1e-4)
        first = output.scores_text(summary, "test")
        assert first in told and f"absolute_error {targets[0]} " in first
        assert f", {targets[1]} " in first and output.chance_text(summary) in told
        assert command("evaluate", folder) == 0
        shown = capsys.readouterr().out
        assert "absolute error" not in shown and all(name in shown for name in targets)
        page = threefold.evaluate(folder).page()
        if "outputs" in values:
            assert re.search(r"<h1>MAE [\d,.]+ of price, [\d,.]+ of age</h1>", page)
            assert "Answers and targets: age" in page  # and inputs are named
            assert re.search(r'<td class="text">rooms \d, area [\d.]+</td>', page)


def test_a_forecast_needs_a_past_and_has_an_end(place: Path, runs: dict[str, TrainedRun]) -> None:
    folder, columns = place / "runs" / "columns", ("time", "flow", "pressure")
    rows = dict(zip(columns, map(list, zip(*own_data.series(60), strict=True)), strict=True))
    with pytest.raises(ThreefoldError, match="horizon is 100,000,000; expected 1 to 10,000 steps"):
        threefold.predict(folder, rows, horizon=100_000_000)
    nothing: list[Any] = [None] * 60
    for name in columns[1:]:
        with pytest.raises(ThreefoldError, match=f"column {name} has no usable number in any"):
            threefold.predict(folder, {**rows, name: nothing})
    far = {**rows, "flow": [1e12 + n for n in range(60)]}
    with pytest.raises(
        ThreefoldError, match=r"between 1e\+12 and 1e\+12, which is more than 10,000"
    ):
        threefold.predict(folder, far)
    late = {**rows, "flow": rows["flow"][:10] + nothing[10:]}
    with pytest.raises(ThreefoldError, match="column flow has no usable number in the last"):
        threefold.predict(folder, late)
    partly = threefold.predict(folder, {**rows, "pressure": [*rows["pressure"][:58], None, None]})
    assert any("(pressure 2), and were replaced" in note for note in partly.notes)
    assert not threefold.predict(folder, rows).notes
