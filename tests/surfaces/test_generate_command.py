"""`threefold generate` as a user runs it: whole characters, saved states, error messages."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.test_cli import good, here, refused
from threefold import Spec
from threefold.data import BPETokenizer, ByteTokenizer
from threefold.models.saving import open_model
from threefold.runtime.text_writer import TextWriter, TokenText

PROMPT = "naïve: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes, the same model in a run folder, and a model of byte pairs."""
    folder = tmp_path_factory.mktemp("generate")
    torch.manual_seed(0)
    model = threefold.build(Spec("language", 32, 1, "gla"))
    model.tokenizer = ByteTokenizer()
    model.save(folder / "bytes")
    model.save(folder / "run" / "model")
    pairs = BPETokenizer.learn(["the naïve cat sat on the naïve mat"] * 9, vocabulary=270)
    model = threefold.build(Spec("language", 32, 1, "gla", vocabulary=300))  # padded
    model.tokenizer = pairs
    model.save(folder / "pairs")
    return folder


@pytest.fixture(autouse=True)
def workdir(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_text_is_that_of_generate() -> None:
    model: Any = open_model("bytes").model
    prompt = model.tokenizer.encode(PROMPT)
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.1}
    tokens = threefold.generate(model, prompt, max_tokens=40, seed=3, **options).rows()[0]
    words = ["--max-tokens", "40", "--seed", "3", "--temperature", "0.7", "--top-k", "50"]
    words += ["--top-p", "0.9", "--min-p", "0.1"]
    assert good("generate", "bytes", PROMPT, *words) == model.tokenizer.decode(tokens) + "\n"
    facts = json.loads(good("generate", "run", PROMPT, *words, "--json"))
    assert facts["tokens"] == tokens and facts["seed"] == 3 and facts["finish_reason"] == "length"
    assert facts["text"] == model.tokenizer.decode(tokens)
    assert facts["position"] == len(prompt) + 40
    best = threefold.generate(model, prompt, max_tokens=6, beams=3, length_penalty=0.5).rows()[0]
    words = ["--beams", "3", "--max-tokens", "6", "--length-penalty", "0.5", "--json"]
    assert json.loads(good("generate", "bytes", PROMPT, *words))["tokens"] == best


def test_a_prompt_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--max-tokens", "12", "--seed", "0", "--json")
    expected = json.loads(good("generate", "bytes", PROMPT, *words))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
        result = json.loads(good("generate", "bytes", "-", *words))
    assert result["tokens"] == expected["tokens"]


def test_a_state_continues_as_if_it_had_never_stopped() -> None:
    words = ("--seed", "1", "--temperature", "0.8", "--json")
    whole = json.loads(good("generate", "bytes", PROMPT, "--max-tokens", "30", *words))
    first = json.loads(good("generate", "bytes", PROMPT, "--max-tokens", "11", *words,
                            "--save-state", "s"))  # fmt: skip
    rest = json.loads(good("generate", "bytes", "--state", "s", "--max-tokens", "19", "--json"))
    assert first["tokens"] + rest["tokens"] == whole["tokens"]
    other = json.loads(good("generate", "bytes", "--state", "s", "--max-tokens", "19", "--json",
                            "--seed", "2"))  # fmt: skip
    assert other["tokens"] != rest["tokens"]
    asked = json.loads(
        good("generate", "bytes", " and", "--state", "s", "--max-tokens", "1", "--json")
    )
    assert asked["position"] == first["position"] + 5


