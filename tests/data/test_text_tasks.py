"""Tasks of texts, tunes and translations: made files of every layout."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from threefold import ThreefoldError
from threefold.data.loaders import IGNORE
from threefold.data.musicxml import UNITS_PER_QUARTER, Note, read_score
from threefold.tasks import baselines as trivial
from threefold.tasks import translation
from threefold.tasks.bible import split_of
from threefold.tasks.corpora import corpus
from threefold.tasks.phonemes import phoneme_error
from threefold.tasks.preview import draw
from threefold.tasks.table import task
from threefold.tasks.tagging import simple
from threefold.tasks.texts import TOPICS, labelled
from threefold.tasks.translation import bleu


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
    with pytest.raises(ThreefoldError, match="the label 'c' does not occur in"):
        labelled(tmp_path / "a.csv", tmp_path / "b.jsonl")


@pytest.mark.parametrize("kind", ["byte", "character", "bpe", "word"])
def test_corpora_with_every_tokenizer(kind: str, tmp_path: Path) -> None:
    text = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 60
    (tmp_path / "input.txt").write_text(text)
    made = task("shakespeare", folder=tmp_path, tokenizer=kind, length=32, vocabulary=300)
    tokens, tokenizer, _ = corpus("shakespeare", kind, 300, tmp_path)
    assert tokenizer.decode(tokens["train"]) + tokenizer.decode(tokens["valid"]) == text
    assert np.array_equal(tokens["valid"], tokens["test"])  # nanoGPT has no third part
    rows = made.rows("train", [0, 2])
    assert torch.equal(rows.inputs[:, 1:], rows.targets[:, :-1])
    assert rows.inputs[1].tolist() == tokens["train"][64:96].tolist()
    assert made.sizes[0] == (len(tokens["train"]) - 1) // 32
    assert 0 < made.chance < np.log2(made.vocabulary) + 0.1
    assert abs(trivial.baselines(made)["unigram"] - made.chance) < 1
    with pytest.raises(ThreefoldError, match="did you mean 'word'"):
        task("shakespeare", folder=tmp_path, tokenizer="words")


def test_the_library_of_this_python_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import os\n" * 400)
    (tmp_path / "empty.py").write_text("")
    made = task("code", folder=tmp_path, length=16)
    assert bytes(made.rows("train", [0]).inputs[0].tolist()) == b"import os\nimport"


def test_genomes_and_tunes(tmp_path: Path) -> None:
    (tmp_path / "genome.fna").write_text(">x\n" + "ACGTN\nacgt\n" * 100)
    made = task("dna", folder=tmp_path, tokenizer="character", length=8)
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
    compare = made.compare()
    assert rows.references == ("nombre 0", "nombre 49")
    assert compare(
        [row * 2 for row in rows.texts()], ["nombre 0nombre 0", "nombre 49nombre 49"]
    ) == (pytest.approx(bleu(["a b", "c d"], ["a b", "c d"])))
    assert compare([[1], [1]], rows.references) == 0


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
    with pytest.raises(ThreefoldError, match="no package registry has its data"):
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
    rows = made.rows("train", range(made.sizes[0]))
    compare = made.compare()
    assert compare(rows.texts(), rows.references) == 0
    assert compare([[1]] * made.sizes[0], rows.references) == 1


def test_news_and_speeches(tmp_path: Path) -> None:
    news = [
        {"id": str(number), "title": topic.upper(), "body": f"on\n {topic}", "topics": [topic]}
        for number in (*range(1, 11), *range(14_819, 14_824))
        for topic in TOPICS
    ]
    several = {"id": "1", "title": "two", "topics": ["earn", "acq"]}
    others = [several, {"id": "2", "title": "x", "topics": ["tin"]}, {"id": "3", "title": "none"}]
    (tmp_path / "reuters-000.json").write_text(json.dumps(news + others))
    made = task("topics", folder=tmp_path)
    assert made.sizes == (72, 8, 40)
    assert draw(made, "train", 1) == ["CRUDE on crude", "→ 1"]
    assert made.examples("test").targets.bincount().tolist() == [5] * 8
    for year in ("1790", "1791"):
        (tmp_path / f"{year}_president_n.txt").write_text(f" {year}: gentlemen\r\n" * 30)
    speeches = task("speeches", folder=tmp_path, length=16)
    assert bytes(speeches.rows("train", [0]).inputs[0].tolist()) == b"1790: gentlemen\n"


SCORE = """<score-partwise>{}</score-partwise>"""
PART = """<part id="P{0}"><measure><attributes><divisions>2</divisions></attributes>
<note><pitch><step>{1}</step><octave>4</octave></pitch><duration>2</duration>
<tie type="start"/></note></measure><measure>
<note><pitch><step>{1}</step><octave>4</octave></pitch><duration>1</duration>
<tie type="stop"/></note>
<note><grace/><pitch><step>B</step><octave>4</octave></pitch></note>
<note><rest/><duration>1</duration></note>
<note><pitch><step>B</step><alter>-1</alter><octave>3</octave></pitch><duration>1</duration></note>
<backup><duration>1</duration></backup><forward><duration>1</duration></forward>
</measure></part>"""


def test_scores_and_chorales(tmp_path: Path) -> None:
    four = SCORE.format("".join(PART.format(i, step) for i, step in enumerate("GECC")))
    with zipfile.ZipFile(tmp_path / "bwv1.mxl", "w") as archive:
        container = '<container><rootfiles><rootfile full-path="a.xml"/></rootfiles></container>'
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("a.xml", four)
    (tmp_path / "bwv2.musicxml").write_text(SCORE.format(PART.format(0, "C")))
    soprano = read_score(tmp_path / "bwv1.mxl")[0]
    whole, half = UNITS_PER_QUARTER, UNITS_PER_QUARTER // 2
    assert soprano == [Note(67, 0, whole + half), Note(58, 2 * whole, 2 * whole + half)]
    made = task("chorales", folder=tmp_path, length=1)
    tokens = bytes(np.concatenate(list(corpus("chorales", folder=tmp_path).tokens.values())))
    steps = [tuple(tokens[i : i + 4]) for i in range(0, len(tokens), 4)]
    struck, held, flat = (67, 64, 60, 60), (195, 192, 188, 188), (58,) * 4
    assert steps == [struck, *[held] * 5, *[(0,) * 4] * 2, flat, (186,) * 4, (128,) * 4]
    assert made.vocabulary == 256
    (tmp_path / "bwv1.mxl").write_bytes(b"PK no archive")
    with pytest.raises(ThreefoldError, match=r"bwv1\.mxl: not a MusicXML score"):
        read_score(tmp_path / "bwv1.mxl")
    (tmp_path / "a.xml").write_text(SCORE.format("<part/>"))
    with pytest.raises(ThreefoldError, match="the score has no notes"):
        read_score(tmp_path / "a.xml")


def test_what_a_machine_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(translation, "check_bytes", lambda name, content: None)
    english = [f"sentence  {i}" for i in range(200)] + ["what shit", "never translated"]
    keys = [hashlib.md5(text.encode()).hexdigest() for text in english]
    german = [[f"Satz {i}", key] for i, key in enumerate(keys[:-1])] + [["fremd", "0" * 32]]
    for name, rows in (("nlp-corpus-4.4.0", english), ("de-corpus-0.0.1", german)):
        (tmp_path / name / "builds").mkdir(parents=True)
        (tmp_path / name / "builds" / "doc-0.json").write_text(json.dumps(rows))
    found = translation.machine_pairs.__wrapped__("de")
    joined = [pair for split in ("train", "valid", "test") for pair in found[split]]
    assert sorted(joined) == sorted((f"sentence {i}", f"Satz {i}") for i in range(200))
    assert all(3 < len(found[split]) < 25 for split in ("valid", "test"))
    with pytest.raises(ThreefoldError, match="from 'en' to 'fr'; expected from 'en' to 'de', or a"):
        task("translation", languages=("en", "fr")).rows("train", [0])
    with pytest.raises(ThreefoldError, match="did you mean 'translation-machine'"):
        translation.texts_of("translation-machines")
