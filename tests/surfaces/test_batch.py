"""Batches of live rows: the tokens of `generate` for each row, whoever else comes and goes."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.random_batches import compare, random_rows, serve
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import ThreefoldError
from threefold.memory import slots
from threefold.memory import state as states
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.runtime.batch import LiveBatch, RowsDroppedError
from threefold.runtime.decoding import Engine
from threefold.runtime.sampling import Sampling
from threefold.runtime.slot_decoder import GROUP, FixedShapes, fixed_shapes

MIXERS = [
    ("lstm",),
    ("mamba",),
    ("gated_delta_net",),
    ("linear_attention",),
    ("attention",),
    ("local_attention",),
    ("hyena",),
    ("mamba", "attention"),
]


def language_model(*mixers: str, **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    spec = Spec("language", 32, 2, mixers or ("lstm",), vocabulary=40, options=options)
    return LanguageModel(spec).double().eval()


def run(batch: LiveBatch, count: int = 1) -> dict[int, list[int]]:
    """All tokens of all rows."""
    tokens: dict[int, list[int]] = {}
    while len(batch):
        for token in batch.step(count):
            tokens.setdefault(token.row, []).append(token.token)
    return tokens


def generated(model: LanguageModel, prompt: Any, **settings: Any) -> list[int]:
    return threefold.generate(model, prompt, **settings).rows()[0]


@pytest.mark.parametrize("mixers", MIXERS, ids="+".join)
@pytest.mark.parametrize("deterministic", [False, True], ids=["fast", "deterministic"])
def test_rows_that_come_and_go_get_the_tokens_of_generate(
    mixers: tuple[str, ...], deterministic: bool
) -> None:
    model = language_model(*mixers)
    chance = random.Random(7)
    rows = random_rows(chance, model, 12)
    batch = LiveBatch(model, max_rows=5, prompt_piece=16, deterministic=deterministic)
    serve(batch, rows, chance)
    assert {row.finish_reason for row in rows} >= {"length", "cancelled"}
    for row in rows:
        settings = {**row.settings}
        settings.pop("log_probabilities")
        expected = threefold.generate(model, row.prompt, **settings)
        tokens = expected.rows()[0]
        if row.finish_reason == "cancelled":
            assert row.tokens == tokens[: len(row.tokens)]
        else:
            assert (row.tokens, row.finish_reason) == (tokens, expected.finish_reasons[0])


@pytest.mark.parametrize("seed", range(4))
def test_a_row_has_the_same_bits_alone_and_in_company(seed: int) -> None:
    assert not compare(13 * seed + 2, rows=8)


@pytest.mark.parametrize(
    "mixers", [("lstm",), ("attention",), ("mamba", "attention")], ids="+".join
)
def test_a_deterministic_batch_runs_groups_where_slots_have_the_same_bits(
    mixers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(*mixers).float()
    assert fixed_shapes(model) == FixedShapes(GROUP, replayed=True)
    step = Engine.step

    def uneven(self: Engine, tokens: Any, state: Any) -> Any:
        logits, state = step(self, tokens, state)
        logits[-1] *= 1 + 2**-22  # as if the last slot were computed in another order
        return logits, state

    monkeypatch.setattr(Engine, "step", uneven)
    assert fixed_shapes(model) == FixedShapes(1, replayed=True)
    monkeypatch.setenv("THREEFOLD_REPLAY", "0")
    model = language_model(*mixers).float()
    assert fixed_shapes(model) == FixedShapes(1, replayed=False)


def test_log_probabilities_are_those_of_the_model() -> None:
    model = language_model("mamba")
    batch = LiveBatch(model)
    scored = batch.admit([1, 2, 3], max_tokens=5, seed=0, log_probabilities=True)
    batch.admit([4], max_tokens=7, seed=0)
    found = [token for _ in range(8) for token in batch.step()]
    chosen = [token for token in found if token.row == scored]
    tokens = [1, 2, 3, *(token.token for token in chosen)]
    expected = model(torch.tensor([tokens]))[0][0].log_softmax(-1)
    for index, token in enumerate(chosen):
        torch.testing.assert_close(token.log_probability, expected[2 + index, token.token].item())
    assert all(token.log_probability is None for token in found if token.row != scored)


def test_a_long_prompt_does_not_stall_live_rows() -> None:
    model = language_model("attention")
    batch = LiveBatch(model, prompt_piece=8)
    first = batch.admit([1], max_tokens=30, seed=0)
    assert [token.row for token in batch.step()] == [first]
    long = batch.admit([2] * 50, max_tokens=2, seed=0)
    short = batch.admit([3], max_tokens=1, seed=0)
    rows = [[token.row for token in batch.step()] for _ in range(9)]
    # The prompts take turns, so the short one does not wait for the long one.
    assert all(first in step for step in rows)
    assert short in rows[1] and long in rows[7]
    assert not any(long in step for step in rows[:6])


def test_piece_borders_are_the_rows_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[tuple[int, int]] = []
    prefill = Engine.prefill

    def watched(self: Engine, tokens: Any, state: Any, mask: Any = None) -> Any:
        pieces.append(tuple(tokens.shape))
        return prefill(self, tokens, state, mask)

    monkeypatch.setattr(Engine, "prefill", watched)
    batch = LiveBatch(language_model("lstm"), prompt_piece=8)
    for length in (5, 20):
        batch.admit([1] * length, max_tokens=1)
    run(batch)
    assert sorted(pieces) == [(1, 4), (1, 5), (1, 8), (1, 8)]


@pytest.mark.parametrize("mixers", MIXERS, ids="+".join)
def test_a_slot_is_replaced_without_moving_the_others(mixers: tuple[str, ...]) -> None:
    model = language_model(*mixers)
    with torch.no_grad():
        _, state = model(torch.randint(40, (3, 9)))
        _, state = model.step(torch.tensor([1, 2, 3]), state)
        _, new = model(torch.randint(40, (1, 4)))
        others, token = states.select(state, [0, 2]), torch.tensor([4, 5, 6])
        expected = states.join([others, new])
        leaves = {name: leaf.data_ptr() for name, leaf in states.leaves(state)}
        state = slots.place(slots.clear(state, 1), 1, new)
        assert leaves == {name: leaf.data_ptr() for name, leaf in states.leaves(state)}
        for _ in range(3):
            logits, state = model.step(token, state)
            wanted, expected = model.step(token[[0, 2, 1]], expected)
            torch.testing.assert_close(logits[[0, 2, 1]], wanted)
        for path, branch in states.histories(state):  # still the same buffer
            for name in states.HISTORY & branch.keys():
                assert branch[name].data_ptr() == leaves[f"{path}.{name}"]


def test_max_rows_others_wait_and_max_waiting_refuses() -> None:
    model = language_model("lstm")
    batch = LiveBatch(model, max_rows=2, max_waiting=2)
    batch.admit([1], max_tokens=3, seed=0)
    batch.admit([2], max_tokens=3, seed=1)
    with pytest.raises(ThreefoldError, match="2 rows are waiting, and max_waiting is 2"):
        batch.admit([3])
    batch.step()
    third = batch.admit([3], max_tokens=3, seed=2)
    assert (batch.waiting, len(batch)) == (1, 3)
    assert all(token.row != third for token in batch.step())
    assert run(batch)[third] == generated(model, [3], max_tokens=3, seed=2)


def test_a_row_continues_a_state_and_leaves_it_as_it_was() -> None:
    model = language_model("mamba", "attention")
    with torch.no_grad():
        _, state = model(torch.tensor([[1, 2, 3]]))
    before = states.clone(state)
    batch = LiveBatch(model)
    row = batch.admit([4], state=state, max_tokens=6, seed=0)
    batch.admit([5], max_tokens=9, seed=0)
    assert run(batch)[row] == generated(model, [1, 2, 3, 4], max_tokens=6, seed=0)
    for (_, old), (_, new) in zip(states.leaves(before), states.leaves(state), strict=True):
        assert torch.equal(old, new)


def test_idle_slots_do_not_reach_the_models_largest_length() -> None:
    model = language_model("attention", positions="learned", max_length=12)
    batch = LiveBatch(model)
    for number in range(30):  # three rows of different ages are live, and the fourth slot is idle
        while len(batch) < 3:
            batch.admit([1], max_tokens=3 + 2 * len(batch), seed=number)
        batch.step()
        assert len(batch._decoders[0].rows) == 4
    run(batch)
    batch.admit([1] * 13, max_tokens=1)
    with pytest.raises(ThreefoldError, match=r"row \d+ was dropped: .*12"):
        batch.step()
    assert not len(batch)


@pytest.mark.parametrize("mixers", [("mamba",), ("attention",)], ids="+".join)
def test_memory_stays_constant_over_many_admissions(mixers: tuple[str, ...]) -> None:
    batch = LiveBatch(language_model(*mixers), max_rows=4)

    def tensors() -> int:
        gc.collect()
        found = [x for x in gc.get_objects() if isinstance(x, torch.Tensor)]
        return sum(x.untyped_storage().nbytes() for x in found)

    sizes = []
    for _ in range(4):
        for number in range(40):
            batch.admit([number % 40] * 5, max_tokens=1 + number % 7, seed=0)
        run(batch)
        sizes.append(tensors())
    assert sizes[-1] <= sizes[1] and len(batch._decoders) == 1
    assert not batch._rows and not batch._decoders[0].rows and not batch._decoders[0].state


def test_texts_need_a_tokenizer_and_stop_at_texts() -> None:
    model = language_model("lstm")
    batch = LiveBatch(model)
    with pytest.raises(ThreefoldError, match="has no tokenizer"):
        batch.admit("text")
    with pytest.raises(ThreefoldError, match="has no tokenizer"):
        batch.admit([1], stop="end")
    torch.manual_seed(0)
    written = LanguageModel(Spec("language", 32, 2, "lstm", vocabulary=256)).double().eval()
    written.tokenizer = ByteTokenizer()
    batch = LiveBatch(written)
    row = batch.admit("ab", stop="e", seed=0, max_tokens=400)
    assert run(batch, 8)[row] == generated(written, "ab", stop="e", seed=0, max_tokens=400)


BAD_REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "at least one token"),
    ({"prompt": [[1], [2]]}, "admit rows one by one"),
    ({"prompt": [40]}, "tokens from 40 to 40, expected 0 to 39"),
    ({"prompt": [-1, 3]}, "tokens from -1 to 3"),
    ({"prompt": [0.5]}, "expected integers"),
    ({"prompt": [1], "max_tokens": 0}, "max_tokens is 0"),
    ({"prompt": [1] * 15, "max_tokens": 6}, "15 tokens and max_tokens is 6, but max_length is 20"),
    ({"prompt": [1], "max_tokens": None}, "max_tokens is None, but max_length is 20"),
    ({"prompt": [1], "max_tokens": 5, "stop": [99]}, "stop is"),
    ({"prompt": [1], "max_tokens": 5, "seed": "x"}, "seed is 'x'"),
    ({"prompt": [1], "max_tokens": 5, "state": {"0": {}}}, "state"),
]


@pytest.mark.parametrize(("request_", "message"), BAD_REQUESTS, ids=str)
def test_bad_requests_are_refused_and_change_nothing(
    request_: dict[str, Any], message: str
) -> None:
    batch = LiveBatch(language_model("lstm"), max_length=20)
    with pytest.raises(ThreefoldError, match=message):
        batch.admit(**request_)
    assert not len(batch) and batch.step() == []


def test_unknown_rows_ended_rows_and_closed_batches_are_refused() -> None:
    with LiveBatch(language_model("lstm")) as batch:
        row = batch.admit([1], max_tokens=1)
        with pytest.raises(ThreefoldError, match="row 5 is unknown"):
            batch.cancel(5)
        for other in (True, [0], None):
            with pytest.raises(ThreefoldError, match="is unknown; expected what admit returned"):
                batch.cancel(other)  # type: ignore[arg-type]
        run(batch)
        with pytest.raises(ThreefoldError, match="row 0 has already ended"):
            batch.cancel(row)
        waiting = batch.admit([1])
        batch.cancel(waiting)
        assert not len(batch) and batch.step() == []
    for call in (lambda: batch.admit([1]), batch.step, lambda: batch.cancel(0)):
        with pytest.raises(ThreefoldError, match="closed"):
            call()


@pytest.mark.parametrize("name", ["max_rows", "max_waiting", "max_length", "prompt_piece"])
def test_limits_are_checked(name: str) -> None:
    with pytest.raises(ThreefoldError, match=f"{name} is 0"):
        LiveBatch(language_model("lstm"), **{name: 0})


def test_only_language_models_are_batched() -> None:
    spec = Spec("classifier", 32, 1, "lstm", vocabulary=9, options={"classes": 2})
    with pytest.raises(ThreefoldError, match="a classifier model does not continue texts"):
        LiveBatch(threefold.build(spec))


def test_a_batch_of_greedy_rows_is_generate_at_any_count() -> None:
    model = language_model("gla")
    batch = LiveBatch(model)
    rows = {batch.admit([n], max_tokens=20, sampling=Sampling(temperature=0)): n for n in range(5)}
    for row, tokens in run(batch, 7).items():
        assert tokens == generated(model, [rows[row]], max_tokens=20, temperature=0)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("count", [1, 8])
def test_a_row_that_cannot_go_on_is_dropped_and_the_others_lose_nothing(
    deterministic: bool, count: int
) -> None:
    model = language_model("lstm", "attention", positions="learned", max_length=20)
    sampling = Sampling(temperature=1.0)
    batch = LiveBatch(model, deterministic=deterministic)
    prompts = {batch.admit([n, 7], max_tokens=12, sampling=sampling, seed=n): n for n in range(11)}
    long = batch.admit([1] * 15, max_tokens=30, seed=0)
    state = model.empty_state(1)
    state["0"]["mixer"]["memory"]["hidden"].fill_(torch.nan)
    broken = batch.admit([1], max_tokens=5, state=state, seed=0)
    tokens: dict[int, list[int]] = {row: [] for row in (*prompts, long, broken)}
    dropped = []
    while batch:
        try:
            for token in batch.step(count):
                tokens[token.row].append(token.token)
        except RowsDroppedError as error:
            dropped += error.rows
            with pytest.raises(ThreefoldError, match="has already ended"):
                batch.cancel(error.rows[0])
    assert dropped == [broken, long]
    assert tokens[broken] == [] and len(tokens[long]) >= 4
    for row, n in prompts.items():
        assert tokens[row] == generated(model, [n, 7], max_tokens=12, temperature=1.0, seed=n)


def test_a_failure_of_all_rows_says_so_and_leaves_an_empty_batch() -> None:
    model = language_model("gru")
    batch = LiveBatch(model)
    rows = tuple(batch.admit([n], max_tokens=9, seed=n) for n in range(3))
    batch.step()
    model.norm.weight.data.fill_(torch.nan)
    with pytest.raises(RowsDroppedError, match="row 0 was dropped: the logits contain NaN") as said:
        batch.step()
    assert said.value.rows == rows and not len(batch) and batch.step() == []
