"""`threefold generate` as a person runs it: whole characters, states that go on, refusals."""

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
from threefold.cli import generate as command
from threefold.data import BPETokenizer, ByteTokenizer
from threefold.runtime.opening import open_model

PROMPT = "naïve: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes, the same in the folder of a run, and one of byte pairs."""
    folder = tmp_path_factory.mktemp("generate")
    torch.manual_seed(0)
    model = threefold.build(Spec("language", 32, 1, "gla"))
    model.tokenizer = ByteTokenizer()
    model.save(folder / "bytes")
    model.save(folder / "run" / "model")
    pairs = BPETokenizer.learn(["the naïve cat sat on the naïve mat"] * 9, vocabulary=270)
    model = threefold.build(Spec("language", 32, 1, "gla", vocabulary=300))  # filled up
    model.tokenizer = pairs
    model.save(folder / "pairs")
    return folder


@pytest.fixture(autouse=True)
def place(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_text_is_that_of_generate() -> None:
    model: Any = open_model("bytes").model
    prompt = model.tokenizer.encode(PROMPT)
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 50, "top_p": 0.9}
    made = threefold.generate(model, prompt, max_tokens=40, seed=3, **options).rows()[0]
    words = ["--tokens", "40", "--seed", "3", "--temperature", "0.7", "--top-k", "50"]
    words += ["--top-p", "0.9"]
    assert good("generate", "bytes", PROMPT, *words) == model.tokenizer.decode(made) + "\n"
    facts = json.loads(good("generate", "run", PROMPT, *words, "--json"))
    assert facts["tokens"] == made and facts["seed"] == 3 and facts["reason"] == "length"
    assert facts["text"] == model.tokenizer.decode(made)
    assert facts["position"] == len(prompt) + 40
    best = threefold.generate(model, prompt, max_tokens=6, beams=3, length_penalty=0.5).rows()[0]
    words = ["--beam", "3", "--tokens", "6", "--length-penalty", "0.5", "--json"]
    assert json.loads(good("generate", "bytes", PROMPT, *words))["tokens"] == best


def test_a_prompt_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--tokens", "12", "--seed", "0", "--json")
    expected = json.loads(good("generate", "bytes", PROMPT, *words))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
        found = json.loads(good("generate", "bytes", "-", *words))
    assert found["tokens"] == expected["tokens"]


def test_a_state_goes_on_as_if_it_had_never_stopped() -> None:
    words = ("--seed", "1", "--temperature", "0.8", "--json")
    whole = json.loads(good("generate", "bytes", PROMPT, "--tokens", "30", *words))
    first = json.loads(good("generate", "bytes", PROMPT, "--tokens", "11", *words,
                            "--save-state", "s"))  # fmt: skip
    rest = json.loads(good("generate", "bytes", "--state", "s", "--tokens", "19", "--json"))
    assert first["tokens"] + rest["tokens"] == whole["tokens"]
    other = json.loads(good("generate", "bytes", "--state", "s", "--tokens", "19", "--seed", "2",
                            "--json"))  # fmt: skip
    assert other["tokens"] != rest["tokens"]
    asked = json.loads(good("generate", "bytes", " and", "--state", "s", "--tokens", "1", "--json"))
    assert asked["position"] == first["position"] + 5


