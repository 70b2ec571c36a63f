"""`threefold stream` of a hierarchical model: an answer after each sentence of a document."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.text import Labels, TokenizeSentences
from threefold.data.tokenizers import WordTokenizer

TEXT = 'It rains. "Stay here!" she said.\n\nWhy?  He left… Nobody knew\nthe way. É vero. End'
SENTENCES = (
    *("It rains.", '"Stay here!"', "she said.", "Why?", "He left…"),
    *("Nobody knew", "the way.", "É vero.", "End"),
)


def make(mixers: Any = "gla", **options: Any) -> Any:
    torch.manual_seed(0)
    step = TokenizeSentences.by(WordTokenizer(["It", " rains", "Nobody", " knew", "the", "Why"]))
    spec = Spec("hierarchical", 16, 1, mixers, step.vocabulary, options={"classes": 3, **options})
    model: Any = threefold.build(spec).double().eval()
    torch.nn.init.normal_(model.embedding.weight)
    labels = Chain((Labels(("a", "b", "c")),))
    model.preprocessing = Preprocessing("hierarchical", "text", Chain((step,)), labels)
    return model


def answers(stream: Any) -> list[dict[str, Any]]:
    return [row for scores in stream for row in scores.rows()]


@pytest.mark.parametrize(
    ("mixers", "options"),
    [
        ("gla", {}),
        ("attention", {"document_mixers": ("gru",)}),
        ("fnet", {"document_mixers": ("mamba",)}),  # words may see later words of their sentence
    ],
)
def test_after_each_sentence_is_the_answer_to_the_text_so_far(mixers: Any, options: Any) -> None:
    model = make(mixers, **options)
    rows = answers(threefold.stream(model, TEXT.encode(), top_k=3))
    assert tuple(row["text"] for row in rows) == SENTENCES
    for count, row in enumerate(rows, 1):
        whole = model.predict("\n".join(SENTENCES[:count]))[0]["probabilities"]
        assert row["label"] == max(whole, key=whole.__getitem__)
        for place in range(3):
            name, value = (row[f"{key}{'' if place == 0 else f'_{place + 1}'}"]
                           for key in ("label", "probability"))  # fmt: skip
            expected = torch.tensor([whole[name]], dtype=torch.float64)
            assert_close(torch.tensor([value], dtype=torch.float64), expected)


def test_cut_anywhere_and_continued(tmp_path: Path) -> None:
    model, data = make(), TEXT.encode()
    expected = answers(threefold.stream(model, data))
    for size in (1, 3, 7):
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert answers(threefold.stream(model, iter(pieces), chunk_size=16)) == expected, size
    file, state = tmp_path / "text.txt", tmp_path / "state"
    for cut in (5, 30, 41, len(data) - 2):
        file.write_bytes(data[:cut])
        first = threefold.stream(model, file, chunk_size=2)
        before = answers(first)
        first.save(state)
        file.write_bytes(data)
        resumed = threefold.stream(model, file, state=state)
        skipped = resumed.skip
        after = answers(resumed)
        assert [*before, *after][-len(after) :] == expected[-len(after) :] if after else True
        assert before[: len(before) - skipped] == expected[: len(before) - skipped]


def test_from_the_command_line(tmp_path: Path) -> None:
    make().float().save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    command = [sys.executable, "-m", "threefold", "stream", str(tmp_path / "model")]
    output = tmp_path / "out.jsonl"
    done = subprocess.run(
        [*command, str(tmp_path / "text.txt"), "--output", str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == list(SENTENCES)


def test_what_cannot_be_streamed_is_refused() -> None:
    for options in ({"bidirectional": True}, {"document_mixers": ("fnet",)}):
        with pytest.raises(ThreefoldError, match="see later sentences; train one with causal ones"):
            threefold.stream(make("attention", **options), b"One. Two.")
    with pytest.raises(ThreefoldError, match="reads text, whose sentences are found as in"):
        threefold.stream(make(), [1, 2, 3])
    with pytest.raises(ThreefoldError, match="an answer after each element"):
        threefold.Session(make())
    with pytest.raises(ThreefoldError, match="no likelihood"):
        threefold.stream(make(), b"One.", mode="likelihood")
    assert answers(threefold.stream(make(), b" \n ")) == []
