"""Beam search: with enough beams it finds the best of all texts, with one beam it is greedy."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.memory import state as states
from threefold.models.model import Predictor

VOCABULARY, END, MAX_TOKENS = 4, 3, 4


@cache
def model(kind: str = "language") -> Predictor:
    torch.manual_seed(3)
    network = threefold.build(Spec(kind, 16, 1, "gru", vocabulary=VOCABULARY))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    return network.double().eval()


def prompt_and_state(kind: str) -> tuple[Tensor, Any]:
    prompt = torch.tensor([[0, 1], [2, 0], [1, 1]])
    if kind == "language":
        return prompt, None
    with torch.no_grad():
        return prompt, model(kind).encode(prompt.flip(1))


def every_text(kind: str, penalty: float) -> list[list[tuple[float, tuple[int, ...]]]]:
    """For each row, all texts that end with END or have MAX_TOKENS tokens, best first."""
    prompt, state = prompt_and_state(kind)
    scored: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in prompt]
    others = range(VOCABULARY - 1)
    texts = [
        (*start, last)
        for n in range(MAX_TOKENS)
        for start in itertools.product(others, repeat=n)
        for last in (range(VOCABULARY) if n == MAX_TOKENS - 1 else (END,))
    ]
    for text in texts:
        rows = torch.cat([prompt, torch.tensor(text).expand(3, -1)], 1)
        with torch.no_grad():
            likely = model(kind)(rows, state)[0].log_softmax(-1)[:, 1:-1]
        total = likely.gather(-1, rows[:, 2:, None]).sum((1, 2))
        for row, value in enumerate(total.tolist()):
            scored[row].append((value / ((5 + len(text)) / 6) ** penalty, text))
    return [sorted(row, reverse=True) for row in scored]


@pytest.mark.parametrize("kind", ["language", "seq2seq"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 4.0, -3.0])
def test_enough_beams_find_the_best_text(kind: str, penalty: float) -> None:
    prompt, state = prompt_and_state(kind)
    result = threefold.generate(
        model(kind),
        prompt,
        state,
        beams=200,
        length_penalty=penalty,
        stop=END,
        max_tokens=MAX_TOKENS,
    )
    for row, expected in enumerate(every_text(kind, penalty)):
        hypotheses = result.hypotheses[row]
        assert [h.tokens for h in hypotheses] == [text for _, text in expected]
        assert [h.score for h in hypotheses] == pytest.approx([value for value, _ in expected])
        assert result.rows()[row] == list(expected[0][1])
        assert result.finish_reasons[row] == ("stop" if expected[0][1][-1] == END else "length")


@pytest.mark.parametrize("kind", ["language", "seq2seq"])
def test_one_beam_is_greedy_and_can_be_continued(kind: str) -> None:
    prompt, state = prompt_and_state(kind)
    options: dict[str, Any] = {"stop": END, "max_tokens": 6}
    greedy = threefold.generate(model(kind), prompt, state, temperature=0, **options)
    beam = threefold.generate(model(kind), prompt, state, beams=1, **options)
    assert beam.rows() == greedy.rows()
    assert beam.finish_reasons == greedy.finish_reasons
    assert torch.equal(beam.seen, greedy.seen)
    for (name, a), (_, b) in zip(
        states.leaves(beam.state), states.leaves(greedy.state), strict=True
    ):
        assert_close(a.double(), b.double(), "state", name)
    further = [
        threefold.generate(model(kind), result, temperature=0, max_tokens=4).rows()
        for result in (beam, greedy)
    ]
    assert further[0] == further[1]


def test_more_beams_are_not_worse_and_ending_early_changes_nothing() -> None:
    prompt, _ = prompt_and_state("language")
    best = [
        threefold.generate(model(), prompt, beams=k, stop=END, max_tokens=12).hypotheses
        for k in (1, 64)
    ]
    for narrow, wide in zip(*best, strict=True):
        assert wide[0].score >= narrow[0].score - 1e-12
    alone = threefold.generate(model(), prompt[1], beams=3, stop=[END, (0, 1)], max_tokens=12)
    batch = threefold.generate(model(), prompt, beams=3, stop=[END, (0, 1)], max_tokens=12)
    assert alone.rows()[0] == batch.rows()[1]
    assert [h.tokens for h in alone.hypotheses[0]] == [h.tokens for h in batch.hypotheses[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams is 0, expected an integer of at least 1"),
        ({"beams": 2.5}, r"beams is 2\.5"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
        ({"length_penalty": 1.0}, r"length_penalty=1\.0 is only used with beams="),
        ({"beams": 2, "temperature": 0.5}, "leave out temperature, top_k"),
        ({"beams": 2, "seed": 0}, "repetition_penalty and seed"),
        ({"beams": 2, "stream": True}, "needs a prompt and stream=False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.generate(model(), [1, 2], **options)
