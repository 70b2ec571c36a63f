"""Tasks of pictures, sounds and series: made files of every layout."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from threefold import ThreefoldError
from threefold.tasks import baselines as trivial
from threefold.tasks.forecasting import SETTINGS, ForecastSettings, forecast_windows
from threefold.tasks.series import series
from threefold.tasks.table import task

RANDOM = np.random.default_rng(0)


def idx(path: Path, array: Any) -> None:
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(np.uint8).tobytes())


def wav(path: Path, samples: Any, rate: int = 16000) -> None:
    data = (samples * 32767).astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate, 2, 16)
    body = (
        b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)


def mnist(folder: Path, train: int = 20, test: int = 10) -> None:
    for part, count in (("train", train), ("t10k", test)):
        idx(folder / f"{part}-images-idx3-ubyte", RANDOM.integers(0, 256, (count, 28, 28)))
        idx(folder / f"{part}-labels-idx1-ubyte", np.arange(count) % 10)


def test_mnist_in_order_and_permuted(tmp_path: Path) -> None:
    mnist(tmp_path)
    plain, permuted = (task(name, folder=tmp_path) for name in ("smnist", "pmnist"))
    assert plain.sizes == (18, 2, 10)
    one, other = plain.rows("test", [3]), permuted.rows("test", [3])
    assert one.inputs.shape == (1, 784, 1) and one.inputs.dtype == torch.float32
    assert one.inputs.min() >= 0 and one.inputs.max() <= 1 and one.targets.tolist() == [3]
    assert not torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.inputs.sort(1).values, other.inputs.sort(1).values)
    whole = task("fashion-images", folder=tmp_path).rows("test", [3]).inputs
    assert whole.shape == (1, 1, 28, 28)
    assert torch.equal(whole.flatten(), 2 * one.inputs.flatten() - 1)
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(9))
    with pytest.raises(ThreefoldError, match="t10k has 10 images and 9 labels"):
        task("smnist", folder=tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ThreefoldError, match="contains no file t10k-labels-idx1-ubyte or"):
        task("smnist", folder=tmp_path)
    with pytest.raises(ThreefoldError, match="no such folder"):
        task("smnist", folder=tmp_path / "nowhere")


def test_cifar_in_colour_and_grey(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = RANDOM.integers(0, 256, (6, 4, 1024, 3)).astype(np.uint8)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, rows in zip(names, pixels, strict=True):
        image.fromarray(rows).save(tmp_path / f"{name}.png")
    (tmp_path / "train_labels.json").write_text(json.dumps([i % 10 for i in range(20)]))
    (tmp_path / "test_labels.json").write_text(json.dumps([0, 1, 2, 9]))
    colour = task("scifar", folder=tmp_path).rows("test", [3])
    assert colour.inputs.shape == (1, 1024, 3) and colour.targets.tolist() == [9]
    whole = task("cifar-images", folder=tmp_path, kind="swin")
    assert whole.kind == "swin"
    planes = torch.from_numpy(pixels[5, 3].reshape(32, 32, 3)).permute(2, 0, 1)
    assert torch.allclose(whole.rows("test", [3]).inputs[0], planes.float() / 127.5 - 1, atol=1e-6)
    grey = task("image", folder=tmp_path).rows("test", [3]).inputs
    expected = (pixels[5, 3].astype(float) @ [299, 587, 114] // 1000).astype(np.int64)
    assert grey.dtype == torch.int64 and grey[0].tolist() == expected.tolist()
    flat = pixels[5].transpose(0, 2, 1).reshape(4, 3072)
    rows = np.concatenate([np.array([[0], [1], [2], [9]], np.uint8), flat], 1)
    (tmp_path / "binary").mkdir()
    for name in names:
        (tmp_path / "binary" / f"{name}.bin").write_bytes(rows.tobytes())
    again = task("image", folder=tmp_path / "binary").rows("test", [3])
    assert torch.equal(again.inputs, grey) and again.targets.tolist() == [9]
    (tmp_path / "binary" / "test_batch.bin").write_bytes(b"\x0a" + rows.tobytes()[1:])
    with pytest.raises(ThreefoldError, match="with a label from 0 to 9"):
        task("image", folder=tmp_path / "binary")
    (tmp_path / "test_labels.json").write_text("[0, 1]")
    with pytest.raises(ThreefoldError, match="2 labels; expected 4"):
        task("image", folder=tmp_path)


def test_small_digits(tmp_path: Path) -> None:
    rows = np.c_[RANDOM.integers(0, 17, (400, 64)), np.arange(400) % 10]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(text.encode()))
    made = task("digits8", folder=tmp_path)
    assert made.sizes == (36, 4, 360) and made.rows("train", [0]).inputs.shape == (1, 64, 1)
    whole = task("digits8-images", folder=tmp_path)
    assert whole.sizes == (324, 4, 360)
    moved, pixels = whole.rows("train", range(9, 18)).inputs, made.rows("train", [1]).inputs
    image = 2 * pixels.reshape(8, 8) - 1
    assert torch.equal(moved[4, 0], image)  # the fifth of nine positions is the middle
    assert torch.equal(moved[0, 0, 1:, 1:], image[:-1, :-1]) and (moved[0, 0, 0] == -1).all()
    assert torch.equal(moved[8, 0, :-1, :-1], image[1:, 1:])
    assert whole.rows("test", [3]).inputs.shape == (1, 1, 8, 8)


def test_series_of_the_archives(tmp_path: Path) -> None:
    for part, count in (("TRAIN", 10), ("TEST", 6)):
        rows = "".join(f"{i},{i},{i}:1,2,{i}:{'ab'[i % 2]}\n" for i in range(count))
        text = f"@classLabel true a b\n@data\n{rows}"
        (tmp_path / f"JapaneseVowels_{part}.ts").write_text(text)
    made = task("japanese-vowels", folder=tmp_path)
    assert made.sizes == (8, 2, 6)
    inputs = made.examples("train").inputs
    assert inputs.shape == (8, 3, 2)
    (tmp_path / "JapaneseVowels_TEST.ts").write_text("@classLabel true a b c\n@data\n1:1:c\n")
    with pytest.raises(ThreefoldError, match="the test set has the class 'c'"):
        task("japanese-vowels", folder=tmp_path)
    with pytest.raises(
        ThreefoldError, match=r"contains no file GunPoint_TRAIN\.ts or GunPoint_TRAIN"
    ):
        task("gunpoint", folder=tmp_path)
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"Mine_{part}.tsv").write_text("1\t1\t2\n" * 5 + "7\t3\t4\t5\n" * 10)
    mine = series("Mine", tmp_path)
    assert (mine.name, mine.classes, mine.features, mine.length) == ("Mine", 2, 1, 3)
    assert mine.chance == pytest.approx(2 / 3) and mine.sizes == (12, 3, 15)
    with pytest.raises(ThreefoldError, match="did you mean 'gunpoint'"):
        series("gun-point")


def test_forecasts(tmp_path: Path) -> None:
    season = np.sin(np.arange(400) * 2 * np.pi / 11)[:, None] * 5 + 3
    made = forecast_windows(season, ForecastSettings(lambda folder: season, 44, 11, 11))
    assert [len(made[split]) for split in ("train", "valid", "test")] == [226, 30, 70]
    assert made["train"].inputs.shape == (226, 44, 1) and made["train"].targets.shape == (226, 11)
    rows = "".join(f"{1700 + i},{value[0]}\n" for i, value in enumerate(season))
    (tmp_path / "sunspots.csv").write_text("YEAR,SUNACTIVITY\n" + rows)
    sunspots = task("sunspots", folder=tmp_path)
    assert trivial.seasonal_naive(sunspots, 11) < 1e-5 < 0.5 < trivial.last_value(sunspots)
    assert trivial.baselines(sunspots)["linear"] < 0.05
    (tmp_path / "sunspots.csv").write_text("YEAR,SUNACTIVITY\n1700,5\n1701,\n")
    with pytest.raises(ThreefoldError, match=r"sunspots\.csv:3: SUNACTIVITY is ''"):
        task("sunspots", folder=tmp_path)
    with pytest.raises(ThreefoldError, match="a season of 100"):
        trivial.seasonal_naive(task("lorenz"), 1000)


def test_lorenz_is_the_attractor() -> None:
    made = task("lorenz")
    assert made.sizes == tuple(len(made.examples(s).inputs) for s in ("train", "valid", "test"))
    values = SETTINGS["lorenz"].read(None)
    assert 7.5 < values.std() < 8.3 and abs(values.mean()) < 1.5  # known: σ about 7.9, symmetric
    assert 17 < np.abs(values).max() < 20.5
    found = trivial.baselines(made)
    assert found["linear"] < found["last value"]


def test_speech_commands_are_sorted_and_split(tmp_path: Path) -> None:
    for word in ("yes", "no"):
        for i in range(20):
            wav(tmp_path / word / f"{19 - i:02}_nohash_0.wav", np.full(8000 + 500 * i, i / 20))
    raw = task("speech-commands", folder=tmp_path, words=("no", "yes"))
    assert raw.sizes == (28, 6, 6)
    first = raw.rows("train", [0])
    assert first.inputs.shape == (1, 16000, 1) and abs(float(first.inputs[0, 0, 0]) - 0.95) < 1e-3
    half = task("speech-commands-half", folder=tmp_path, words=("no", "yes"))
    assert half.rows("train", [0]).inputs.shape == (1, 8000, 1)
    cepstra = task("speech-commands-mfcc", folder=tmp_path, words=("no", "yes"))
    assert cepstra.rows("train", [0]).inputs.shape == (1, 161, 20)
    (tmp_path / "testing_list.txt").write_text("no/00_nohash_0.wav\nyes/07_nohash_0.wav\n")
    (tmp_path / "validation_list.txt").write_text("no/03_nohash_0.wav\n")
    assert task("speech-commands", folder=tmp_path, words=("no", "yes")).sizes == (37, 1, 2)
    wav(tmp_path / "no" / "wrong.wav", np.zeros(80), rate=8000)
    with pytest.raises(
        ThreefoldError, match=r"wrong\.wav: 8000 samples per second, expected 16000"
    ):
        task("speech-commands", folder=tmp_path, words=("no", "yes"))
    with pytest.raises(ThreefoldError, match="no package registry has its data"):
        task("speech-commands")
    with pytest.raises(ThreefoldError, match="did you mean 'mfcc'"):
        task("spoken-digits", form="mfc")


def test_recorded_digits(tmp_path: Path) -> None:
    for digit in range(2):
        for i in range(12):
            wav(tmp_path / f"{digit}_jackson_{i}.wav", np.full(4000, digit / 2), rate=8000)
    made = task("spoken-digits", folder=tmp_path)
    assert made.sizes == (4, 10, 10)
    wav(tmp_path / "noise.wav", np.zeros(10), rate=8000)
    with pytest.raises(ThreefoldError, match=r"noise\.wav: no label in the file name"):
        task("spoken-digits", folder=tmp_path)


def test_mackey_glass_is_foretold_by_its_past() -> None:
    made = task("mackey_glass")  # refuses other digits by their hash
    assert made.sizes == tuple(len(made.examples(s).inputs) for s in ("train", "valid", "test"))
    assert made.examples("test").targets.shape == (384, 84)
    found = trivial.baselines(made)
    assert found["last value"] == pytest.approx(made.chance, abs=1e-3)
    assert made.solved < found["linear"] < 0.5 * found["last value"]
