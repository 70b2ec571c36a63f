"""A text tokenized into a folder: documents stay apart, training resumes, the model is whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.surfaces.test_cli import here
from threefold import ThreefoldError
from threefold.data.loaders import IGNORE
from threefold.data.token_files import TokenFile, read_token_folder, tokenize
from threefold.data.tokenizers import ByteTokenizer
from threefold.tasks.user_data.token_folder import tokenize_files
from threefold.training.config import RunConfig
from threefold.training.experiment import run
from threefold.training.training_data import TrainingData, open_data

LINES = [f"Line {i} of the text, whose words are {i * 37 % 101} and {i * i}.\n" for i in range(900)]


def books(folder: Path, count: int = 30) -> Path:
    """A folder of texts, each a document."""
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:02}.txt").write_text("".join(LINES[i * 30 : i * 30 + 25 + i % 5]))
    return folder


def opened(folder: Path, **settings: Any) -> TrainingData:
    return open_data(str(folder), length=32, batch_size=4, **settings)


def test_the_command(tmp_path: Path) -> None:
    source, out = books(tmp_path / "books", 4), tmp_path / "corpus"
    done = here("data", "tokenize", str(source), str(out), "--json")
    assert done.returncode == 0, done.stderr
    size = sum(file.stat().st_size for file in source.iterdir())
    expected = {"folder": str(out), "tokens": size, "documents": 4, "vocabulary": 256}
    assert json.loads(done.stdout) == expected
    again = here("data", "tokenize", str(source), str(out))
    assert again.returncode == 2 and "exists already" in again.stderr


@pytest.mark.parametrize("name", ["byte", "character", "bpe", "word"])
def test_tokens_are_the_text(name: str, tmp_path: Path) -> None:
    source = books(tmp_path / "books", 3)
    tokenize_files(source, tmp_path / "corpus", tokenizer=name, vocabulary=300)
    file, tokenizer = read_token_folder(tmp_path / "corpus")
    assert isinstance(file.tokens, np.memmap)
    texts = [tokenizer.decode(part) for part in np.split(file.tokens, file.starts[1:])]
    assert texts == [path.read_text() for path in sorted(source.iterdir())]


@pytest.mark.parametrize(("separator", "between"), [("<|end|>", "<|end|>\n"), ("", "\n \n")])
def test_documents_between_separators(separator: str, between: str, tmp_path: Path) -> None:
    path = tmp_path / "all.txt.gz"
    path.write_bytes(
        gzip.compress(between.join(["one\ntwo\n", "three <|end|>\n", "four"]).encode())
    )
    chunks = list(tokenize([path], ByteTokenizer(), separator))
    assert [bytes(tokens) for tokens, _ in chunks] == [b"one\ntwo\n", b"three <|end|>\n", b"four"]
    assert all(begins for _, begins in chunks)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ThreefoldError, match=r"all\.txt\.gz: cannot be unpacked"):
        list(tokenize([path], ByteTokenizer()))


def test_no_document_sees_another(tmp_path: Path) -> None:
    source, out = books(tmp_path / "books"), tmp_path / "corpus"
    tokenize_files(source, out)
    texts = [path.read_bytes() for path in sorted(source.iterdir())]
    data = opened(out)
    batches = [data.batches()(step) for step in range(20)] + list(data.pieces("valid"))
    for batch in batches:
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
            real = targets != IGNORE
            row = bytes(inputs[real].tolist()) + bytes([int(targets[real][-1])])
            assert any(row in text for text in texts)
    whole = opened(out, batching="windows").batches()(0)
    assert whole.lengths is None
    # The splits are whole documents, and evaluation reads each token after the first once.
    starts = np.cumsum([0, *map(len, texts)])
    ends = np.cumsum([len(data.task.corpus().tokens[split]) for split in ("train", "valid")])
    assert set(ends.tolist()) <= set(starts.tolist())
    count = sum(int((piece.targets != IGNORE).sum()) for piece in data.pieces("test"))
    tested = data.task.corpus()
    assert count == len(tested.tokens["test"]) - len(tested.starts["test"])


def config(out: Path, steps: int, **training: Any) -> RunConfig:
    return RunConfig.read(
        {
            "data": {"name": str(out), "length": 32, "batch_size": 4, "eval_examples": 16},
            "model": {"mixers": ["gru"], "width": 16, "depth": 1},
            "training": {"steps": steps, "learning_rate": 1e-2, "save_every": 10, **training},
        }
    )


@pytest.mark.parametrize("carry", [False, True])
def test_training_resumes_and_the_model_is_whole(carry: bool, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    tokenize_files(books(tmp_path / "books"), out, tokenizer="word", vocabulary=400)
    settings = config(out, 40, carry_state=carry)
    straight = run(settings, tmp_path / "straight", reporters=(), samples=False)
    assert straight.result.losses[-1] < 0.8 * straight.result.losses[0]

    class Stop(threefold.training.reporters.Reporter):
        def on_step(self, trainer: Any) -> None:
            if trainer.result.steps == 25:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, tmp_path / "cut", reporters=[Stop()], samples=False)
    resumed = run(settings, tmp_path / "cut", reporters=(), samples=False)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    for path in out.iterdir():
        path.unlink()  # the model needs no token folder
    model = threefold.load(tmp_path / "cut" / "model")
    assert threefold.generate(model, "Line 3 of", max_tokens=4, temperature=0).text


def test_changed_tokens_are_noticed(tmp_path: Path) -> None:
    source, out = books(tmp_path / "books"), tmp_path / "corpus"
    tokenize_files(source, out)
    run(config(out, 3), tmp_path / "run", reporters=(), samples=False)
    (out / "data.tokens").rename(tmp_path / "old.tokens")
    (source / "00.txt").write_text("other\n" * 100)
    tokenize_files(source, tmp_path / "new")
    (tmp_path / "new" / "data.tokens").rename(out / "data.tokens")
    with pytest.raises(ThreefoldError, match=r"data\.tokens"):
        run(config(out, 3), tmp_path / "run", reporters=(), samples=False)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    (tmp_path / "one.txt").write_text("".join(LINES))
    assert len(tokenize_files(tmp_path / "one.txt", out).starts) == 1
    with pytest.raises(ThreefoldError, match="is one text"):
        opened(out, batching="documents").batches()
    with pytest.raises(ThreefoldError, match="does not apply to corpus, a token folder"):
        opened(out, tokenizer="word")
    assert len(TokenFile(out / "data.tokens")) == sum(map(len, LINES))
    assert opened(out / "data.tokens").task.name == "corpus"
    (out / "tokenizer.json").write_text("{}")
    with pytest.raises(ThreefoldError, match="unknown tokenizer None"):
        opened(out)
    (tmp_path / "empty").mkdir()
    for source, message in ((tmp_path / "absent", "not found"), (tmp_path / "empty", "no ")):
        with pytest.raises(ThreefoldError, match=message):
            tokenize_files(source, tmp_path / "new", tokenizer="bpe")


def test_masked_text_is_learnt_and_filled(tmp_path: Path) -> None:
    """A text that repeats: every masked byte follows from its neighbours."""
    path = tmp_path / "notes.txt"
    path.write_text("abcdefghijkl" * 800)
    settings = RunConfig.read(
        {
            "data": {"name": str(path), "kind": "masked", "length": 24, "batch_size": 16},
            "model": {"mixers": ["gru"], "width": 32, "depth": 1},
            "training": {"steps": 250, "learning_rate": 1e-2},
        }
    )
    trained = run(settings, tmp_path / "run", reporters=(), samples=False)
    assert trained.model.kind == "masked" and trained.test is not None
    assert trained.test.metric < 0.5 < 3.5 < trained.summary["chance"]
    answer = threefold.predict(tmp_path / "run", ["cde[MASK]ghij[MASK]labc"])
    assert answer[0]["text"] == "cdefghijklabc"
    data = open_data(settings.data)
    assert torch.equal(
        data.task.rows("test", [0, 3]).inputs[1], data.task.rows("test", [3]).inputs[0]
    )
    first, again = data.batches()(3), data.batches()(3)
    assert torch.equal(first.inputs, again.inputs) and (first.inputs == 256).any()
    with pytest.raises(ThreefoldError, match="read with masked tokens"):
        data.batches(carry=True)
