"""Sessions and streams keep the law: pieces, forks, files and steps give the same answers."""

from __future__ import annotations

import io
import math
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
from threefold.data import ByteTokenizer, CharacterTokenizer
from threefold.models.pooling import POOLINGS
from threefold.runtime.grouping import Groups
from threefold.runtime.sampling import Sampling
from threefold.runtime.scoring import WARM, Running
from threefold.runtime.session import Session, respond, streaming
from threefold.runtime.state_files import describe_state, fork_state, read_state
from threefold.runtime.streaming import Scores, stream

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


def as_input(name: str, given: Tensor) -> bytes:
    """Elements as a stream reads them."""
    if made(name).input_size:
        return "".join(",".join(map(repr, row)) + "\n" for row in given.tolist()).encode()
    return "".join(LETTERS[token] for token in given.tolist()).encode()


def joined(scores: list[Scores]) -> dict[str, list[Any]]:
    return {n: [v for piece in scores for v in piece.columns[n]] for n in scores[0].columns}


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
    for wrong in ([], [[1, 2]], torch.zeros(3)):
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
    with pytest.raises(ThreefoldError, match="reads pairs, so it has no answer after each"):
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


KINDS = {
    "language": ("likelihood", "predict", "anomaly"),
    "gaussian": ("likelihood", "predict", "anomaly"),
    "quantile": ("predict", "anomaly"),
    "tagger": ("predict", "anomaly"),
    "pooled by mean": ("predict", "anomaly"),
    "attention": ("likelihood",),
}
every_score = pytest.mark.parametrize(
    ("name", "what"), [(name, what) for name, listed in KINDS.items() for what in listed]
)


@every_score
def test_pieces_and_single_elements_have_the_same_scores(name: str, what: str) -> None:
    data = as_input(name, elements(name))
    expected = joined(list(stream(made(name), data, what=what, piece=1)))
    found = joined(list(stream(made(name), data, what=what, piece=64)))
    assert list(found) == list(expected)
    assert list(found["position"]) == list(range(LENGTH))
    for column, values in found.items():
        if isinstance(values[0], float):
            a, b = (torch.tensor(v, dtype=torch.float64) for v in (values, expected[column]))
            assert torch.equal(a.isnan(), b.isnan())
            assert_close(a.nan_to_num().float(), b.nan_to_num().float(), what=column)
        else:
            assert values == expected[column]


@every_score
@pytest.mark.parametrize("group", [1, 50])
def test_stopped_anywhere_it_goes_on_bit_for_bit(
    name: str, what: str, group: int, tmp_path: Path
) -> None:
    path, state = tmp_path / "input", tmp_path / "state"
    path.write_bytes(as_input(name, elements(name)))
    options: dict[str, Any] = {"what": what, "piece": 32, "every": group}
    expected = joined([s for s in stream(made(name), path, **options) if len(s)])
    for pieces in range(1, 5):
        begun = stream(made(name), path, **options)
        scores = [next(begun) for _ in range(pieces)]
        begun.save(state)
        rest = list(stream(made(name), path, state=state))
        assert repr(joined([s for s in scores + rest if len(s)])) == repr(expected)


def test_likelihoods_are_the_models_own() -> None:
    model, given = made("language"), elements("language")
    with torch.no_grad():
        logits = model(given.unsqueeze(0))[0][0]
    expected = logits.log_softmax(-1)[:-1].gather(1, given[1:, None])[:, 0]
    (scores,) = stream(model, as_input("language", given))
    values = scores.columns["log_likelihood"]
    assert math.isnan(values[0]) and next(scores.rows())["log_likelihood"] is None
    assert_close(torch.tensor(values[1:]), expected)


