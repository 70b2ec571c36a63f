"""Streams keep the law: any pieces, any cut, and single elements have the same scores."""

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
from tests.contract.test_sessions import LENGTH, LETTERS, SPECS, elements, made
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data import ByteTokenizer
from threefold.runtime.scores.grouping import Groups
from threefold.runtime.scores.scorers import WARM_UP, RunningZScore
from threefold.runtime.streaming import StreamScores, stream


def as_input(name: str, given: Tensor) -> bytes:
    """Elements as a stream reads them."""
    if made(name).input_size:
        return "".join(",".join(map(repr, row)) + "\n" for row in given.tolist()).encode()
    return "".join(LETTERS[token] for token in given.tolist()).encode()


def joined(scores: list[StreamScores]) -> dict[str, list[Any]]:
    return {n: [v for piece in scores for v in piece.columns[n]] for n in scores[0].columns}


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
def test_pieces_and_single_elements_have_the_same_scores(name: str, mode: str) -> None:
    data = as_input(name, elements(name))
    expected = joined(list(stream(made(name), data, mode=mode, chunk_size=1)))
    found = joined(list(stream(made(name), data, mode=mode, chunk_size=64)))
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
def test_stopped_anywhere_it_resumes_bit_for_bit(
    name: str, mode: str, group: int, tmp_path: Path
) -> None:
    path, state = tmp_path / "input", tmp_path / "state"
    path.write_bytes(as_input(name, elements(name)))
    options: dict[str, Any] = {"mode": mode, "chunk_size": 32, "group_size": group}
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
    (scores,) = stream(made("gaussian"), data, mode="anomaly")
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
    (scores,) = stream(made("quantile"), as_input("quantile", given), mode="anomaly")
    assert_close(torch.tensor(scores.columns["score"][1:]), outside)
    assert float(outside.max()) > 0
    with pytest.raises(ThreefoldError, match="a forecaster of quantiles defines no likelihood"):
        stream(made("quantile"), b"", mode="likelihood")
    with pytest.raises(ThreefoldError, match="a tagger model does not predict its inputs"):
        stream(made("tagger"), b"")


def test_running_scores_are_z_scores_of_what_came_before() -> None:
    values = np.random.default_rng(0).normal(3, 2, 500)
    scores = RunningZScore(None).scores(values.tolist())
    assert all(map(math.isnan, scores[:WARM_UP])) and not any(map(math.isnan, scores[WARM_UP:]))
    for place in (WARM_UP, 100, 499):
        before = values[:place]
        assert scores[place] == pytest.approx((values[place] - before.mean()) / before.std())
    faded = RunningZScore(50)
    faded.scores([0.0] * 500 + [10.0] * 500)
    assert faded.mean == pytest.approx(10, abs=1e-3)
    constant = RunningZScore(None).scores([1.0] * 40 + [2.0])
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
    with pytest.raises(ThreefoldError, match="the source is a int, expected a path"):
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
