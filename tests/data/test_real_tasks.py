"""Tasks on real data: made files of every layout, and fetched data where they are in the cache."""

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
from threefold.data.fetch import cached
from threefold.data.packages import PACKAGES
from threefold.data.stream import IGNORE
from threefold.tasks import baselines as trivial
from threefold.tasks.bible import bleu, split_of
from threefold.tasks.corpora import corpus
from threefold.tasks.digests import DIGESTS
from threefold.tasks.drawing import draw
from threefold.tasks.forecasting import SETTINGS, Setting, windows
from threefold.tasks.held import Held, digest, held
from threefold.tasks.phonemes import phoneme_error
from threefold.tasks.series import series
from threefold.tasks.table import KINDS, TASKS, task
from threefold.tasks.tagging import simple
from threefold.tasks.task import METRICS
from threefold.tasks.texts import labelled

RANDOM = np.random.default_rng(0)
REAL = [name for name in TASKS if set(TASKS[name].where.split(" + ")) & set(PACKAGES)]


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


# ------------------------------------------------------------------- made files, any layout


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
    idx(tmp_path / "t10k-labels-idx1-ubyte", np.arange(9))
    with pytest.raises(ThreefoldError, match="10 pictures and 9 labels of t10k"):
        task("smnist", folder=tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ThreefoldError, match="holds no file t10k-labels-idx1-ubyte or"):
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
    with pytest.raises(ThreefoldError, match="a label from 0 to 9"):
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


def test_reviews(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for sign, name in enumerate(("neg", "pos")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(10):
                words = ("dull " if sign == 0 else "fine ") * (i + 1)
                (tmp_path / part / name / f"{i}_1.txt").write_text(words)
    made = task("text-1k", folder=tmp_path)
    assert made.sizes == (18, 2, 20)
    batch = made.rows("train", [0, 17])
    assert batch.targets.tolist() == [0, 1] and batch.lengths is not None
    assert bytes(batch.inputs[0, : batch.lengths[0]].tolist()).decode() == "dull "
    assert trivial.baselines(made) == {"majority": 0.5, "bag": 1.0}
    control = trivial.shuffled_labels(made)
    assert control.rows("train", list(range(18))).targets.sum() == 9  # the same answers, moved
    assert trivial.bag(control) < 0.9


def test_mails_without_headers(tmp_path: Path) -> None:
    for group, word in (("spam-1", "buy"), ("easy-ham-1", "hello")):
        (tmp_path / group).mkdir()
        for i in range(10):
            mail = (
                f"From: {group}\nSubject: x\nContent-Type: text/html\n\n<b>{word}</b> &amp; {i}\n"
            )
            (tmp_path / group / f"{i}.json").write_text(json.dumps({"text": mail}))
    made = task("spam", folder=tmp_path)
    rows = made.examples("train")
    texts = [
        bytes(row[:n].tolist()).decode() for row, n in zip(rows.inputs, rows.lengths, strict=True)
    ]
    assert texts[0] == "hello & 0" and not any("spam" in text for text in texts)
    assert set(zip([text[:3] for text in texts], rows.targets.tolist(), strict=True)) == {
        ("hel", 0),
        ("buy", 1),
    }


def test_any_table_of_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f"x{i},{'ab'[i % 2]}\n" for i in range(20))
    )
    (tmp_path / "b.jsonl").write_text('{"text": "y", "label": "b"}\n')
    made = labelled(tmp_path / "a.csv", tmp_path / "b.jsonl")
    assert made.sizes == (18, 2, 1) and made.classes == 2
    assert made.rows("test", [0]).targets.tolist() == [1]
    (tmp_path / "b.jsonl").write_text('{"text": "y", "label": "c"}\n')
    with pytest.raises(ThreefoldError, match="the label 'c' is none of"):
        labelled(tmp_path / "a.csv", tmp_path / "b.jsonl")


@pytest.mark.parametrize("level", ["byte", "character", "pair", "word"])
def test_corpora_at_every_level(level: str, tmp_path: Path) -> None:
    text = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 60
    (tmp_path / "input.txt").write_text(text)
    made = task("shakespeare", folder=tmp_path, level=level, length=32, vocabulary=300)
    tokens, tokenizer = corpus("shakespeare", level, 300, tmp_path)
    assert tokenizer.decode(tokens["train"]) + tokenizer.decode(tokens["valid"]) == text
    assert np.array_equal(tokens["valid"], tokens["test"])  # nanoGPT has no third part
    rows = made.rows("train", [0, 2])
    assert torch.equal(rows.inputs[:, 1:], rows.targets[:, :-1])
    assert rows.inputs[1].tolist() == tokens["train"][64:96].tolist()
    assert made.sizes[0] == (len(tokens["train"]) - 1) // 32
    assert 0 < made.chance < np.log2(made.vocabulary) + 0.1
    assert abs(trivial.baselines(made)["unigram"] - made.chance) < 1
    with pytest.raises(ThreefoldError, match="did you mean 'word'"):
        task("shakespeare", folder=tmp_path, level="words")


