"""The decoder: rows come and go, each with its own settings, and none depends on the others."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.data import BPETokenizer, ByteTokenizer, CharacterTokenizer
from threefold.memory import state as states
from threefold.runtime.decoding import DecodingRow, Engine, TokenDecoder
from threefold.runtime.sampling import Sampling
from threefold.runtime.session import Session
from threefold.runtime.stops import parse_stops

VOCABULARY = 61
SETTINGS = (
    Sampling(),
    Sampling(temperature=0),
    Sampling(temperature=0.7, top_k=20, top_p=0.9),
    Sampling(temperature=1.3, min_p=0.02, repetition_penalty=1.5),
)


@cache
def model(mixers: tuple[str, ...]) -> LanguageModel:
    """A model with nearly uniform predictions, in float64 to avoid ties."""
    torch.manual_seed(0)
    network: LanguageModel = threefold.build(Spec("language", 32, 2, mixers, vocabulary=VOCABULARY))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network.double().eval()


def prompt(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, VOCABULARY, (1, 3 + 4 * number), generator=generator)


def new_row(number: int, max_tokens: int | None = 12) -> DecodingRow:
    seen = np.zeros(VOCABULARY, dtype=bool)
    return DecodingRow(SETTINGS[number % 4], 7, seen, number, max_tokens=max_tokens)


def run(decoder: TokenDecoder, arrivals: dict[int, list[int]]) -> dict[int, list[int]]:
    """Decode 12 tokens for each row; arrivals: which rows are admitted before which step."""
    texts: dict[int, list[int]] = {}
    for step in range(max(arrivals) + 13):
        for number in arrivals.get(step, []):
            decoder.read_prompts(prompt(number), [new_row(number)])
        for row, token in decoder.step():
            texts.setdefault(row.number, []).append(token)
    assert decoder.step() == [] and not decoder.rows
    return texts


@pytest.mark.parametrize("mixers", [("mamba", "gla"), ("attention", "long_conv")], ids="+".join)
def test_a_row_does_not_depend_on_when_the_others_come_and_go(mixers: tuple[str, ...]) -> None:
    alone = {n: run(TokenDecoder(model(mixers)), {0: [n]})[n] for n in range(5)}
    assert all(len(text) == 12 for text in alone.values())
    assert run(TokenDecoder(model(mixers)), {0: [0, 1, 2, 3, 4]}) == alone
    assert run(TokenDecoder(model(mixers)), {0: [3], 2: [1, 4], 7: [0], 15: [2]}) == alone


def test_a_row_of_generate_is_a_row_of_the_decoder() -> None:
    network = model(("mamba", "gla"))
    tokens = threefold.generate(network, prompt(0), max_tokens=12, seed=7).rows()[0]
    assert tokens == run(TokenDecoder(network), {0: [2, 0]})[0]


def test_finished_and_cancelled_rows_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    ordinary = Engine.step

    def step(engine: Engine, tokens: Tensor, state: Any) -> Any:
        sizes.append(len(tokens))
        return ordinary(engine, tokens, state)

    monkeypatch.setattr(Engine, "step", step)
    network = model(("mamba", "gla"))
    decoder = TokenDecoder(network)
    rows = [new_row(0, 2), new_row(1, 5), new_row(2, None)]
    for row in rows:
        decoder.read_prompts(prompt(row.number), [row])
    for _ in range(5):
        decoder.step()
    decoder.cancel(rows[2])
    assert decoder.step() == []
    assert sizes == [3, 2, 2, 2]
    assert [row.finish_reason for row in rows] == ["length", "length", "cancelled"]
    for row in rows:  # the state is that of the row alone
        state, pending = row.state, row.pending
        assert state is not None and pending is not None
        logits, _ = network.step(torch.tensor([pending]), state)
        alone = TokenDecoder(network)
        alone.read_prompts(prompt(row.number), [new_row(row.number, None)])
        for _ in range(row.count + 1):
            alone.step()
        again = DecodingRow(row.sampling, 7, row.seen.copy(), row.number, draws=row.draws)
        single = TokenDecoder(network)
        single.admit([again], state, logits)
        assert single.step()[0][1] == alone.rows[0].pending


@pytest.mark.parametrize(
    ("kind", "mixer", "options"),
    [("seq2seq", "gru", {"attention": "luong"}), ("transformer", "attention", {})],
)
def test_rows_with_a_source_of_their_own_end_on_their_own(
    kind: str, mixer: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    spec = Spec(kind, 32, 1, mixer, vocabulary=20, options=options)
    network: Any = threefold.build(spec).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        source, lengths = torch.randint(0, 20, (4, 7)), torch.tensor([3, 7, 5, 2])
        state = network.encode(source, mask=torch.arange(7) < lengths[:, None])
        alone = [network.encode(source[row : row + 1, :n]) for row, n in enumerate(lengths)]
    begin = torch.ones(4, 1, dtype=torch.int64)
    choice: dict[str, Any] = {"max_tokens": 25, "stop": [4, 9], "temperature": 0}
    result = threefold.generate(network, begin, state, **choice)
    rows = [threefold.generate(network, begin[:1], one, **choice).rows()[0] for one in alone]
    assert result.rows() == rows and len({len(row) for row in rows}) > 1
    first = threefold.generate(network, begin, state, **choice | {"max_tokens": 3})
    rest = threefold.generate(network, first, **choice | {"max_tokens": 22})
    assert [a + b for a, b in zip(first.rows(), rest.rows(), strict=True)] == rows
    for (name, a), (_, b) in zip(
        states.leaves(rest.state), states.leaves(result.state), strict=True
    ):
        assert torch.equal(a, b), name


def test_more_rows_than_allowed_are_refused() -> None:
    decoder = TokenDecoder(model(("mamba", "gla")), max_rows=1)
    row = new_row(0)
    decoder.read_prompts(prompt(0), [row])
    with pytest.raises(ThreefoldError, match=r"1 rows are live and 1 more .* max_rows is 1"):
        decoder.read_prompts(prompt(1), [new_row(1)])
    decoder.cancel(row)
    decoder.read_prompts(prompt(1), [new_row(1)])
    assert [row.number for row, _ in decoder.step()] == [1]
    with pytest.raises(ThreefoldError, match="max_rows is 0, expected 1 or more"):
        TokenDecoder(model(("mamba", "gla")), max_rows=0)


@cache
def padded() -> LanguageModel:
    """A model with more tokens than its tokenizer, which prefers those that cannot be decoded."""
    torch.manual_seed(0)
    spec = Spec("language", 32, 1, "gla", vocabulary=40, options={"tie": False})
    network: LanguageModel = threefold.build(spec)
    network.tokenizer = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz .")
    with torch.no_grad():
        network.embedding.weight.mul_(20)
        network.head.weight[28:] = 30 * network.head.weight[:12]
    return network.eval()


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 0}, {"beams": 3}, {"seed": 1, "top_k": 4}]
)
def test_tokens_that_cannot_be_decoded_are_never_generated(options: dict[str, Any]) -> None:
    result = threefold.generate(padded(), ["the cat", "a"], max_tokens=30, **options)
    assert int(result.tokens.max()) < 28
    assert [len(text) for text in result.texts] == [30, 30]
    session = Session(padded(), seed=0)
    session.feed(padded().tokenizer.encode("the cat"))
    assert max(session.generate(30)) < 28
    assert max(session.search(10, 3).tokens) < 28


def test_texts_in_and_out() -> None:
    network = padded()
    tokens = network.tokenizer.encode("the cat")
    expected = threefold.generate(network, tokens, max_tokens=9, seed=3)
    result = threefold.generate(network, "the cat", max_tokens=9, seed=3)
    assert torch.equal(result.tokens, expected.tokens)
    assert result.text == network.tokenizer.decode(expected.rows()[0]) == expected.text
    several = threefold.generate(network, ["the cat", "a"], max_tokens=9, seed=3)
    assert several.texts[0] == result.text and len(several.texts) == 2
    stream = threefold.generate(network, "the cat", max_tokens=9, seed=3, stream=True)
    assert list(stream) == expected.rows()[0] and stream.result.text == result.text
    more = threefold.generate(network, result, max_tokens=4)
    assert len(more.text) == 4
    with pytest.raises(ThreefoldError, match="the result has 2 rows; use texts"):
        _ = several.text


def test_texts_that_cannot_be_used() -> None:
    network = padded()
    for wrong, message in (
        ("", "row 0 of the prompt is an empty text"),
        (["a", ""], "row 1 of the prompt is an empty text"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            threefold.generate(network, wrong)
    with pytest.raises(ThreefoldError, match="a mask goes with tokens"):
        threefold.generate(network, "a", mask=torch.ones(1, 1, dtype=torch.bool))
    plain = threefold.generate(model(("mamba", "gla")), [1], max_tokens=1)
    with pytest.raises(ThreefoldError, match="has no tokenizer, so there is no text"):
        _ = plain.text
    seq2seq = threefold.build(Spec("seq2seq", 32, 1, "gru"))
    with pytest.raises(ThreefoldError, match="only a language model continues"):
        threefold.generate(seq2seq, "a")
    with pytest.raises(ThreefoldError, match="a tagger model does not generate"):
        threefold.generate(threefold.build(Spec("tagger", 32, 1, "gla")), "a")


@pytest.fixture(scope="module")
def pairs() -> LanguageModel:
    """A model of byte pairs."""
    torch.manual_seed(0)
    network: LanguageModel = threefold.build(Spec("language", 32, 1, "gla", vocabulary=270))
    texts = ["the naïve cat sat on the naïve mat"] * 9
    network.tokenizer = BPETokenizer.learn(texts, vocabulary=270)
    return network.eval()


class TestStops:
    def test_a_text_may_be_spelt_by_any_tokens(self, pairs: LanguageModel) -> None:
        stops = parse_stops(["naïve", (3, 4)], pairs)
        part = pairs.tokenizer.parts
        spelt = [part.index(bytes([byte])) for byte in "naïve".encode()]
        assert spelt != pairs.tokenizer.encode("naïve").tolist()
        assert [stops.end(spelt[:n]) for n in range(1, 7)] == [False] * 5 + [True]
        assert stops.end([1, 3, 4]) and not stops.end([3, 4, 1]) and not stops.end([4])
        assert not stops.end([*spelt, 9])  # it ended one token before

    def test_a_text_may_end_inside_a_token(self, pairs: LanguageModel) -> None:
        tokens = pairs.tokenizer.encode("the naïve cat").tolist()
        long = max(tokens, key=lambda token: len(pairs.tokenizer.parts[token]))
        inside = pairs.tokenizer.parts[long][:2].decode()
        assert parse_stops(inside, pairs).end([long])

    def test_rows_end_after_the_text(self, pairs: LanguageModel) -> None:
        free = threefold.generate(pairs, ["the cat", "on the"], max_tokens=200, seed=0)
        stop = free.texts[0][60]
        result = threefold.generate(pairs, ["the cat", "on the"], max_tokens=200, seed=0, stop=stop)
        for row, full in zip(result.rows(), free.rows(), strict=True):
            texts = [pairs.tokenizer.decode_bytes(full[: n + 1]) for n in range(len(full))]
            ends = [n for n, text in enumerate(texts) if stop.encode() in text]
            assert row == (full[: ends[0] + 1] if ends else full)
        assert result.finish_reasons[0] == "stop"

    def test_a_text_may_cross_a_saved_session(self, pairs: LanguageModel, tmp_path: Path) -> None:
        session = Session(pairs, seed=2)
        session.feed(pairs.tokenizer.encode("the cat"))
        free = list(session.fork().generate(40))
        parts = [pairs.tokenizer.parts[token] for token in free]
        stop = tuple(free[9:12])
        first = list(session.generate(10, stop=[stop]))
        assert session.finish_reason == "length"
        session.save(tmp_path / "s")
        again = Session.load(tmp_path / "s", pairs)
        rest = list(again.generate(30, stop=[stop]))
        assert first + rest == free[:12] and again.finish_reason == "stop"
        assert len(b"".join(parts)) >= 40

    def test_beams_end_at_texts(self, pairs: LanguageModel) -> None:
        stop = "e"
        result = threefold.generate(pairs, "the cat", max_tokens=6, beams=4, stop=stop)
        for hypothesis in result.hypotheses[0]:
            text = pairs.tokenizer.decode_bytes(hypothesis.tokens)
            assert (b"e" in text) == (hypothesis.finish_reason == "stop")
            assert b"e" not in pairs.tokenizer.decode_bytes(hypothesis.tokens[:-1])

    def test_bad_stops(self, pairs: LanguageModel) -> None:
        for wrong, message in (
            ("", "a stop text is empty"),
            (["x" * 300], "a stop text is 300 bytes long"),
            ([()], r"stop is \[\(\)\], expected texts, tokens"),
        ):
            with pytest.raises(ThreefoldError, match=message):
                threefold.generate(pairs, "the", stop=wrong)


def test_min_p_keeps_the_tokens_near_the_most_likely_one() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log().expand(200, -1)
    numbers = torch.linspace(0, 0.999, 200)
    for p, kept in ((0.9, {0}), (0.49, {0, 1}), (0.29, {0, 1, 2}), (0.1, {0, 1, 2, 3})):
        assert set(Sampling(min_p=p).choose(logits, None, numbers).tolist()) == kept


def test_a_session_samples_anew_and_may_be_fed_between_two_tokens() -> None:
    network = model(("mamba", "gla"))
    session = Session(network, seed=0)
    session.feed(prompt(1)[0])
    assert len({session.sample() for _ in range(20)}) > 3
    assert session.position == prompt(1).shape[1]
    tokens = session.generate(3)
    first = next(tokens)
    session.feed([5])
    second = next(tokens)
    expected, _ = network(torch.tensor([[*prompt(1)[0].tolist(), first, 5, second]]))
    assert session.last_output is not None
    assert_close(session.last_output, expected[0, -1])


def test_bytes_of_a_text_prompt() -> None:
    network: LanguageModel = threefold.build(Spec("language", 32, 1, "gla"))
    network.tokenizer = ByteTokenizer()
    assert len(threefold.generate(network, "hello", max_tokens=3).text) >= 1
