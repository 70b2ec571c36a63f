"""A user's images, or rows of numbers, with texts: trained, saved and used in another process."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threefold
from threefold import ThreefoldError
from threefold.tasks.user_data import ReadSettings, user_task

image = pytest.importorskip("PIL.Image")
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SMALL = {"model.width": 16, "model.depth": 1, "model.options": {"attention": "luong"}}


def write_photos(folder: Path, count: int = 30, texts: int = 1) -> Path:
    """Images of one colour in a folder, and a table with `texts` rows for each of them."""
    (folder / "img").mkdir(parents=True)
    rows = []
    for number in range(count):
        name = list(COLOURS)[number % 3]
        pixels = np.full((8, 8, 3), 10 + number % 9, np.uint8)
        pixels[1:7, 1:7] = COLOURS[name]
        image.fromarray(pixels).save(folder / "img" / f"{number}.png")
        rows += [(f"img/{number}.png", f"a {name} square")] * texts
    return write_table(folder / "captions.csv", ("image", "text"), rows)


def write_table(path: Path, names: tuple[str, ...], rows: list[Any]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def threefold_command(*arguments: Any) -> str:
    command = [sys.executable, "-m", "threefold", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_images_with_captions_from_file_to_file(tmp_path: Path) -> None:
    table = write_photos(tmp_path / "photos")
    settings = {**SMALL, "training.learning_rate": 1e-2}
    run = threefold.train(table, mixers="gru", steps=60, settings=settings, folder=tmp_path / "run")
    assert run.model.kind == "captioner" and run.summary["test"]["metric"] == 1
    new = tmp_path / "new.png"
    pixels = np.full((8, 8, 3), 30, np.uint8)
    pixels[1:7, 1:7] = COLOURS["blue"]
    image.fromarray(pixels).save(new)
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "words.svg"
    shown = threefold_command("predict", tmp_path / "run", new, "--attention", drawn)
    assert "a blue square" in shown and drawn.stat().st_size > 1000
    answers = threefold.predict(tmp_path / "run", table)
    assert [a["text"] for a in answers][:3] == [f"a {name} square" for name in COLOURS]
    scores = threefold.evaluate(tmp_path / "run", tmp_path / "photos")  # the folder of the table
    assert scores["exact"] == 1 and scores["n"] == 30


def test_an_image_is_in_one_split(tmp_path: Path) -> None:
    """Several texts of an image are for training, for validation or for testing together."""
    task = user_task(write_photos(tmp_path / "photos", texts=3))
    assert task.sizes == (72, 9, 9) and task.kind == "captioner"
    files = {s: {task.raw(s, n)[1] for n in range(task.size(s))} for s in ("train", "test")}
    assert len(files["train"]) == 24 and not files["train"] & files["test"]
    assert task.features == 3 and task.batch("test", 0, 2).source.shape == (2, 3, 8, 8)
    words = [_text(task, row) for row in range(9)]
    assert task.chance in {words.count(f"a {name} square") / 9 for name in COLOURS}


def _text(task: Any, row: int) -> str:
    tokens = task.batch("test", row, 1).texts()[0]
    return str(task.preprocessing().outputs.invert(tokens))


def test_rows_of_numbers_with_texts(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(300, 2))
    words = [f"{'far' if x > 0 else 'near'} {'high' if y > 0 else 'low'}" for x, y in numbers]
    rows = [(f"{x:.4f}", f"{y:.4f}", w) for (x, y), w in zip(numbers, words, strict=True)]
    table = write_table(tmp_path / "points.csv", ("x", "y", "text"), rows)
    settings = {**SMALL, "training.learning_rate": 1e-2}
    run = threefold.train(
        table, kind="captioner", mixers="gru", steps=150, settings=settings, folder=tmp_path / "run"
    )
    assert run.summary["test"]["metric"] > 0.8
    points = write_table(tmp_path / "new.csv", ("y", "x"), [(-2, 3), (2, -3)])
    shown = threefold_command("predict", tmp_path / "run", points, "--json")
    assert '"far low"' in shown and '"near high"' in shown
    with pytest.raises(ThreefoldError, match="no positions to look at"):
        threefold.attention_weights(run.model, np.array([[1.0, 2.0]]))
    with pytest.raises(ThreefoldError, match='kind="captioner", target="text"'):
        user_task(table)


def test_what_is_not_images_with_texts_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    table = write_photos(folder)
    rows = list(csv.reader(table.open()))[1:]
    cases = [
        (("image", "text"), [*rows, ("img/99.png", "none")], "captions.csv:32: image is .*99.png"),
        (("image", "text"), [*rows, ("img/0.png", "")], "captions.csv:32: text is missing"),
        (("image", "text"), rows[:9], "9 examples are too few; expected 10 or more"),
        (("image", "label"), [(a, t.split()[1]) for a, t in rows], "one subfolder per class"),
        (("image", "text"), [(a, "") for a, _ in rows], "no column of texts"),
    ]
    for names, cells, message in cases:
        with pytest.raises(ThreefoldError, match=message):
            user_task(write_table(table, names, cells))
    image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / "img" / "3.png")
    write_table(table, ("image", "text"), rows)
    with pytest.raises(ThreefoldError, match=r"different sizes \(29 of 8 × 8, 1 of 6 × 4 pixels\)"):
        user_task(table)
    assert user_task(table, ReadSettings(image_size="8x8")).size("train") == 24
    (folder / "img" / "3.png").write_bytes(b"no image")
    with pytest.raises(ThreefoldError, match=r"3\.png: not an image, or damaged"):
        user_task(table)
    (folder / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ThreefoldError, match="2 tables; expected one"):
        user_task(folder, ReadSettings(kind="captioner"))
