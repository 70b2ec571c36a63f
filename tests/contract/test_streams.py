"""A stream has the same scores in chunks of any size, by single elements, and when resumed."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_sessions import LENGTH, LETTERS, SPECS, built, elements
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data import ByteTokenizer
from threefold.models.saving import open_model
from threefold.runtime.scores.grouping import Groups
from threefold.runtime.scores.scorers import WARM_UP, RunningZScore
from threefold.runtime.session import Session
from threefold.runtime.stream_job import StreamJob
from threefold.runtime.streaming import StreamScores, stream


def as_input(name: str, inputs: Tensor) -> bytes:
    """Elements as the text or table that a stream reads."""
    if built(name).input_size:
        return "".join(",".join(map(repr, row)) + "\n" for row in inputs.tolist()).encode()
    return "".join(LETTERS[token] for token in inputs.tolist()).encode()


def joined(scores: list[StreamScores]) -> dict[str, list[Any]]:
    return {n: [v for chunk in scores for v in chunk.columns[n]] for n in scores[0].columns}


MODES = {
    "language": ("likelihood", "predict", "anomaly"),
    "gaussian": ("likelihood", "predict", "anomaly"),
    "quantile": ("predict", "anomaly"),
    "tagger": ("predict", "anomaly"),
    "pooled by mean": ("predict", "anomaly"),
    "attention": ("likelihood",),
}
every_score = pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name, modes in MODES.items() for mode in modes]
)


@every_score
def test_chunks_and_single_elements_have_the_same_scores(name: str, mode: str) -> None:
    data = as_input(name, elements(name))
    expected = joined(list(stream(built(name), data, mode=mode, chunk_size=1)))
    columns = joined(list(stream(built(name), data, mode=mode, chunk_size=64)))
    assert list(columns) == list(expected)
    assert list(columns["position"]) == list(range(LENGTH))
    for column, values in columns.items():
        if isinstance(values[0], float):
            a, b = (torch.tensor(v, dtype=torch.float64) for v in (values, expected[column]))
            assert torch.equal(a.isnan(), b.isnan())
            assert_close(a.nan_to_num().float(), b.nan_to_num().float(), what=column)
        else:
            assert values == expected[column]


@every_score
def test_elements_in_memory_are_scored_themselves(name: str, mode: str) -> None:
    inputs = elements(name, 70)
    expected = joined(list(stream(built(name), as_input(name, inputs), mode=mode, chunk_size=32)))
    for same in (inputs, inputs.numpy(), inputs.tolist()):
        columns = joined(list(stream(built(name), same, mode=mode, chunk_size=32)))
        assert str(columns) == str(expected)  # NaN equals NaN in a text


def test_elements_of_models_without_a_tokenizer() -> None:
    model = threefold.build(SPECS["language"]).eval()
    scores = joined(list(stream(model, [5, 3])))
    logits, _ = model(torch.tensor([[5]]))
    assert list(scores["position"]) == [0, 1] and "text" not in scores
    expected = logits.detach()[0, -1].double().log_softmax(-1)[3]
    assert_close(torch.tensor(scores["log_likelihood"][1]).float(), expected.float())


def test_arrays_that_are_not_elements_are_refused() -> None:
    for name, wrong, message in (
        ("language", [0.5], "holds float64; expected tokens"),
        ("language", torch.zeros(2, 3).long(), r"has shape \(2, 3\); expected tokens \[length\]"),
        ("language", [61], r"has tokens from 61 to 61; expected tokens \[length\] below 61"),
        ("language", [-1, 5], "has tokens from -1 to 5"),
        ("language", [None], "holds object"),
        ("language", (n for n in (5, 3)), "the source yields int, expected bytes or strings"),
        ("gaussian", np.zeros(4), r"has shape \(4,\); expected numbers \[length, 2\]"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            list(stream(built(name), wrong))  # type: ignore[arg-type]


@every_score
@pytest.mark.parametrize("group", [1, 50])
def test_stopped_anywhere_it_resumes_bit_for_bit(
    name: str, mode: str, group: int, tmp_path: Path
) -> None:
    path, state = tmp_path / "input", tmp_path / "state"
    path.write_bytes(as_input(name, elements(name)))
    options: dict[str, Any] = {"mode": mode, "chunk_size": 32, "group_size": group}
    expected = joined([s for s in stream(built(name), path, **options) if len(s)])
    for chunks in range(1, 5):
        started = stream(built(name), path, **options)
        scores = [next(started) for _ in range(chunks)]
        started.save(state)
        rest = list(stream(built(name), path, state=state))
        assert repr(joined([s for s in scores + rest if len(s)])) == repr(expected)


@every_score
@pytest.mark.parametrize("group", [1, 50])
def test_an_input_that_grew_continues_bit_for_bit(
    name: str, mode: str, group: int, tmp_path: Path
) -> None:
    data, path, state = as_input(name, elements(name)), tmp_path / "input", tmp_path / "state"
    options: dict[str, Any] = {"mode": mode, "chunk_size": 64, "group_size": group}
    expected = joined([s for s in stream(built(name), data, **options) if len(s)])
    for share in (0.3, 0.61):
        cut = data.rindex(b"\n", 0, int(share * len(data))) + 1 if b"\n" in data else 70
        path.write_bytes(data[:cut])
        started = stream(built(name), path, **options)
        first = joined([s for s in started if len(s)])
        started.save(state)
        if group > 1 and first["position"][-1] % 50 != 49:  # the last group was not complete
            first = {column: values[:-1] for column, values in first.items()}
        path.write_bytes(data)
        for source, how in ((path, "same"), (data[cut:], "new")):
            parts = stream(built(name), source, state=state, continue_with=how)
            rest = joined([s for s in parts if len(s)])
            both = {column: first[column] + rest[column] for column in first}
            assert repr(both) == repr(expected)


@pytest.mark.parametrize("name", ["language", "gaussian", "tagger"])
def test_a_session_goes_on_from_the_state_of_a_stream(name: str, tmp_path: Path) -> None:
    inputs, path = elements(name), tmp_path / "state"
    read = stream(built(name), inputs, mode="predict", chunk_size=64)
    list(read)
    read.save(path)
    session, expected = Session.load(path, built(name)), Session(built(name))
    expected.feed(inputs)
    assert session.position == expected.position == LENGTH
    assert_close(session.predict().float(), expected.predict().float())
    assert (session.seen_tokens == expected.seen_tokens).all()


def test_a_job_stops_and_resumes_to_the_same_file(tmp_path: Path) -> None:
    built("language").save(tmp_path / "model")
    opened = open_model(tmp_path / "model")
    data, state = as_input("language", elements("language")), tmp_path / "state"
    source = tmp_path / "input"
    source.write_bytes(data)

    def run(output: Path, state: Path | None, chunks: int = 100) -> StreamJob:
        job = StreamJob.open(opened, source, {"chunk_size": 32}, state)
        job.open_output(output, "jsonl")
        job.run(should_stop=lambda: job.elements >= 32 * chunks)
        return job

    expected = run(tmp_path / "a.jsonl", None).summary()
    stopped = run(tmp_path / "b.jsonl", state, chunks=2)
    assert not stopped.summary()["finished"] and stopped.elements == 64
    resumed = run(tmp_path / "b.jsonl", state)
    assert resumed.elements == LENGTH - 64
    for name in ("position", "mean_log_likelihood", "bits_per_byte", "rows"):
        assert resumed.summary()[name] == pytest.approx(expected[name])
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_likelihoods_are_the_models_own() -> None:
    model, inputs = built("language"), elements("language")
    with torch.no_grad():
        logits = model(inputs.unsqueeze(0))[0][0]
    expected = logits.log_softmax(-1)[:-1].gather(1, inputs[1:, None])[:, 0]
    (scores,) = stream(model, as_input("language", inputs))
    values = scores.columns["log_likelihood"]
    assert math.isnan(values[0]) and next(scores.rows())["log_likelihood"] is None
    assert_close(torch.tensor(values[1:]), expected)


def test_forecasts_are_scored_by_hand() -> None:
    inputs = elements("gaussian")
    with torch.no_grad():
        forecast = built("gaussian")(inputs.unsqueeze(0))[0][0, :-1, 0]
    normal = torch.distributions.Normal(forecast[..., 0], forecast[..., 1])
    data = as_input("gaussian", inputs)
    (scores,) = stream(built("gaussian"), data)
    assert_close(
        torch.tensor(scores.columns["log_likelihood"][1:]), normal.log_prob(inputs[1:]).sum(-1)
    )
    (scores,) = stream(built("gaussian"), data, mode="anomaly")
    z = ((inputs[1:] - normal.mean) / normal.stddev).abs()
    assert_close(torch.tensor(scores.columns["score"][1:]), z.amax(-1))
    assert scores.columns["column"][1:] == [f"x{i + 1}" for i in z.argmax(-1).tolist()]
    inputs = elements("quantile")
    with torch.no_grad():
        forecast = built("quantile")(inputs[None, :, :1], exogenous=inputs[None, :, 1:])[0][
            0, :-1, 0, 0
        ]
    low, median, high, x = *forecast.unbind(-1), inputs[1:, 0]
    deviation = (high - low) / (2 * 1.2815516)  # of a normal distribution with these deciles
    (scores,) = stream(built("quantile"), as_input("quantile", inputs), mode="anomaly")
    values = torch.tensor(scores.columns["score"][1:])
    assert_close(values, (x - median).abs() / deviation)
    assert values.min() > 0 and bool(((low < x) & (x < high)).any())  # also inside the interval
    with pytest.raises(ThreefoldError, match="a forecaster of quantiles defines no likelihood"):
        stream(built("quantile"), b"", mode="likelihood")
    with pytest.raises(ThreefoldError, match="a tagger model does not predict its inputs"):
        stream(built("tagger"), b"", mode="likelihood")


def test_running_scores_are_z_scores_of_what_came_before() -> None:
    values = np.random.default_rng(0).normal(3, 2, 500)
    scores = RunningZScore().scores(values.tolist())
    assert all(map(math.isnan, scores[:WARM_UP])) and not any(map(math.isnan, scores[WARM_UP:]))
    for n in (WARM_UP, 100, 499):
        before = values[:n]
        assert scores[n] == pytest.approx((values[n] - before.mean()) / before.std())
    constant = RunningZScore().scores([1.0] * 40 + [2.0])
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
        rows = [groups.add(part) for part in parts] + [groups.finish()]
        assert [p for part in rows if part for p in part["position"]] == [2, 4, 6]
    summed = Groups(4, "sum")
    likelihoods: Any = {
        "position": range(6),
        "log_likelihood": [math.nan, -1.0, -2.0, -4.0, -8.0, -16.0],
    }
    assert summed.add(likelihoods) == {"position": [0], "elements": [3], "log_likelihood": [-7.0]}
    assert summed.finish() == {"position": [4], "elements": [2], "log_likelihood": [-24.0]}


def test_sources_of_every_kind_give_the_same() -> None:
    data = as_input("language", elements("language"))
    model = built("language")
    expected = repr(joined(list(stream(model, data))))
    parts = [data[:9], data[9:10], "".join(LETTERS[0:0]), data[10:].decode()]
    for source in (io.BytesIO(data), parts, iter(parts)):
        assert repr(joined(list(stream(model, source)))) == expected
    with pytest.raises(ThreefoldError, match="the source has type int, expected a path"):
        stream(model, 3)  # type: ignore[arg-type]
    bare = threefold.build(SPECS["language"])
    with pytest.raises(ThreefoldError, match="saved without a tokenizer"):
        stream(bare, data)
    with pytest.raises(ThreefoldError, match="unknown mode 'likelyhood'; did you mean"):
        stream(model, data, mode="likelyhood")
    with pytest.raises(ThreefoldError, match="chunk_size is 0, expected 1 or more"):
        stream(model, data, chunk_size=0)


def test_an_empty_input_has_no_scores() -> None:
    model = threefold.build(Spec("language", 32, 1, "gla"))
    model.tokenizer = ByteTokenizer()
    assert list(stream(model, b"")) == []
    assert list(stream(model, b"", group_size=7)) == []
