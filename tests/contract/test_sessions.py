"""A session gives the same outputs in chunks, by single steps, as a fork and from a file."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data import CharacterTokenizer
from threefold.models.pooling import POOLINGS
from threefold.runtime.sampling import Sampling
from threefold.runtime.session import Session, check_streams
from threefold.runtime.state_files import describe_state, fork_state, read_state

VECTORS = {"input_size": 2, "classes": 3}
SPECS = {
    "language": Spec("language", 32, 2, ("mamba", "gla"), vocabulary=61),
    "attention": Spec("language", 32, 2, "attention", vocabulary=61),
    "gaussian": Spec(
        "forecaster", 32, 1, "mamba", options={"channels": 2, "horizon": 3, "head": "gaussian"}
    ),
    "quantile": Spec(
        "forecaster", 32, 1, "gru", options={"channels": 1, "exogenous": 1, "horizon": 2}
    ),
    "tagger": Spec("tagger", 32, 1, "gla", options=VECTORS),
    "regressor": Spec("regressor", 32, 1, "gla", options={"input_size": 2, "outputs": 2}),
    **{
        f"pooled by {pooling}": Spec(
            "classifier", 32, 1, "gla", options={**VECTORS, "pooling": pooling}
        )
        for pooling in POOLINGS
    },
}
every_model = pytest.mark.parametrize("name", SPECS)
LENGTH = 150
LETTERS = "".join(chr(ord("A") + i) for i in range(61))


@cache
def built(name: str) -> Any:
    """A model whose layers matter as much as its embedding, so that it hides no fault of theirs."""
    torch.manual_seed(0)
    model = threefold.build(SPECS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.tokenizer = CharacterTokenizer(LETTERS) if not model.input_size else None  # type: ignore[union-attr]
    return model.eval()


@pytest.mark.parametrize("limit", [-1, 0, 2.5, True])
def test_a_limit_is_none_or_at_least_one_token_everywhere(limit: Any) -> None:
    model, session = built("language"), Session(built("language"))
    session.feed([1])
    expected = f"max_tokens is {limit!r}, expected an integer of at least 1"
    with pytest.raises(ThreefoldError, match=expected):
        session.generate(limit)
    with pytest.raises(ThreefoldError, match=expected):
        session.search(limit, 2)
    for beams in (None, 2):
        with pytest.raises(ThreefoldError, match=expected):
            threefold.generate(model, [1], max_tokens=limit, beams=beams)
    with pytest.raises(ThreefoldError, match="a beam search needs a limit"):
        session.search(None, 2)  # type: ignore[arg-type]


def elements(name: str, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if built(name).input_size:
        return torch.randn(length, built(name).input_size, generator=generator)
    return torch.randint(0, 61, (length,), generator=generator)


@every_model
def test_chunks_and_single_steps_give_the_same_outputs(name: str) -> None:
    model, inputs = built(name), elements(name)
    stepped = Session(model)
    expected = torch.stack([stepped.feed(inputs[t : t + 1]) for t in range(LENGTH)])
    session = Session(model)
    outputs = torch.cat(
        [session.read(inputs[:70]), session.read(inputs[70:71]), session.read(inputs[71:])]
    )
    assert_close(outputs, expected)
    assert_close(Session(model).feed(inputs), expected[-1])
    assert session.position == stepped.position == LENGTH
    assert session.last_output is not None
    assert torch.equal(session.last_output, outputs[-1])


@every_model
def test_no_output_depends_on_later_elements(name: str) -> None:
    inputs = elements(name)
    other = inputs.clone()
    other[100:] = elements(name, 2 * LENGTH)[LENGTH + 100 : 2 * LENGTH]
    a, b = (Session(built(name)).read(x)[:100] for x in (inputs, other))
    assert torch.equal(a, b)


@every_model
def test_a_fork_and_a_file_continue_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, inputs = built(name), elements(name)
    session = Session(model, seed=3)
    session.read(inputs[:64])
    fork = session.fork()
    session.save(tmp_path / "s")
    loaded, next_one = Session.load(tmp_path / "s", model), session.predict()
    expected = session.read(inputs[64:])
    for other in (fork, loaded):
        assert other.position == 64
        assert torch.equal(other.predict(), next_one)
        assert torch.equal(other.read(inputs[64:]), expected)
    session.reset()
    assert session.position == 0 and session.last_output is None
    assert torch.equal(session.read(inputs[:64])[-1], Session(model).read(inputs[:64])[-1])


def test_tokens_are_those_of_generate(tmp_path: Path) -> None:
    model, prompt = built("language"), elements("language", 20)
    sampling = Sampling(temperature=0.9, top_k=20, repetition_penalty=1.2)
    options: dict[str, Any] = {"temperature": 0.9, "top_k": 20, "repetition_penalty": 1.2}
    expected = threefold.generate(model, prompt, max_tokens=24, seed=5, **options).rows()[0]
    session = Session(model, sampling=sampling, seed=5)
    session.feed(prompt)
    first = list(session.generate(10))
    session.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", model)
    assert again.sampling == sampling
    assert first + list(again.generate(14)) == expected
    assert first + list(session.fork().generate(14)) == expected
    assert first + list(session.fork(seed=8).generate(14)) != expected
    assert session.position == 30 and again.position == 44


def test_a_search_is_that_of_generate() -> None:
    model, prompt = built("language"), elements("language", 20)
    expected = threefold.generate(model, prompt, max_tokens=8, beams=3)
    session = Session(model)
    session.feed(prompt)
    best = session.search(8, 3)
    assert list(best.tokens) == expected.rows()[0]
    assert session.position == 28


def test_elements_of_any_kind_of_number() -> None:
    inputs = elements("language", 20)
    expected = Session(built("language")).feed(inputs)
    narrow = inputs.numpy().astype(np.uint16)
    narrow.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (narrow, inputs.tolist(), inputs.int()):
            assert torch.equal(Session(built("language")).feed(same), expected)


def test_memory_is_bounded() -> None:
    inputs = elements("language", 1000)
    session = Session(built("language"), max_state_bytes=10**6)
    session.feed(inputs[:1])
    before = session.state_bytes
    session.feed(inputs)
    assert session.state_bytes == before == built("language").state_size(1001)
    grows = Session(built("attention"), max_state_bytes=built("attention").state_size(100))
    grows.feed(inputs[:90])
    with pytest.raises(ThreefoldError, match=r"bytes after 101 elements, but max_state_bytes is"):
        grows.feed(inputs[:11])
    assert grows.position == 90
    grows.feed(inputs[:10])


def test_training_mode_is_left_as_it_was() -> None:
    spec = Spec("language", 32, 1, "gla", 61, options={"dropout": 0.5})
    model = threefold.build(spec)
    inputs = elements("language", 30)
    a, b = (Session(model).feed(inputs) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(a, b) and model.training


def test_bad_input_is_refused(tmp_path: Path) -> None:
    session = Session(built("language"))
    with pytest.raises(ThreefoldError, match="no prediction before the first element"):
        session.predict()
    for wrong in ([], [[1, 2]], torch.zeros(3), [2**70], "text"):
        with pytest.raises(ThreefoldError, match="session: "):
            session.feed(wrong)
    with pytest.raises(ThreefoldError, match=r"expected numbers \[length, 2\]"):
        Session(built("tagger")).feed(torch.zeros(3, 4))
    with pytest.raises(ThreefoldError, match="only a language model can generate tokens"):
        Session(built("tagger")).sample()
    with pytest.raises(ThreefoldError, match="seed is 'x'"):
        Session(built("language"), seed="x")  # type: ignore[arg-type]
    _, state = built("language")(torch.zeros(2, 3, dtype=torch.int64))
    threefold.save_state(tmp_path / "two", state, built("language"))
    with pytest.raises(
        ThreefoldError, match=r"this state has 2 rows, but a session has one.*rows="
    ):
        Session.load(tmp_path / "two", built("language"))
    with pytest.raises(ThreefoldError, match=r"another model .*mixers: \['mamba', 'gla'\] and"):
        Session.load(tmp_path / "two", built("attention"))


def test_models_that_cannot_stream_are_refused() -> None:
    both = Spec("tagger", 32, 1, "gla", options={"bidirectional": True})
    for spec, message in (
        (both, r"this tagger model \(gla, bidirectional\) is not causal"),
        (Spec("classifier", 32, 1, "fnet"), "is not causal, so it cannot read a stream"),
        (Spec("classifier", 32, 1, "gla", options={"pair": True}), "a classifier of pairs"),
        (Spec("masked", 32, 1, "gla"), "a masked model cannot read a stream"),
        (Spec("seq2seq", 32, 1, "gru"), "a seq2seq model cannot read a stream"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            check_streams(threefold.build(spec))
    pairs: Any = threefold.build(Spec("classifier", 32, 1, "gla", options={"pair": True}))
    with pytest.raises(ThreefoldError, match="reads pairs, so it has no output after each"):
        pairs.respond(torch.zeros(1, 2, dtype=torch.int64), {})


class TestStateFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        model = built("attention")
        with torch.no_grad():
            _, state = model(torch.arange(24).view(3, 8))
        threefold.save_state(tmp_path / "three", state, model, notes={"a": [1]})
        return tmp_path / "three"

    def test_fork(self, path: Path) -> None:
        model, copy, picked = built("attention"), path.with_name("copy"), path.with_name("picked")
        fork_state(path, copy)
        assert read_state(copy).notes == {"a": [1]}
        fork_state(path, picked, rows=[2, 0])
        assert read_state(picked).position == [8, 8] and read_state(picked).notes == {}
        tokens = torch.tensor([5, 6, 7])
        with torch.no_grad():
            expected, _ = model.step(tokens, threefold.load_state(path, model))
            again, _ = model.step(tokens, threefold.load_state(copy, model))
            two, _ = model.step(tokens[[2, 0]], threefold.load_state(picked, model))
        assert torch.equal(again, expected)
        assert_close(two, expected[[2, 0]])
        with pytest.raises(ThreefoldError, match="already exists"):
            fork_state(path, copy)
        for rows in ([3], [], [-1]):
            with pytest.raises(ThreefoldError, match=r"expected row numbers 0 to 2"):
                fork_state(path, path.with_name("none"), rows=rows)

    def test_inspect(self, path: Path) -> None:
        facts = describe_state(path)
        assert facts["rows"] == 3 and facts["position"] == [8, 8, 8]
        assert facts["notes"] == {"a": [1]}
        assert facts["bytes"] == 3 * built("attention").state_size(8)

    def test_changed_notes_are_damage(self, path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data.replace(b'{\\"a\\": [1]}', b'{\\"a\\": [2]}'))
        assert path.read_bytes() != data
        with pytest.raises(ThreefoldError, match="damaged"):
            read_state(path)
