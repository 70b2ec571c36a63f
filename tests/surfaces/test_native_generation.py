"""Generation in one native call for many tokens: the tokens of the ordinary way."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import threefold
from tests.crossings import count_crossings
from tests.surfaces.random_requests import CAUSAL, compare, ordinary_way
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import ThreefoldError
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.runtime.session import Session


def model(mixer: str = "gru", dtype: torch.dtype = torch.float64) -> LanguageModel:
    torch.manual_seed(0)
    made = LanguageModel(Spec("language", 32, 2, mixer, vocabulary=256))
    made.tokenizer = ByteTokenizer()
    return made.to(dtype).eval()


@pytest.mark.parametrize("seed", range(0, len(CAUSAL), 4))
def test_random_requests_are_equal(seed: int) -> None:
    assert compare(seed) == ""


@pytest.mark.parametrize("stop", ["e", "st", [101, (1, 2)], ["th", 7]])
def test_stops_are_found_inside_a_loop(stop: Any) -> None:
    made = model()
    settings: dict[str, Any] = {"max_tokens": 300, "stop": stop, "seed": 1, "temperature": 2.0}
    found = threefold.generate(made, ["a b", "the"], **settings)
    with ordinary_way():
        expected = threefold.generate(made, ["a b", "the"], **settings)
    assert torch.equal(found.tokens, expected.tokens)
    assert found.finish_reasons == expected.finish_reasons


def test_many_tokens_are_one_crossing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = model()
    crossed = count_crossings(monkeypatch)
    threefold.generate(made, "abc", max_tokens=100, seed=0)
    assert sum(crossed) == 99  # the first token follows the prompt
    assert len(crossed) < 20


def test_a_logit_that_is_not_a_number_is_refused() -> None:
    made = model("lstm")
    threefold.generate(made, "abc", max_tokens=40, seed=0)
    with torch.no_grad():
        made.embedding.weight[7] = torch.nan
    with pytest.raises(ThreefoldError, match="the logits contain NaN"):
        threefold.generate(made, "abc", max_tokens=40, seed=0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("classifier", {"classes": 3, "input_size": 2}),
        ("regressor", {"input_size": 2}),
        ("forecaster", {"channels": 2, "horizon": 3}),
    ],
)
@pytest.mark.parametrize("mixer", ["lstm", "attention"])
def test_elements_are_read_one_by_one_in_one_crossing(
    kind: str, options: dict[str, Any], mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = threefold.build(Spec(kind, 32, 2, mixer, options=options)).double().eval()
    elements = torch.randn(20, 2)
    one, other = Session(made, seed=0), Session(made, seed=0)
    one.read(elements[:3])
    other.read(elements[:3])
    one.read(elements[3:4])  # records
    crossed = count_crossings(monkeypatch)
    outputs = one.read_steps(elements[4:])
    assert crossed == [16]
    os.environ["THREEFOLD_REPLAY"] = "0"
    try:
        expected = other.read_steps(elements[3:])[1:]
    finally:
        del os.environ["THREEFOLD_REPLAY"]
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-10)
    assert one.position == other.position == 20