def test_the_library_of_this_python_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n" * 400)
    (tmp_path / "empty.py").write_text("")
    made = task("code", folder=tmp_path, length=16)
    assert bytes(made.rows("train", [0]).inputs[0].tolist()) == b"import os\nimport"


def test_genomes_and_tunes(tmp_path: Path) -> None:
    (tmp_path / "genome.fna").write_text(">x\n" + "ACGTN\nacgt\n" * 100)
    made = task("dna", folder=tmp_path, level="character", length=8)
    assert made.vocabulary == 4 and made.rows("train", [0]).inputs[0].tolist() == [0, 1, 2, 3] * 2
    (tmp_path / "tune.abc").write_bytes(b"X:1\r\nT:Caf\xe9\r\n" + b"abc|\r\n" * 300)
    tunes = task("tunes", folder=tmp_path, length=16)
    assert bytes(tunes.rows("train", [0]).inputs[0].tolist()) == "X:1\nT:Café\nabc|".encode()


def test_tagging(tmp_path: Path) -> None:
    for i in range(20):
        words = f"\tThe/at dog{i % 2}/nn barks/vbz ./.\n\n\tNew/jj-tl York/np-tl+bez\n"
        (tmp_path / f"ca{i:02}").write_text(words)
    made = task("tagging", folder=tmp_path)
    assert made.sizes == (32, 4, 4)
    rows = made.rows("train", [0, 1])
    assert rows.lengths is not None and rows.lengths.tolist() == [4, 2]
    assert rows.targets[1, 2:].tolist() == [IGNORE, IGNORE]
    assert trivial.baselines(made)["commonest tag"] == 1.0
    (tmp_path / "ca00").write_text("The/at\ndog\n")
    with pytest.raises(ThreefoldError, match=r"ca00:2: 'dog' has no tag"):
        task("tagging", folder=tmp_path)
    tags = {
        "np-tl": "np",
        "fw-at-tl+nn": "at",
        "nn-hl": "nn",
        "--": "--",
        "ppss+bem": "ppss",
        "*": "*",
    }
    assert {tag: simple(tag) for tag in tags} == tags


def test_translation_of_parallel_files(tmp_path: Path) -> None:
    for split, count in (("train", 50), ("valid", 5), ("test", 5)):
        for side, text in (("en", "number {}"), ("fr", "nombre {}")):
            lines = "".join(text.format(i) + "\n" for i in range(count))
            (tmp_path / f"{split}.{side}").write_text(lines)
    made = task("translation", folder=tmp_path, languages=("en", "fr"), vocabulary=300)
    assert made.sizes == (50, 5, 5)
    rows = made.rows("train", [0, 49])
    assert int(rows.source.max()) < 300 and rows.target[0, 0] == 0
    assert draw(made, "test", 0)[1].startswith("→ ")
    with pytest.raises(ThreefoldError, match=r"train\.de: cannot be read"):
        task("translation", folder=tmp_path)
    assert {split_of(1, chapter) for chapter in range(1, 51)} == {"train", "valid", "test"}
    pytest.importorskip("sacrebleu")
    assert bleu(["a b c d e"], ["a b c d e"]) == pytest.approx(100)
    assert bleu(["x y z"], ["a b c"]) == 0


def test_pairs_of_papers(tmp_path: Path) -> None:
    for part in ("train", "eval", "test"):
        text = "1.0\ta\tb\tone text\tanother\n0.0\ta\tc\tone text\tsomething else\n"
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text(text)
    made = task("retrieval", folder=tmp_path, length=12)
    assert made.sizes == (2, 2, 2)
    rows = made.rows("test", [1])
    texts = [bytes(row.tolist()).decode() for row in rows.inputs[0]]
    assert texts == ["one text    ", "something el"] and rows.targets.tolist() == [0]
    (tmp_path / "new_aan_pairs.eval.tsv").write_text("1.0\ta\tb\tone\ttwo\nmaybe\ta\tb\tone\ttwo\n")
    with pytest.raises(ThreefoldError, match=r"eval\.tsv:2: 5 cells, the first 'maybe'"):
        task("retrieval", folder=tmp_path)
    with pytest.raises(ThreefoldError, match="no registry carries it"):
        task("retrieval")


