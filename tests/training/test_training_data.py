"""A model can be trained on every task and on every kind of user file."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threefold.errors import AmbiguousError, ThreefoldError
from threefold.tasks.table import GENERATED, TASKS
from threefold.training.config import RunConfig
from threefold.training.experiment import evaluate_split, run
from threefold.training.preparation import prepare
from threefold.training.training_data import open_data, sample

SHORT: dict[str, dict[str, Any]] = {
    "selective_copying": {"length": 64},
    "listops": {"lengths": (8, 16), "depth": 2},
    "pathfinder": {"size": 16},
    "pathfinder128": {"size": 16},
    "modular_arithmetic": {},
}


def config(name: str, **changes: Any) -> RunConfig:
    data = {"name": name, "batch_size": 2, "eval_examples": 2, **changes}
    model = {"mixers": "min_gru", "width": 16, "depth": 1}
    return RunConfig.read({"data": data, "model": model, "training": {"steps": 2, "eval_every": 1}})


@pytest.mark.parametrize("name", [name for name, card in TASKS.items() if card.where == GENERATED])
def test_every_generated_task_can_be_trained_on(name: str) -> None:
    run_config = config(name, options=SHORT.get(name, {}))
    trained = run(run_config, test=False)
    assert trained.result.steps == 2
    assert all(np.isfinite(evaluate_split(open_data(run_config.data), trained.model, "test")))


def test_translators_are_evaluated_by_the_metric_of_their_task(tmp_path: Path) -> None:
    words = "".join(f"{a}{b}{c} AE1 B\n" for a in "abcdefgh" for b in "aeiou" for c in "xyz")
    (tmp_path / "cmudict.dict").write_text(words)
    short = config("phonemes", options={"folder": str(tmp_path)}, batch_size=8, eval_examples=None)
    training = short.training.model_copy(update={"steps": 60, "learning_rate": 0.01})
    longer = short.model_copy(update={"training": training})
    assert open_data(longer.data).metric == "phoneme_error"
    before, after = run(short).test, run(longer).test
    assert before is not None and after is not None
    assert after.metric == 0 < before.metric  # every word has the same pronunciation


def rows(count: int, length: int = 12) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(count, length, 2))


def make(kind: str, folder: Path) -> Path:
    """A small file or folder of each kind."""
    path = folder / kind
    if kind == "notes.txt":
        path.write_text("so much depends upon a red wheel barrow\n" * 200)
    elif kind == "books":
        path.mkdir()
        for name in ("a.txt", "b.md"):
            (path / name).write_text("glazed with rain water beside the white chickens\n" * 100)
    elif kind == "mails.csv":
        lines = [f"dear sir {i},{'good' if i % 2 else 'bad'}" for i in range(40)]
        path.write_text("\n".join(["text,label", *lines]))
    elif kind == "mails.jsonl":
        lines = [json.dumps({"text": f"mail {i}", "label": i % 3}) for i in range(40)]
        path.write_text("\n".join(lines))
    elif kind == "sensors.csv":
        lines = [f"{np.sin(i / 5):.4f},{i % 7}" for i in range(400)]
        path.write_text("\n".join(["demand,day", *lines]))
    elif kind == "verses.tsv":
        path.write_text("\n".join(f"word {i}\tWort {i}" for i in range(40)))
    elif kind == "shapes.ts":
        head = "@problemName shapes\n@classLabel true a b\n@data\n"
        lines = [
            ":".join(",".join(f"{v:.3f}" for v in channel) for channel in row.T) + f":{'ab'[i % 2]}"
            for i, row in enumerate(rows(30))
        ]
        path.write_text(head + "\n".join(lines))
    else:  # words
        for label in ("yes", "no"):
            (path / label).mkdir(parents=True)
            for i in range(8):
                with wave.open(str(path / label / f"{i}.wav"), "wb") as file:
                    file.setparams((1, 2, 800, 0, "NONE", ""))
                    file.writeframes((1000 * rows(1, 50)[0, :, 0]).astype("<i2").tobytes())
    return path


USER_FILES = {
    "notes.txt": "language",
    "books": "language",
    "mails.csv": "classifier",
    "mails.jsonl": "classifier",
    "sensors.csv": "forecaster",
    "verses.tsv": "seq2seq",
    "shapes.ts": "classifier",
    "words": "classifier",
}


@pytest.mark.parametrize(("name", "kind"), USER_FILES.items())
def test_every_kind_of_user_file_can_be_trained_on(name: str, kind: str, tmp_path: Path) -> None:
    path = make(name, tmp_path)
    changes: dict[str, Any] = {"length": 16} if kind in ("language", "forecaster") else {}
    if kind == "seq2seq":
        changes = {"kind": "seq2seq", "vocabulary": 300}
    if name == "sensors.csv":
        changes["target"] = "demand"
    if name == "mails.jsonl":  # numbers may be classes or quantities
        changes["kind"] = "classifier"
    run_config = config(str(path), **changes)
    prepared = prepare(run_config)
    assert prepared.model.spec.kind == kind == prepared.data.task.kind
    trained = run(run_config, tmp_path / "run", prepared=prepared)
    assert trained.test is not None and np.isfinite(trained.test.loss)
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_a_changed_file_is_refused_by_name(tmp_path: Path) -> None:
    path = make("notes.txt", tmp_path)
    run_config = config(str(path), length=16)
    run(run_config, tmp_path / "run")
    path.write_text(path.read_text().replace("red", "RED"))
    with pytest.raises(ThreefoldError, match=r"data file notes\.txt was"):
        run(run_config, tmp_path / "run")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("short", "are too few"),
    ],
)
def test_text_that_is_too_short(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(ThreefoldError, match=message):
        open_data(str(path))


def test_unsuitable_data_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match="a task has this name; did you mean 'copying'"):
        open_data("copyin")
    with pytest.raises(ThreefoldError, match="has no option 'lenght'"):
        open_data("copying", options={"lenght": 3})
    table = tmp_path / "t.csv"
    table.write_text("a,b\nx,y\nz,w\n")
    with pytest.raises(AmbiguousError, match='kind="seq2seq", features="a", target="b"'):
        open_data(str(table))
    run_config = RunConfig.read({"data": {"name": "copying"}, "model": {"mixers": "fnet"}})
    with pytest.raises(ThreefoldError, match="sees later tokens"):
        prepare(run_config)
    with pytest.raises(ThreefoldError, match="carry_state needs a stream"):
        open_data("copying").batches(carry=True)


def test_a_limited_evaluation_is_a_fixed_sample_of_all() -> None:
    """Not the first ones: many files are sorted by class."""
    indices = sample(1000, 50)
    assert np.array_equal(indices, sample(1000, 50))
    assert len(set(indices.tolist())) == 50
    assert indices.min() < 200 and indices.max() > 800
    assert np.array_equal(sample(10, 0), np.arange(10))
    assert np.array_equal(sample(10, 20), np.arange(10))


def test_sentences_come_in_buckets_of_similar_lengths(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    lines = [" ".join(["word"] * int(n)) for n in draw.integers(1, 40, 640)]
    for name, lengths in (("train", lines), ("valid", lines[:8]), ("test", lines[:8])):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("\n".join(lengths) + "\n")
    options = {"folder": str(tmp_path), "vocabulary": 300}
    data = open_data(config("translation", options=options, batch_size=8).data)

    def padding(batches: Any) -> float:
        sample_batches = [batches(step) for step in range(80)]
        return 1 - sum(int(b.lengths.sum()) for b in sample_batches) / sum(
            b.source.numel() + b.target.numel() for b in sample_batches
        )

    assert padding(data.batches()) < 0.1 < 0.3 < padding(data.task.batches(8))
    # Every epoch has each example once, and batches do not depend on those asked for before.
    first, again = data.batches(), data.batches()
    count = sum(int(first(step).source_lengths.sum()) for step in range(80))
    assert count == sum(int(first(step).source_lengths.sum()) for step in range(80, 160))
    assert all(bool((first(n).source == again(n).source).all()) for n in (130, 7, 81))
