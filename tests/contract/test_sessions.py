"""Sessions keep the law: pieces, forks, files and steps give the same answers."""

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
from threefold.runtime.session import Session, respond, streaming
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
    **{
        f"pooled by {pooling}": Spec(
            "classifier", 32, 1, "gla", options={**VECTORS, "pooling": pooling}
        )
        for pooling in POOLINGS
    },
}
every = pytest.mark.parametrize("name", SPECS)
LENGTH = 150
LETTERS = "".join(chr(ord("A") + i) for i in range(61))


@cache
def made(name: str) -> Any:
    """A model whose layers weigh as much as its embedding, so that no fault hides behind it."""
    torch.manual_seed(0)
    model = threefold.build(SPECS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.tokenizer = CharacterTokenizer(LETTERS) if not model.input_size else None  # type: ignore[union-attr]
    return model.eval()


def elements(name: str, length: int = LENGTH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if made(name).input_size:
        return torch.randn(length, made(name).input_size, generator=generator)
    return torch.randint(0, 61, (length,), generator=generator)


@every
def test_pieces_and_single_steps_give_the_same_answers(name: str) -> None:
    model, given = made(name), elements(name)
    stepped = Session(model)
    expected = torch.stack([stepped.feed(given[t : t + 1]) for t in range(LENGTH)])
    session = Session(model)
    found = torch.cat(
        [session.read(given[:70]), session.read(given[70:71]), session.read(given[71:])]
    )
    assert_close(found, expected)
    assert_close(Session(model).feed(given), expected[-1])
    assert session.position == stepped.position == LENGTH
    assert session.last is not None and torch.equal(session.last, found[-1])


@every
def test_no_answer_looks_ahead(name: str) -> None:
    given = elements(name)
    other = given.clone()
    other[100:] = elements(name, 2 * LENGTH)[LENGTH + 100 : 2 * LENGTH]
    a, b = (Session(made(name)).read(x)[:100] for x in (given, other))
    assert torch.equal(a, b)


@every
def test_a_fork_and_a_file_go_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, given = made(name), elements(name)
    session = Session(model, seed=3)
    session.read(given[:64])
    fork = session.fork()
    session.save(tmp_path / "s")
    loaded, next_one = Session.load(tmp_path / "s", model), session.predict()
    expected = session.read(given[64:])
    for other in (fork, loaded):
        assert other.position == 64
        assert torch.equal(other.predict(), next_one)
        assert torch.equal(other.read(given[64:]), expected)
    session.reset()
    assert session.position == 0 and session.last is None
    assert torch.equal(session.read(given[:64])[-1], Session(model).read(given[:64])[-1])


def test_tokens_are_those_of_generate(tmp_path: Path) -> None:
    model, prompt = made("language"), elements("language", 20)
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
    model, prompt = made("language"), elements("language", 20)
    expected = threefold.generate(model, prompt, max_tokens=8, beams=3)
    session = Session(model)
    session.feed(prompt)
    best = session.search(8, 3)
    assert list(best.tokens) == expected.rows()[0]
    assert session.position == 28


def test_elements_of_any_kind_of_number() -> None:
    given = elements("language", 20)
    expected = Session(made("language")).feed(given)
    narrow = given.numpy().astype(np.uint16)
    narrow.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (narrow, given.tolist(), given.int()):
            assert torch.equal(Session(made("language")).feed(same), expected)


def test_memory_is_bounded() -> None:
    given = elements("language", 1000)
    session = Session(made("language"), limit=10**6)
    session.feed(given[:1])
    before = session.state_bytes
    session.feed(given)
    assert session.state_bytes == before == made("language").state_size(1001)
    grows = Session(made("attention"), limit=made("attention").state_size(100))
    grows.feed(given[:90])
    with pytest.raises(ThreefoldError, match=r"bytes after 101 elements, the limit is"):
        grows.feed(given[:11])
    assert grows.position == 90
    grows.feed(given[:10])


def test_training_mode_is_left_as_it_was() -> None:
    spec = Spec("language", 32, 1, "gla", 61, options={"dropout": 0.5})
    model = threefold.build(spec)
    given = elements("language", 30)
    a, b = (Session(model).feed(given) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(a, b) and model.training


def test_bad_input_is_refused(tmp_path: Path) -> None:
    session = Session(made("language"))
    with pytest.raises(ThreefoldError, match="nothing was read yet"):
        session.predict()
    for wrong in ([], [[1, 2]], torch.zeros(3), [2**70], "text"):
        with pytest.raises(ThreefoldError, match="session: "):
            session.feed(wrong)
    with pytest.raises(ThreefoldError, match=r"expected numbers \[length, 2\]"):
        Session(made("tagger")).feed(torch.zeros(3, 4))
    with pytest.raises(ThreefoldError, match="tokens are drawn from a LanguageModel"):
        Session(made("tagger")).draw()
    with pytest.raises(ThreefoldError, match="seed is 'x'"):
        Session(made("language"), seed="x")  # type: ignore[arg-type]
    _, state = made("language")(torch.zeros(2, 3, dtype=torch.int64))
    threefold.save_state(tmp_path / "two", state, made("language"))
    with pytest.raises(ThreefoldError, match=r"a state of 2 rows, a session has one.*rows="):
        Session.load(tmp_path / "two", made("language"))
    with pytest.raises(ThreefoldError, match=r"another model .*mixers: \['mamba', 'gla'\] and"):
        Session.load(tmp_path / "two", made("attention"))


def test_what_does_not_stream_is_refused() -> None:
    both = Spec("tagger", 32, 1, "gla", options={"bidirectional": True})
    for spec, message in (
        (both, r"this tagger \(gla, in both directions\) sees later elements"),
        (Spec("classifier", 32, 1, "fnet"), "sees later elements, so it has no causal form"),
        (Spec("classifier", 32, 1, "gla", options={"pair": True}), "a classifier of pairs"),
        (Spec("masked", 32, 1, "gla"), "a masked model has no answer after each element"),
        (Spec("seq2seq", 32, 1, "gru"), "a seq2seq model has no answer after each element"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            streaming(threefold.build(spec))
    pairs: Any = threefold.build(Spec("classifier", 32, 1, "gla", options={"pair": True}))
    with pytest.raises(ThreefoldError, match="reads pairs, so it has no output after each"):
        respond(pairs, torch.zeros(1, 2, dtype=torch.int64), {})


class TestStateFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        model = made("attention")
        with torch.no_grad():
            _, state = model(torch.arange(24).view(3, 8))
        threefold.save_state(tmp_path / "three", state, model, notes={"a": [1]})
        return tmp_path / "three"

    def test_fork(self, path: Path) -> None:
        model, copy, picked = made("attention"), path.with_name("copy"), path.with_name("picked")
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
        with pytest.raises(ThreefoldError, match="is there already"):
            fork_state(path, copy)
        for rows in ([3], [], [-1]):
            with pytest.raises(ThreefoldError, match=r"expected some of 0 to 2"):
                fork_state(path, path.with_name("none"), rows=rows)

    def test_inspect(self, path: Path) -> None:
        facts = describe_state(path)
        assert facts["rows"] == 3 and facts["position"] == [8, 8, 8]
        assert facts["notes"] == {"a": [1]}
        assert facts["bytes"] == 3 * made("attention").state_size(8)

    def test_changed_notes_are_damage(self, path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data.replace(b'{\\"a\\": [1]}', b'{\\"a\\": [2]}'))
        assert path.read_bytes() != data
        with pytest.raises(ThreefoldError, match="damaged"):
            read_state(path)