def test_characters_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a character are held back until it is complete, also across a saved state."""
    data = list("aé€😀z".encode())
    tokens = iter(data)
    monkeypatch.setattr("threefold.runtime.decoding.choose_tokens", lambda *_: [next(tokens)])
    opened = open_model("bytes")
    writer = TextWriter(opened, seed=0)
    writer.read_prompt("x")
    texts = [text for _, text in writer.generate(4)]  # a, é and the first byte of €
    writer.save("s")
    assert texts == ["a", "", "é", ""]
    writer = TextWriter(opened, seed=0, state_path="s")
    texts = [text for _, text in writer.generate(len(data) - 4)] + [writer.finish()]
    assert [text for text in texts if text] == ["€", "😀", "z"]
    tokens = iter(data[:2])
    writer = TextWriter(opened, seed=0)
    writer.read_prompt("x")
    assert "".join(text for _, text in writer.generate(2)) + writer.finish() == "a\ufffd"


def test_characters_are_printed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = list("aé€".encode())
    tokens = iter(data)
    monkeypatch.setattr("threefold.runtime.decoding.choose_tokens", lambda *_: [next(tokens)])
    first = good("generate", "bytes", "x", "--max-tokens", "4", "--save-state", "s")
    assert first == "aé\n"
    assert good("generate", "bytes", "--state", "s", "--max-tokens", "2") == "€\n"
    tokens = iter(data[:2])
    assert good("generate", "bytes", "x", "--max-tokens", "2") == "a\ufffd\n"


def test_stop_texts_and_pairs() -> None:
    facts = json.loads(good("generate", "pairs", "the cat", "--max-tokens", "400", "--seed", "0",
                            "--json"))  # fmt: skip
    assert max(facts["tokens"]) < open_model("pairs").tokenizer.vocabulary
    tokenizer = open_model("pairs").tokenizer
    texts = {token: tokenizer.parts[token].decode("utf-8", "ignore") for token in facts["tokens"]}
    index = next(  # of a token that did not occur before, and is the encoding of its own text
        index
        for index, token in enumerate(facts["tokens"])
        if index >= 5
        and token not in facts["tokens"][:index]
        and tokenizer.encode(texts[token]).tolist() == [token]
    )
    text = texts[facts["tokens"][index]]
    stopped = json.loads(good("generate", "pairs", "the cat", "--max-tokens", "400", "--seed", "0",
                              "--json", "--stop", text))  # fmt: skip
    assert stopped["finish_reason"] == "stop" and stopped["tokens"] == facts["tokens"][: index + 1]
    assert "a stop text is empty" in refused("generate", "bytes", "x", "--stop", "")


def test_an_interruption_saves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--seed", "1", "--endless")
    ordinary = TextWriter._decode

    def decode(writer: TextWriter, token: int) -> TokenText:
        if writer.count == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return ordinary(writer, token)

    with monkeypatch.context() as patch:
        patch.setattr(TextWriter, "_decode", decode)
        done = here("generate", "bytes", PROMPT, *words, "--save-state", "s")
        assert done.returncode == 130
        lost = here("generate", "bytes", PROMPT, *words)
        assert "Stopped. Nothing was saved. Use --save-state FILE" in lost.stderr
    again = shlex.split(done.stderr.split("Continue with: ")[1])
    whole = json.loads(
        good("generate", "bytes", PROMPT, "--max-tokens", "12", "--seed", "1", "--json")
    )
    rest = json.loads(good(*again[1:], "--max-tokens", "5", "--json"))
    assert rest["tokens"] == whole["tokens"][7:]


def test_errors(workdir: Path) -> None:
    assert "nothing to continue; give a PROMPT" in refused("generate", "bytes")
    assert "nothing to continue" in refused("generate", "bytes", "")
    assert "folder not found" in refused("generate", "none", "x")
    assert "leave out --temperature" in refused("generate", "bytes", "x", "--beams", "2",
                                               "--temperature", "0.5")  # fmt: skip
    assert "--repetition-penalty and --seed" in refused("generate", "bytes", "x", "--beams", "2",
                                                         "--seed", "1")  # fmt: skip
    assert "--endless has no limit, but --max-tokens 3 needs one" in refused(
        "generate", "bytes", "x", "--endless", "--max-tokens", "3"
    )
    assert "--endless has no limit, but --beams needs one" in refused(
        "generate", "bytes", "x", "--endless", "--beams", "2"
    )
    assert "greater than or equal to 1" in refused("generate", "bytes", "x", "--max-tokens", "0")
    assert "temperature is nan, expected a finite number" in refused(
        "generate", "bytes", "x", "--temperature", "nan"
    )
    assert "is only used with --beams" in refused("generate", "bytes", "x", "--length-penalty", "1")
    assert "top_p is 1.5" in refused("generate", "bytes", "x", "--top-p", "1.5")
    threefold.build(Spec("language", 32, 1, "gla")).save(workdir / "bare")
    assert "saved without a tokenizer" in refused("generate", "bare", "x")
    threefold.build(Spec("forecaster", 32, 1, "gla")).save(workdir / "series")
    assert "a forecaster model cannot write text" in refused("generate", "series", "x")
    good("generate", "bytes", "x", "--max-tokens", "1", "--save-state", "s")
    assert "the state of another model" in refused("generate", "pairs", "--state", "s")
    model: Any = threefold.load("bytes")
    threefold.save_state(workdir / "plain", model(torch.zeros(1, 2, dtype=torch.int64))[1], model)
    assert "nothing to continue" in refused("generate", "bytes", "--state", "plain")
    good("generate", "bytes", "x", "--state", "plain", "--max-tokens", "1")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save(workdir / "other")
    assert "computed with other weights" in refused("generate", "other", "--state", "s")
    (workdir / "text.txt").write_text("a text")
    good("stream", "bytes", "text.txt", "--state", "streamed", "--json")
    good("generate", "bytes", "--state", "streamed", "--max-tokens", "1")
    assert "computed with other weights" in refused("generate", "other", "--state", "streamed")
    os.mkfifo(workdir / "pipe")  # like /dev/null, it must not be replaced by a file
    for name, message in (("pipe", "not a regular file"), ("none/s", "no such folder: none")):
        assert message in refused("generate", "bytes", "x", "--save-state", name)
        assert message in refused("stream", "bytes", "text.txt", "--state", name)
    assert (workdir / "pipe").is_fifo()
    (workdir / "mine.csv").write_text("a,b\n1,2\n")
    for words in (
        ("generate", "bytes", "x", "--save-state"),
        ("stream", "bytes", "text.txt", "--state"),
    ):
        assert "mine.csv: exists already, and is not a saved state" in refused(*words, "mine.csv")
    assert (workdir / "mine.csv").read_text() == "a,b\n1,2\n"
    (workdir / "s").write_bytes(b"no state")
    assert "not a safetensors file" in refused("generate", "bytes", "--state", "s")