def test_forecasts_are_scored_by_hand() -> None:
    given = elements("gaussian")
    with torch.no_grad():
        forecast = made("gaussian")(given.unsqueeze(0))[0][0, :-1, 0]
    normal = torch.distributions.Normal(forecast[..., 0], forecast[..., 1])
    data = as_input("gaussian", given)
    (scores,) = stream(made("gaussian"), data)
    assert_close(
        torch.tensor(scores.columns["log_likelihood"][1:]), normal.log_prob(given[1:]).sum(-1)
    )
    (scores,) = stream(made("gaussian"), data, what="anomaly")
    z = ((given[1:] - normal.mean) / normal.stddev).abs()
    assert_close(torch.tensor(scores.columns["score"][1:]), z.amax(-1))
    assert scores.columns["channel"][1:] == (z.argmax(-1) + 1).tolist()
    given = elements("quantile")
    with torch.no_grad():
        forecast = made("quantile")(given[None, :, :1], exogenous=given[None, :, 1:])[0][
            0, :-1, 0, 0
        ]
    low, high, x = forecast[:, 0], forecast[:, -1], given[1:, 0]
    outside = torch.maximum(low - x, x - high).clamp(min=0) / (high - low)
    (scores,) = stream(made("quantile"), as_input("quantile", given), what="anomaly")
    assert_close(torch.tensor(scores.columns["score"][1:]), outside)
    assert float(outside.max()) > 0
    with pytest.raises(ThreefoldError, match="a forecaster of quantiles has no density"):
        stream(made("quantile"), b"", what="likelihood")
    with pytest.raises(ThreefoldError, match="a tagger says nothing of how likely"):
        stream(made("tagger"), b"")


def test_running_scores_are_z_scores_of_what_came_before() -> None:
    values = np.random.default_rng(0).normal(3, 2, 500)
    scores = Running(None).scores(values.tolist())
    assert all(map(math.isnan, scores[:WARM])) and not any(map(math.isnan, scores[WARM:]))
    for place in (WARM, 100, 499):
        before = values[:place]
        assert scores[place] == pytest.approx((values[place] - before.mean()) / before.std())
    faded = Running(50)
    faded.scores([0.0] * 500 + [10.0] * 500)
    assert faded.mean == pytest.approx(10, abs=1e-3)
    constant = Running(None).scores([1.0] * 40 + [2.0])
    assert constant[-2] == 0 and constant[-1] > 1e3


def test_groups_are_by_position() -> None:
    columns: Any = {
        "position": range(0, 7),
        "byte": list(range(7)),
        "score": [math.nan, 1, 5, 2, 9, 0, 3],
    }
    for cut in range(1, 7):
        groups = Groups(3, "largest")
        parts = [{n: c[:cut] for n, c in columns.items()}, {n: c[cut:] for n, c in columns.items()}]
        made = [groups.add(part) for part in parts] + [groups.finish()]
        assert [p for part in made if part for p in part["position"]] == [2, 4, 6]
    summed = Groups(4, "sum")
    given: Any = {"position": range(6), "log_likelihood": [math.nan, -1.0, -2.0, -4.0, -8.0, -16.0]}
    assert summed.add(given) == {"position": [0], "elements": [3], "log_likelihood": [-7.0]}
    assert summed.finish() == {"position": [4], "elements": [2], "log_likelihood": [-24.0]}


def test_sources_of_every_kind_give_the_same() -> None:
    data = as_input("language", elements("language"))
    model = made("language")
    expected = repr(joined(list(stream(model, data))))
    parts = [data[:9], data[9:10], "".join(LETTERS[0:0]), data[10:].decode()]
    for source in (io.BytesIO(data), parts, iter(parts)):
        assert repr(joined(list(stream(model, source)))) == expected
    with pytest.raises(ThreefoldError, match="given int, expected a path"):
        stream(model, 3)  # type: ignore[arg-type]
    bare = threefold.build(SPECS["language"])
    with pytest.raises(ThreefoldError, match="saved without a tokenizer"):
        stream(bare, data)
    with pytest.raises(ThreefoldError, match="unknown scores 'likelyhood'; did you mean"):
        stream(model, data, what="likelyhood")
    with pytest.raises(ThreefoldError, match="piece is 0, expected 1 or more"):
        stream(model, data, piece=0)


def test_an_empty_input_has_no_scores() -> None:
    model = threefold.build(Spec("language", 32, 1, "gla"))
    model.tokenizer = ByteTokenizer()
    assert list(stream(model, b"")) == []
    assert list(stream(model, b"", every=7)) == []
