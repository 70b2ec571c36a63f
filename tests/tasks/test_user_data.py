"""How a user's own data are understood: what is recognised, asked back, told and refused."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import threefold
from tests.surfaces import own_data
from threefold import ThreefoldError
from threefold.cli import main
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.errors import AmbiguousError, command_line, nearest
from threefold.lab.race.sizing import match_parameters
from threefold.tasks.task import Task
from threefold.tasks.user_data import ReadSettings, user_task
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import open_data


@pytest.fixture(autouse=True)
def _on_the_command_line() -> Iterator[None]:
    """Messages spell options as a shell takes them."""
    with command_line():
        yield


DRAW = random.Random(0)
NUMBERS = [round(DRAW.gauss(0, 1), 3) for _ in range(120)]
WAVE = [f"{10 + np.sin(i / 3):.3f}" for i in range(120)]


def table(header: str, *columns: Any, separator: str = ",") -> str:
    rows = [separator.join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([header, *rows]) + "\n" if header else "\n".join(rows) + "\n"


def texts(count: int = 60) -> list[str]:
    return [f"some words about thing {i}" for i in range(count)]


def facts(task: Task[Any]) -> dict[str, str]:
    assert task.description is not None
    return {"kind": task.description.kind, **dict(task.description.facts)}


# Files that can be read in several ways: name, content, and the options that are offered.
AMBIGUOUS = {
    "no header": ("x.csv", table("", WAVE, WAVE), ["data.header=true", "data.header=false"]),
    "two texts": (
        "x.csv",
        table("title,body,label", texts(), texts(), ["a", "b"] * 30),
        ["--features title", "--features body", "--features title,body"],
    ),
    "a label that is not a feature": (
        "x.csv --features message",
        table("message,verdict", texts(), ["a", "b"] * 30),
        ["--target verdict"],
    ),
    "an input that may be a label": (
        "x.csv --features title,topic",
        table("title,topic,label", texts(), ["u", "v", "w"] * 20, ["a", "b"] * 30),
        ["--target label"],
    ),
    "numeric label": (
        "x.csv",
        table("text,stars", texts(), [1, 2, 3, 4, 5] * 12),
        ["--kind classifier --target stars", "--kind regressor --target stars"],
    ),
    "JSON 1 and '1'": (
        "x.jsonl",
        "".join(
            json.dumps({"text": t, "label": label}) + "\n"
            for t, label in zip(texts(), [1, "1", 0, "0"] * 15, strict=True)
        ),
        ["--kind classifier --target label"],
    ),
    "several columns": (
        "x.csv",
        table("flow,load", WAVE, WAVE),
        ["--target flow", "--target load", "--target flow,load"],
    ),
    "rows that are no series": (
        "x.csv --target price",
        table("area,price", NUMBERS[::-1], NUMBERS),
        ["--kind regressor --target price", "--kind forecaster --target price"],
    ),
    "a label beside numbers": (
        "x.csv --target label",
        table("x,y,label", NUMBERS, NUMBERS, [0, 1] * 60),
        ["--kind classifier --target label", "--kind tagger --target label"],
    ),
    "pairs": (
        "x.tsv",
        table("", texts(), [t.upper() for t in texts()], separator="\t"),
        ["--kind seq2seq"],
    ),
    "names above pairs": (
        "x.tsv --kind seq2seq",
        table("english\tfrench", texts(), texts(), separator="\t"),
        ["data.header=true", "data.header=false"],
    ),
    "words and tags": (
        "x.csv",
        table("sentence,word,tag", [i // 4 for i in range(120)], ["a", "b"] * 60, ["N", "V"] * 60),
        ["--kind tagger --target tag --features word --group-column sentence"],
    ),
    "a name with a space": (
        "x.csv",
        table("my flow,load", WAVE, WAVE),
        ["--target 'my flow'"],
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_is_ambiguous_is_asked_back_with_options_that_work(name: str, tmp_path: Path) -> None:
    arguments, content, options = AMBIGUOUS[name]
    file, *given = arguments.split()
    path = tmp_path / file
    path.write_text(content)
    settings = {
        option[2:].replace("-", "_"): value
        for option, value in zip(given[::2], given[1::2], strict=True)
    }
    with pytest.raises(AmbiguousError) as asked:
        user_task(path, ReadSettings(**settings))
    for option in options:
        assert any(option in offered for offered in asked.value.options), asked.value.options


@pytest.mark.parametrize("first", ["", "NA", '"1,001"', "1\0"])
def test_no_column_vanishes_by_its_first_cell(first: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table("flow,load", [first, *WAVE[1:]], WAVE))
    if first in ("", "NA"):
        task = user_task(path, ReadSettings(target="load"))
        assert facts(task)["inputs"] == "load, flow" and "flow 1" in facts(task)["missing"]
        return
    with pytest.raises(ThreefoldError, match=r"x.csv:2: (flow is '1,001'|contains a NUL)"):
        user_task(path, ReadSettings(target="load"))


def test_a_decimal_comma_can_be_said(tmp_path: Path) -> None:
    """Every cell could be a number of thousands; the message names the setting."""
    path = tmp_path / "x.csv"
    commas = [f'"1,{300 + round(99 * np.sin(i))}"' for i in range(120)]
    path.write_text(table("flow", commas))
    with pytest.raises(ThreefoldError, match=r"--set data.decimal="):
        open_data(str(path))
    data = open_data(str(path), decimal=",")
    assert data.preprocessing is not None and data.preprocessing.decimal == ","
    assert data.preprocessing.inputs.steps[0].mean[0] < 2  # type: ignore[attr-defined]


def test_empty_texts_do_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    titles, bodies = ["", "-", "", *texts()[3:]], ["content", "", "", *texts()[3:]]
    path.write_text(table("title,body,label", titles, bodies, ["a", "b"] * 30))
    task = user_task(path, ReadSettings(features="title,body", target="label"))
    assert task.description is not None and task.raw is not None
    assert f"rows without a text are left out: 1, first {path}:4" in task.description.notes
    inputs = dict(
        task.raw(split, n) for split in ("train", "valid", "test") for n in range(task.size(split))
    )
    assert inputs[f"{path}:2"] == "\ncontent" and inputs[f"{path}:3"] == "-\n"
    pairs = user_task(path, ReadSettings(kind="seq2seq", features="title", target="body"))
    assert pairs.description is not None
    assert f"rows without a text are left out: 3, first {path}:2" in pairs.description.notes


def test_labels_are_compared_as_words(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table("text,label", texts(), ["yes", "yes ", "no"] * 20))
    assert facts(user_task(path))["classes"] == "2: yes 40, no 20"


def test_dates_are_times_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    days = [f"202401{day:02}" for day in range(1, 31)] + [f"202403{day:02}" for day in range(1, 31)]
    path.write_text(table("day,flow", days, WAVE[:60]))
    task = user_task(path)
    assert facts(task)["inputs"] == "flow" and facts(task)["time"].startswith("column day")
    assert any("one gap in time, of " in note for note in task.description.notes)  # type: ignore[union-attr]


# Folders, by their files: what happens, or the message.
FOLDERS = {
    "other rates": (["a/1.wav", "b/2.wav@16000"], "sampling rates .*data.sampling_rate=8000"),
    "other sizes": (["a/1.png", "b/2.png@7"], "different sizes .*data.image_size=5x5"),
    "sounds and texts": (["a/1.wav", "b/1.txt"], "6 sounds and 1 texts .*of one kind"),
    "sounds and images": (["a/1.wav", "b/1.png"], "6 sounds and 6 images"),
    "not in subfolders": (["1.wav"], "1 sounds that are not in one subfolder per class"),
    "tables": (["1.csv", "2.csv"], "a folder of tables .*--series-column"),
    "empty": ([], "a folder without a file that can be read; expected texts"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_mixed_or_unusable_files_are_refused(name: str, tmp_path: Path) -> None:
    files, message = FOLDERS[name]
    for entry in files:
        path, _, variant = entry.partition("@")
        _write_media(tmp_path / path, int(variant or 0))
    with pytest.raises(ThreefoldError, match="(?s)" + message):
        user_task(tmp_path)


def _write_media(path: Path, variant: int) -> None:
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    if path.suffix not in (".wav", ".png"):
        path.write_text("text")
        return
    for number in range(1 if path.parent.name not in "ab" else 6):
        file = path.with_name(f"{number}{path.suffix}")
        if path.suffix == ".wav":
            own_data.write_sound(file, np.zeros(20), variant or 8000)
        else:
            Image.fromarray(np.zeros((variant or 5, 5), "uint8")).save(file)


def test_texts_in_subfolders_are_classes_if_asked(tmp_path: Path) -> None:
    for label in ("pos", "neg"):
        (tmp_path / label).mkdir()
        for number in range(10):
            (tmp_path / label / f"{number}.txt").write_text(f"{label} {number}\nsecond line" * 9)
    task = user_task(tmp_path, ReadSettings(kind="classifier"))
    assert facts(task)["classes"] == "2: neg 10, pos 10"
    (tmp_path / "x.wav").touch()
    notes = user_task(tmp_path).description.notes  # type: ignore[union-attr]
    assert any("--kind classifier" in note for note in notes)
    assert any("1 other files" in note for note in notes)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a kind": (
        "notes.txt",
        {"kind": "classifier"},
        "can only train a language or masked or xlnet model",
    ),
    "a horizon of texts": ("reviews.csv", {"horizon": 3}, "--horizon is 3, but it does not apply"),
    "a target of a text": ("notes.txt", {"target": "x"}, "--target is 'x', but it does not apply"),
    "a rate of a table": ("flow.csv", {"sampling_rate": 8}, "data.sampling_rate is 8, but it does"),
    "a group of a series": ("flow.csv", {"group_column": "flow"}, "grouped|does not apply"),
    "another kind of media": ("images", {"kind": "language"}, "can only train a classifier"),
    "a column": ("flow.csv", {"target": "Flow "}, "no column 'Flow'; did you mean 'flow'"),
    "classes of forecasts": ("reviews.csv", {"kind": "forecaster"}, "no column of numbers to"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    own_data.make_files(folder)
    return folder


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_apply_are_refused(name: str, place: Path) -> None:
    file, settings, message = REFUSED[name]
    with pytest.raises(ThreefoldError, match=message):
        user_task(place / file, ReadSettings(**settings))


def test_suffixes_in_any_case_and_compressed(place: Path, tmp_path: Path) -> None:
    shutil.copy(place / "flow.csv", tmp_path / "FLOW.CSV")
    (tmp_path / "flow.csv.gz").write_bytes(gzip.compress((place / "flow.csv").read_bytes()))
    np.save(tmp_path / "flow.npy", np.loadtxt(place / "flow.csv", skiprows=1)[:, None])
    sizes = {user_task(tmp_path / name).sizes for name in os.listdir(tmp_path)}
    assert len(sizes) == 1
    for name in ("x.xls", "x.zip", "x.feather", "x.pkl", "x.json"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(ThreefoldError, match=f"{name}: .{name[2:]} is "):
            user_task(tmp_path / name)


def test_numbers_at_the_edge_are_refused_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table("flow", [*WAVE[:50], "1e300", *WAVE[51:]]))
    with pytest.raises(ThreefoldError, match=r"x.csv:52: flow is '1e300'; absurd"):
        user_task(path)


def test_one_absurd_number_does_not_ruin_the_scale(tmp_path: Path) -> None:
    tail = np.exp(3 * np.random.default_rng(0).normal(size=5000))  # to 1e4 medians and beyond
    waves = np.sin(np.arange(5000.0))
    rare = np.where(np.arange(5000) % 100, 0.0, 1.0)
    ordinary = np.stack([tail, waves, rare], 1)
    scale = Standardise.fit([ordinary], ["tail", "waves", "rare"])
    mean = np.nansum(ordinary, 0) / 5000
    deviation = np.sqrt(np.nansum((ordinary - mean) ** 2, 0) / 5000)
    assert scale.mean == tuple(mean) and scale.deviation == tuple(deviation)
    with_absurd = np.vstack([ordinary, [[1e20, -1e20, 1e20], [1e19, np.nan, 1e300]]])
    robust = Standardise.fit([with_absurd], scale.columns)
    assert np.allclose([robust.mean, robust.deviation], [scale.mean, scale.deviation], rtol=1e-9)
    assert robust.absurd_counts([with_absurd]) == {"tail": 2, "waves": 1, "rare": 2}
    path = tmp_path / "x.csv"
    path.write_text(table("flow,load", [*WAVE[:20], "1e20", *WAVE[21:]], WAVE))
    task = user_task(path, ReadSettings(target="flow"))  # neighbours are still correlated
    assert task.description is not None and task.preprocessing is not None
    assert task.preprocessing().naive_errors["1"][0] < 1
    assert task.description.notes[0].startswith("flow: 1 number more than 10,000 deviations")
    rows = task.rows("train", range(task.size("train")))
    assert rows.inputs.shape[2] == 3 and float(rows.inputs.abs().max()) < 3
    assert float(rows.targets.nan_to_num().abs().max()) < 3


def test_arrays_that_no_model_can_learn_are_refused() -> None:
    draw = np.random.default_rng(0).normal(size=(40, 8))
    prices = draw.sum(1)
    prices[3] = 1e20
    for inputs, targets, message in [
        (draw, prices, "example 4: value is 1e.20, more than 10,000 deviations"),
        (draw * np.nan, draw.sum(1), "the inputs are all NaN or infinite"),
        (draw, draw.sum(1) * np.inf, "example 1: the target is -?inf; expected finite"),
        (draw * 1j, draw.sum(1), "the inputs are complex numbers"),
        (draw, draw.sum(1) * 1j, "the targets are complex numbers"),
    ]:
        with pytest.raises(ThreefoldError, match=message):
            user_task((inputs, targets))
    items = TensorDataset(torch.tensor(draw[..., None]).float(), torch.tensor(prices).float())
    with pytest.raises(ThreefoldError, match=r"1 of the targets [(]value[)] are"):
        user_task(items)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_what_never_ends_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x.csv")
    with pytest.raises(ThreefoldError, match="not a regular file"):
        user_task(tmp_path / "x.csv")


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme.txt"))
    path.write_text("some text " * 500)
    for given in (path, tmp_path):
        with pytest.raises(ThreefoldError, match=r"na\\udcffme.txt: the name is not valid UTF-8"):
            user_task(given)


def test_a_column_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table("flow,load", WAVE, WAVE))
    with pytest.raises(ThreefoldError, match="--target names the column 'flow' twice"):
        user_task(path, ReadSettings(target="flow,flow"))


def test_a_lone_surrogate_in_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a \\ud800 b", "label": "x"}\n')
    with pytest.raises(ThreefoldError, match=r"x.jsonl:1: .*lone surrogate"):
        user_task(path)


# ----------------------------------------------------------------------- what is understood


def test_rows_are_scaled_by_column_and_missing_cells_marked(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    large = [1e6 * x for x in NUMBERS]
    small = ["" if i % 10 == 0 else x for i, x in enumerate(NUMBERS)]
    path.write_text(table("large,small,price", large, small, NUMBERS[::-1]))
    task = user_task(path, ReadSettings(kind="regressor", target="price"))
    assert "small 12" in facts(task)["missing"]
    inputs = task.rows("train", range(task.size("train"))).inputs
    assert inputs.shape[1:] == (3, 1)  # two columns, and where the second is missing
    assert 0.5 < float(inputs[:, 0].std()) < 2 and 0.5 < float(inputs[:, 1].std()) < 2
    assert task.preprocessing is not None
    copy = Preprocessing.from_dict(json.loads(json.dumps(task.preprocessing().to_dict())))
    assert copy == task.preprocessing()


def test_tagged_rows_without_groups_are_cut_into_examples(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    labels = ["on" if x > 0 else "off" for x in NUMBERS] * 3
    path.write_text(table("x,state", NUMBERS * 3, labels))
    run = threefold.train(
        path,
        kind="tagger",
        target="state",
        mixers="gru",
        steps=60,
        settings={"model.width": 16, "model.depth": 1, "training.learning_rate": 0.01},
    )
    rows = run.model.predict(path).table()
    assert [float(row["x"]) for row in rows] == NUMBERS * 3
    assert np.mean([row["prediction"] == row["state"] for row in rows]) > 0.9


def test_imbalance_and_duplicates_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(table("text,label", ["same words here"] * 60, ["a"] * 54 + ["b"] * 6))
    assert task_notes(path) == ["the classes are imbalanced", "6 of 6 test examples are also"]


def task_notes(path: Path) -> list[str]:
    notes = user_task(path, ReadSettings(features="text", target="label")).description.notes  # type: ignore[union-attr]
    return [note.partition(":")[0].partition(" in the")[0] for note in notes]


def test_balanced_classes_weigh_the_same(place: Path, tmp_path: Path) -> None:
    """Nothing tells the classes apart, so the model learns their weights."""
    path = tmp_path / "x.csv"
    path.write_text(table("text,label", ["word"] * 100, ["a"] * 80 + ["b"] * 20))
    small = {"model.width": 16, "model.depth": 1, "training.learning_rate": 0.02}
    options = {"target": "label", "kind": "classifier", "mixers": "gru", "steps": 60}
    shares = {}
    for weights in (None, "balanced"):
        settings = {**small, "data.features": "text", "data.batch_size": 80}
        settings |= {} if weights is None else {"training.class_weights": weights}
        run = threefold.train(path, settings=settings, **options)  # type: ignore[arg-type]
        shares[weights] = run.model.predict(["word"])[0]["probabilities"]["b"]
    assert shares[None] == pytest.approx(0.2, abs=0.06)
    assert shares["balanced"] == pytest.approx(0.5, abs=0.06)
    data = open_data(str(path), features="text", target="label", kind="classifier")
    counts = [int((data.task.rows("train", range(80)).targets == n).sum()) for n in (0, 1)]
    assert data.balanced_weights.tolist() == pytest.approx([40 / count for count in counts])
    with pytest.raises(ThreefoldError, match="classifier, hierarchical and tagger models"):
        open_data(str(place / "flow.csv")).objective(
            TrainingSettings(steps=1, class_weights="balanced")
        )


# --------------------------------------------------------------------------------- runs


def test_a_users_own_files_are_not_overwritten(place: Path, tmp_path: Path, capsys: Any) -> None:
    for name in ("log.jsonl", "summary.json"):
        (tmp_path / name).write_text("mine")
    arguments = ["train", str(place / "notes.txt"), "--steps", "1", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--mixers", "gru", "--set", "model.width=16", "--set", "model.depth=1"])
    assert ended.value.code == 2
    assert "contains log.jsonl, summary.json, but no run" in capsys.readouterr().err
    assert {file.read_text() for file in tmp_path.iterdir()} == {"mine"}


@pytest.mark.parametrize(
    ("given", "message"),
    [("GRU", "did you mean 'gru'?"), ("gru,", "did you mean 'gru'?"), ("a,b", "a hybrid")],
)
def test_misspelt_mixers(given: str, message: str, place: Path) -> None:
    with pytest.raises(ThreefoldError) as error:
        threefold.train(place / "notes.txt", mixers=given, steps=1)
    assert message in str(error.value)
    assert nearest("Mamba", ["gru", "mamba"]) == "did you mean 'mamba'?"


def test_absurd_sizes_are_refused_at_once() -> None:
    spec = threefold.Spec("language", 16, 1, ("gru",), 16)
    with pytest.raises(ThreefoldError, match=r"training them needs .* this machine has"):
        match_parameters({"gru": spec}, 10**12)


def test_pictures_are_cut_into_patches_that_fit(tmp_path: Path) -> None:
    from PIL import Image

    def save(size: tuple[int, int], *levels: int) -> Path:
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        for number in range(12):
            path = tmp_path / "x" / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, levels or (number, number, number)).save(path)
        return tmp_path / "x"

    task = user_task(save((24, 48), 255, 0, 0), ReadSettings(kind="vision"))
    assert task.model_options == {"patch": 8} and task.features == 3 and task.length == 18
    assert task.rows("train", [0]).inputs[0, :, 0, 0].tolist() == [1, -1, -1]
    assert user_task(save((24, 48)), ReadSettings(kind="vision")).features == 1  # grey
    with pytest.raises(ThreefoldError, match=r"101 × 97 pixels.*data.image_size=96x96"):
        user_task(save((101, 97)), ReadSettings(kind="vision"))
