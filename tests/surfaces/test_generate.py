"""threefold.generate: greedy and sampled, streamed or not, batched, stopped, continued."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.data.random_by_address import hashed
from threefold.memory import state as states
from threefold.runtime import decoding
from threefold.runtime.sampling import (
    Sampling,
    keep_top_k,
    keep_top_p,
    penalise,
    sample,
)


@cache
def model() -> LanguageModel:
    """A model with nearly uniform predictions, in float64 to avoid ties."""
    torch.manual_seed(0)
    network: LanguageModel = threefold.build(
        Spec("language", 32, 2, ("mamba", "gla"), vocabulary=61)
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network.double().eval()


def prompts(rows: int = 3, length: int = 9) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(2))


def greedy(prompt: Tensor, count: int) -> Tensor:
    """Take the most probabilities token repeatedly, each time after reading the at_once text."""
    for _ in range(count):
        logits, _ = model()(prompt, form="parallel")
        prompt = torch.cat([prompt, logits[:, -1:].argmax(-1)], 1)
    return prompt[:, -count:]


def test_greedy_takes_the_most_likely_token() -> None:
    result = threefold.generate(model(), prompts(), max_tokens=12, temperature=0)
    assert torch.equal(result.tokens, greedy(prompts(), 12))
    assert result.lengths.tolist() == [12, 12, 12]
    assert result.finish_reasons == ("length",) * 3
    assert result.rows() == result.tokens.tolist()


def test_the_state_is_the_one_after_the_last_token_read() -> None:
    result = threefold.generate(model(), prompts(), max_tokens=5, seed=1)
    read = torch.cat([prompts(), result.tokens[:, :-1]], 1)
    _, after = model()(read)
    for (name, a), (_, b) in zip(states.leaves(result.state), states.leaves(after), strict=True):
        assert_close(a, b, "state", name)
    assert torch.equal(result.pending, result.tokens[:, -1])
    logits, _ = model().step(result.pending, result.state)
    assert_close(logits, model()(torch.cat([read, result.tokens[:, -1:]], 1))[0][:, -1])


OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {"seed": 3},
    "cool": {"seed": 3, "temperature": 0.7, "top_k": 20, "top_p": 0.9},
    "penalty": {"seed": 3, "temperature": 0.3, "repetition_penalty": 1.5},
    "stop": {"seed": 3, "stop": [5, 9, 17, (20, 33), 48, 51, 2]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_streaming_does_not_change_the_tokens(name: str) -> None:
    options = OPTIONS[name]
    at_once = threefold.generate(model(), prompts(), max_tokens=20, **options)
    stream = threefold.generate(model(), prompts(), max_tokens=20, stream=True, **options)
    tokens = list(stream)
    assert all(token.shape == (3,) for token in tokens)
    assert torch.equal(torch.stack(tokens, 1), at_once.tokens)
    assert torch.equal(stream.result.tokens, at_once.tokens)
    assert stream.result.finish_reasons == at_once.finish_reasons


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("count", [1, 7])
def test_a_result_is_continued_exactly(name: str, count: int) -> None:
    options = OPTIONS[name]
    at_once = threefold.generate(model(), prompts(), max_tokens=20, **options)
    rest = {key: value for key, value in options.items() if key != "seed"}
    first = threefold.generate(model(), prompts(), max_tokens=count, **options)
    second = threefold.generate(model(), first, max_tokens=20 - count, **rest)
    again = threefold.generate(model(), first, max_tokens=20 - count, **rest)
    assert torch.equal(second.tokens, again.tokens)
    rows = [a + b for a, b in zip(first.rows(), second.rows(), strict=True)]
    assert rows == at_once.rows()
    assert second.finish_reasons == at_once.finish_reasons
    for (_, a), (_, b) in zip(
        states.leaves(second.state), states.leaves(at_once.state), strict=True
    ):
        assert torch.equal(a, b)


def test_a_stop_sequence_may_cross_a_continuation() -> None:
    text = greedy(prompts(1), 8)[0].tolist()
    stop = [tuple(text[2:6])]
    first = threefold.generate(model(), prompts(1), max_tokens=4, temperature=0, stop=stop)
    assert first.finish_reasons == ("length",)
    second = threefold.generate(model(), first, max_tokens=9, temperature=0, stop=stop)
    assert second.rows() == [text[4:6]]
    assert second.finish_reasons == ("stop",)
    third = threefold.generate(model(), second, max_tokens=9, temperature=0)
    assert third.tokens.shape == (1, 0)
    assert third.finish_reasons == ("stop",)


def test_rows_end_on_their_own() -> None:
    free = threefold.generate(model(), prompts(), max_tokens=12, temperature=0)
    stop = int(free.tokens[1, 4])
    wanted = [row[: row.index(stop) + 1] if stop in row else row for row in free.rows()]
    assert len({len(row) for row in wanted}) > 1
    result = threefold.generate(model(), prompts(), max_tokens=12, temperature=0, stop=stop)
    assert result.rows() == wanted
    assert result.finish_reasons == tuple("stop" if stop in row else "length" for row in wanted)
    for row, tokens in enumerate(wanted):
        assert (result.tokens[row, len(tokens) :] == -1).all()
        read = torch.cat([prompts()[row], torch.tensor(tokens[:-1])]).unsqueeze(0)
        _, after = model()(read)
        alone = states.select(result.state, [row])
        for (name, a), (_, b) in zip(states.leaves(alone), states.leaves(after), strict=True):
            assert_close(a, b, "state", name)


def test_seeds() -> None:
    def tokens(seed: int | None) -> Tensor:
        return threefold.generate(model(), prompts(), max_tokens=12, seed=seed).tokens

    assert torch.equal(tokens(1), tokens(1))
    assert not torch.equal(tokens(1), tokens(2))
    torch.manual_seed(4)
    first, second = tokens(None), tokens(None)
    assert not torch.equal(first, second)
    torch.manual_seed(4)
    assert torch.equal(tokens(None), first)
    same = prompts(1).expand(3, -1)
    rows = threefold.generate(model(), same, max_tokens=12, seed=1).rows()
    assert rows[0] != rows[1] != rows[2]


def test_other_rows_of_the_batch_change_nothing() -> None:
    options = {"max_tokens": 12, "seed": 5, "top_p": 0.95}
    together = threefold.generate(model(), prompts(), **options).rows()
    assert threefold.generate(model(), prompts()[:2], **options).rows() == together[:2]
    assert threefold.generate(model(), prompts()[0], **options).rows() == together[:1]


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_different_lengths(side: str) -> None:
    tokens, mask = torch.full((3, 9), 10**6), torch.zeros(3, 9, dtype=torch.bool)
    lengths = (4, 9, 1)
    for row, n in enumerate(lengths):
        real = slice(0, n) if side == "right" else slice(9 - n, 9)
        tokens[row, real], mask[row, real] = prompts()[row, :n], True
    options = {"max_tokens": 8, "temperature": 0, "repetition_penalty": 1.3}
    result = threefold.generate(model(), tokens, mask=mask, **options)
    for row, n in enumerate(lengths):
        assert (
            result.rows()[row]
            == threefold.generate(model(), prompts()[row, :n], **options).rows()[0]
        )


@pytest.mark.parametrize("masked", [False, True])
def test_long_prompts_are_read_in_chunks(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.arange(9) < torch.tensor([[3], [9], [6]]) if masked else None
    expected = threefold.generate(model(), prompts(), max_tokens=6, temperature=0, mask=mask)
    monkeypatch.setattr(decoding, "PREFILL_CHUNK", 4)
    result = threefold.generate(model(), prompts(), max_tokens=6, temperature=0, mask=mask)
    assert torch.equal(result.tokens, expected.tokens)


def test_a_prompt_without_a_batch_dimension_streams_ints() -> None:
    stream = threefold.generate(model(), prompts()[0], max_tokens=5, temperature=0, stream=True)
    tokens = list(stream)
    assert all(type(token) is int for token in tokens)
    assert [tokens] == greedy(prompts()[:1], 5).tolist()
    for same in (prompts()[0].tolist(), prompts()[0].numpy().astype(np.uint8)):
        result = threefold.generate(model(), same, max_tokens=5, temperature=0)
        assert result.rows() == [tokens]


def test_a_stream_is_lazy_and_may_be_endless() -> None:
    stream = threefold.generate(model(), prompts(), max_tokens=None, temperature=0, stream=True)
    with pytest.raises(ThreefoldError, match="no token has been generated yet"):
        _ = stream.result
    seen = torch.stack([next(stream) for _ in range(150)], 1)
    assert torch.equal(seen[:, :12], greedy(prompts(), 12))
    half = stream.result
    assert half.finish_reasons == ("", "", "")
    more = threefold.generate(model(), half, max_tokens=3, temperature=0)
    assert torch.equal(more.tokens, torch.stack([next(stream) for _ in range(3)], 1))


def test_a_prompt_continues_a_state() -> None:
    _, state = model()(prompts()[:, :6])
    result = threefold.generate(model(), prompts()[:, 6:], state, max_tokens=6, temperature=0)
    assert torch.equal(result.tokens, greedy(prompts(), 6))
    assert not any(leaf.requires_grad for _, leaf in states.leaves(result.state))
    result.state["0"]["mixer"][
        "memory"
    ].requires_grad_()  # not an inference tensor: it can be trained on


def test_dropout_is_off_while_generating_and_back_on_after() -> None:
    spec = Spec("language", 32, 1, "gla", vocabulary=61, options={"dropout": 0.5})
    training = threefold.build(spec).train()
    training.norm.eval()
    results = [threefold.generate(training, prompts(), max_tokens=5, seed=0) for _ in range(2)]
    assert torch.equal(results[0].tokens, results[1].tokens)
    assert training.training
    assert training.stack.training
    assert not training.norm.training


def test_filters() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]], dtype=torch.float64).log()
    assert keep_top_k(logits, 2).isfinite().tolist() == [[True, True, False, False]]
    assert keep_top_k(logits, 9).isfinite().all()
    for p, count in ((0.4, 1), (0.6, 2), (0.8, 3), (1.0, 4), (1e-9, 1)):
        finite = keep_top_p(logits, p).isfinite()
        assert finite.tolist() == [[i < count for i in range(4)]], p
    shuffled = logits[:, [3, 0, 2, 1]]
    assert keep_top_p(shuffled, 0.6).isfinite().tolist() == [[False, True, False, True]]
    seen = torch.tensor([[True, False, True, False]])
    logits = penalise(torch.tensor([[2.0, 2.0, -2.0, -2.0]]), seen, 2.0)
    assert logits.tolist() == [[1.0, 2.0, -4.0, -2.0]]


def test_tokens_are_sampled_by_their_probability() -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.3, 0.2, 0.0]], dtype=torch.float64)
    numbers = torch.from_numpy(hashed((0, 0), np.arange(4000)))
    tokens = sample(probabilities.expand(4000, -1), numbers)
    share = torch.bincount(tokens, minlength=6) / 4000
    assert (share[probabilities[0] == 0] == 0).all()
    # Four standard deviations of a share of one half.
    assert ((share - probabilities[0]).abs() < 4 * (0.25 / 4000) ** 0.5).all()


@pytest.mark.parametrize(("number", "index"), [(0.0, 1), (0.499, 1), (0.5, 3), (1 - 1e-16, 4)])
def test_a_token_of_probability_zero_is_never_sampled(number: float, index: int) -> None:
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]], dtype=torch.float64)
    assert sample(probabilities, torch.tensor([number])).tolist() == [index]


def test_the_penalty_applies_to_prompt_and_text() -> None:
    text = prompts(1)[0].tolist()
    for _ in range(12):
        logits = model()(torch.tensor([text]))[0][0, -1].detach()
        for token in set(text):
            logits[token] = logits[token] / 3 if logits[token] > 0 else logits[token] * 3
        text.append(int(logits.argmax()))
    result = threefold.generate(
        model(), prompts(1), max_tokens=12, temperature=0, repetition_penalty=3.0
    )
    assert result.rows() == [text[9:]]
    assert result.rows() != greedy(prompts(1), 12).tolist()


def test_no_temperature_overflows() -> None:
    logits = torch.tensor([[3.0, 1e10, -2.0]])
    for temperature in (1e-300, 1e-9, 1.0):
        chosen = Sampling(temperature).choose(logits, None, torch.tensor([0.5]))
        assert chosen.tolist() == [1]
    with pytest.raises(ThreefoldError, match="logits contain NaN"):
        Sampling().choose(logits * torch.nan, None, torch.tensor([0.5]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1, expected a finite number: 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0, expected an integer of at least 1"),
        ({"top_k": 2.5}, r"top_k is 2\.5"),
        ({"top_p": 0}, "top_p is 0, expected above 0 and at most 1"),
        ({"top_p": 1.1}, r"top_p is 1\.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0, expected above 0"),
        ({"max_tokens": 0}, "max_tokens is 0, expected an integer of at least 1"),
        ({"max_tokens": None}, "max_tokens is None, which needs stream=True"),
        ({"seed": 1.5}, r"seed is 1\.5, expected an integer"),
        ({"stop": "end"}, "the stop 'end' is a text, but the model has no tokenizer"),
        ({"stop": [61]}, r"stop is \[61\], expected texts, tokens from 0 to 60"),
        ({"stop": [()]}, r"stop is \[\(\)\]"),
        ({"stop": 1.5}, r"stop is 1\.5"),
        ({"tokens": []}, r"prompt has shape \(0,\), expected \[length\] or \[batch, length\]"),
        ({"tokens": [[1, 2], [3]]}, "pad prompts of different lengths and pass a mask"),
        ({"tokens": "abc"}, "prompt is a text, but the model has no tokenizer"),
        ({"tokens": [["abc"]]}, "not an array of token ids"),
        ({"min_p": 0}, "min_p is 0, expected above 0 and at most 1"),
        ({"tokens": [0.5]}, "prompt is torch.float32, expected integers"),
        ({"tokens": [61]}, "token 61 in row 0 at position 0 is out of range"),
        ({"tokens": torch.zeros(1, 1, 1).long()}, r"prompt has shape \(1, 1, 1\)"),
        ({"mask": torch.tensor([[True, False, True]])}, "row 0 has a hole"),
        ({"mask": torch.tensor([[False] * 3])}, "row 0 of the prompt is empty"),
        ({"state": {}}, "state of another model"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    tokens = options.pop("tokens", [[1, 2, 3]])
    with pytest.raises(ThreefoldError, match=message):
        threefold.generate(model(), tokens, **options)


def test_an_earlier_result_has_its_own_state() -> None:
    earlier = threefold.generate(model(), prompts(), max_tokens=1)
    with pytest.raises(ThreefoldError, match="continues from its own state"):
        threefold.generate(model(), earlier, earlier.state)


def test_a_result_is_shown_by_what_it_says_not_by_its_state() -> None:
    model = threefold.build(threefold.Spec("language", 32, 1, "gru", vocabulary=50)).eval()
    shown = repr(threefold.generate(model, torch.tensor([[1, 2]]), max_tokens=3, seed=1))
    assert shown.startswith("Generation(tokens=tensor([[") and shown.endswith("seed=1)")