def test_phonemes(tmp_path: Path) -> None:
    words = "".join(f"{a}{b}{c} AE1 B\n" for a in "abcdefgh" for b in "aeiou" for c in "xyz")
    (tmp_path / "cmudict.dict").write_text(words + "abbey AE1 B IY0\nabbey(2) AA1 B IY0\n")
    made = task("phonemes", folder=tmp_path)
    assert sum(made.sizes) == 121 and min(made.sizes) > 0
    assert made.rows("train", [0]).texts()[0][-1] == 1
    right = [[["AE1", "B"]], [["K"], ["K", "AE1"]]]
    assert phoneme_error([["AE1", "B"], ["K", "AE1"]], right) == 0
    assert phoneme_error([["AE1"], []], right) == pytest.approx(2 / 3)


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
    with pytest.raises(ThreefoldError, match=r"holds no file GunPoint_TRAIN\.ts or GunPoint_TRAIN"):
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
    made = windows(season, Setting(lambda folder: season, 44, 11, 11))
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
    with pytest.raises(ThreefoldError, match=r"wrong\.wav: 8000 samples a second, expected 16000"):
        task("speech-commands", folder=tmp_path, words=("no", "yes"))
    with pytest.raises(ThreefoldError, match="no registry carries it"):
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
    with pytest.raises(ThreefoldError, match=r"noise\.wav: no label"):
        task("spoken-digits", folder=tmp_path)


# ------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("name", REAL)
def test_a_card_is_reasonable(name: str) -> None:
    card = TASKS[name]
    assert card.kind in KINDS and min(card.sizes) > 1 and name in DIGESTS
    assert card.reached(card.solved) and not card.reached(card.chance)
    assert bool(card.vocabulary) != bool(card.features)
    for score in card.published.values():
        assert score > card.chance if not card.lower else score < card.chance


def test_bits_of_a_fair_guess() -> None:
    targets = torch.tensor([[1, IGNORE, 3]])
    assert METRICS["bits"](torch.zeros(1, 3, 8), targets).tolist() == pytest.approx([3, 3])


def test_a_digest_sees_everything() -> None:
    def made(**changes: Any) -> dict[str, Held]:
        base = {"inputs": np.zeros((2, 3), np.uint8), "targets": np.zeros(2, np.uint8), **changes}
        return dict.fromkeys(("train", "valid", "test"), Held(**base))

    found = [
        digest(made()),
        digest(made(inputs=np.zeros((2, 3), np.uint16))),
        digest(made(inputs=np.zeros((3, 2), np.uint8))),
        digest(made(inputs=[np.zeros(3, np.uint8)] * 2)),
        digest(made(targets=np.array([0, 1], np.uint8))),
    ]
    assert len(set(found)) == len(found)
    assert digest(made(inputs=np.zeros((2, 3), ">u2"))) == found[1]
    with pytest.raises(ThreefoldError, match="the fetched files were changed"):
        held("smnist", lambda: made()).rows("train", [0])


def test_without_data_a_task_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    for name, card in TASKS.items():
        if not set(card.where.split(" + ")) & set(PACKAGES) or name in ("shakespeare", "dna"):
            continue
        corpus.cache_clear()
        with pytest.raises(ThreefoldError, match="threefold data fetch"):
            task(name).rows("train", [0])


def fetched(name: str) -> bool:
    names = [part for part in TASKS[name].where.split(" + ") if part in PACKAGES]
    return bool(names) and all(cached(part) is not None for part in names)


@pytest.mark.parametrize("name", REAL)
def test_fetched_data_are_the_pinned_ones(name: str) -> None:
    if not fetched(name):
        pytest.skip(f"not fetched: threefold data fetch {name}")
    card, made = TASKS[name], task(name)
    rows = made.rows("train", [0, card.sizes[0] - 1])  # checks the hash
    made.rows("test", [card.sizes[2] - 1])
    assert draw(made, "train", 0)
    if card.kind == "classifier":
        assert rows.inputs.shape[-1 if card.features == 0 else -2] <= card.length
        answers = trivial.some(made, "test", 3000).targets  # the best that looks at nothing
        assert float(answers.bincount().max() / len(answers)) == pytest.approx(
            card.chance, abs=0.02
        )
        assert trivial.majority(made, 3000) <= card.chance + 0.02
        assert abs(trivial.bag(trivial.shuffled_labels(made), 1000) - 1 / card.classes) < 0.25