def test_characters_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of a character are held until it is there, over the end of a run, too."""
    data = list("aé€😀z".encode())
    made = iter(data)
    monkeypatch.setattr("threefold.runtime.session.Session.draw", lambda self: next(made))
    written: list[str] = []

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return super().write(text)

    monkeypatch.setattr(sys, "stdout", Screen())
    writer = command.Writer("bytes", {}, 0, None, silent=False)
    writer.read("x")
    writer.draw(4, [], Quiet())  # a, é and the first byte of €
    writer.close(Path("s"))
    assert "".join(written) == "aé\n"
    del written[:]
    writer = command.Writer("bytes", {}, 0, Path("s"), silent=False)
    writer.draw(len(data) - 4, [], Quiet())
    writer.close(None)
    assert [text for text in written if text] == ["€", "😀", "z", "\n"]
    made = iter(data[:2])
    writer = command.Writer("bytes", {}, 0, None, silent=True)
    writer.read("x")
    writer.draw(2, [], Quiet())
    writer.close(None)
    assert writer.text == "a\ufffd"


class Quiet:
    asked = False


def test_stop_texts_and_pairs() -> None:
    facts = json.loads(good("generate", "pairs", "the cat", "--tokens", "400", "--seed", "0",
                            "--json"))  # fmt: skip
    assert max(facts["tokens"]) < open_model("pairs").tokenizer.vocabulary
    tokenizer = open_model("pairs").tokenizer
    texts = {token: tokenizer.parts[token].decode("utf-8", "ignore") for token in facts["tokens"]}
    place = next(  # the first of its kind, and spelt by itself
        place
        for place, token in enumerate(facts["tokens"])
        if place >= 5
        and token not in facts["tokens"][:place]
        and tokenizer.encode(texts[token]).tolist() == [token]
    )
    text = texts[facts["tokens"][place]]
    stopped = json.loads(good("generate", "pairs", "the cat", "--tokens", "400", "--seed", "0",
                              "--json", "--stop", text))  # fmt: skip
    assert stopped["reason"] == "stop" and stopped["tokens"] == facts["tokens"][: place + 1]
    assert "--stop ''" in refused("generate", "bytes", "x", "--stop", "")


def test_an_interruption_saves_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--seed", "1", "--tokens", "0")
    ordinary = command.Writer._say

    def say(writer: command.Writer, token: int) -> None:
        ordinary(writer, token)
        if writer.count == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(command.Writer, "_say", say)
        done = here("generate", "bytes", PROMPT, *words, "--save-state", "s")
        assert done.returncode == 130
        lost = here("generate", "bytes", PROMPT, *words)
        assert "nothing was kept to go on from: --save-state" in lost.stderr
    again = shlex.split(done.stderr.split("go on with: ")[1])
    whole = json.loads(good("generate", "bytes", PROMPT, "--tokens", "12", "--seed", "1", "--json"))
    rest = json.loads(good(*again[1:], "--tokens", "5", "--json"))
    assert rest["tokens"] == whole["tokens"][7:]


def test_what_cannot_be_used(place: Path) -> None:
    assert "nothing to continue; give a PROMPT" in refused("generate", "bytes")
    assert "nothing to continue" in refused("generate", "bytes", "")
    assert "there is no such folder" in refused("generate", "none", "x")
    assert "leave out --temperature" in refused("generate", "bytes", "x", "--beam", "2",
                                               "--temperature", "0.5")  # fmt: skip
    assert "belongs to --beam" in refused("generate", "bytes", "x", "--length-penalty", "1")
    assert "top_p is 1.5" in refused("generate", "bytes", "x", "--top-p", "1.5")
    threefold.build(Spec("language", 32, 1, "gla")).save(place / "bare")
    assert "saved without a tokenizer" in refused("generate", "bare", "x")
    threefold.build(Spec("forecaster", 32, 1, "gla")).save(place / "series")
    assert "a forecaster model does not write text" in refused("generate", "series", "x")
    good("generate", "bytes", "x", "--tokens", "1", "--save-state", "s")
    assert "a state of another model" in refused("generate", "pairs", "--state", "s")
    model: Any = threefold.load("bytes")
    threefold.save_state(place / "plain", model(torch.zeros(1, 2, dtype=torch.int64))[1], model)
    assert "nothing to continue" in refused("generate", "bytes", "--state", "plain")
    good("generate", "bytes", "x", "--state", "plain", "--tokens", "1")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    model.save(place / "other")
    assert "a state of other weights" in refused("generate", "other", "--state", "s")
    (place / "text.txt").write_text("a text")
    good("stream", "bytes", "text.txt", "--state", "streamed", "--json")
    good("generate", "bytes", "--state", "streamed", "--tokens", "1")
    assert "a state of other weights" in refused("generate", "other", "--state", "streamed")
    os.mkfifo(place / "pipe")  # as /dev/null it is no file that another may replace
    for name, message in (("pipe", "not a regular file"), ("none/s", "no such folder: none")):
        assert message in refused("generate", "bytes", "x", "--save-state", name)
        assert message in refused("stream", "bytes", "text.txt", "--state", name)
    assert (place / "pipe").is_fifo()
    (place / "s").write_bytes(b"no state")
    assert "not a safetensors file" in refused("generate", "bytes", "--state", "s")
