"""The language model keeps the contract of a mixer: equal forms, cuts, padding, rows, gradients."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.memory.state import State

SPECS = {
    "mamba alone": Spec("language", 32, 2, "mamba", vocabulary=61, channel="none"),
    "gla": Spec("language", 32, 2, ("gla",), vocabulary=61, options={"tie": False}),
    "history": Spec("language", 32, 2, (("attention", {"groups": 1, "heads": 4}), "gla"), 61),
    "hybrid": Spec("language", 32, 3, ("mamba", ("gla", {"heads": 2})), 61, channel="rwkv"),
    "post norm": Spec(
        "language",
        32,
        2,
        (("attention", {"positions": "none", "heads": 4}), "mamba"),
        61,
        channel=("mlp", {"activation": "relu", "hidden": 48}),
        block=("post_norm", {"eps": 1e-6}),
        options={"positions": "learned", "max_length": 64, "embedding_norm": True},
    ),
    "deep norm": Spec(
        "language",
        32,
        3,
        "gla",
        61,
        channel=("mlp", {"activation": "gelu_tanh", "bias": False}),
        block=("deep_norm", {"norm": "rms", "final_norm": True}),
        options={"positions": "sinusoidal", "scale_embedding": True},
    ),
}
LENGTH = 20
every_spec = pytest.mark.parametrize("name", SPECS)


@cache
def made(name: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """A model whose layers weigh as much as its embedding, so that no fault hides behind it."""
    torch.manual_seed(0)
    model = threefold.build(SPECS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def some_tokens(rows: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def assert_states_close(actual: State, expected: State) -> None:
    assert [n for n, _ in states.leaves(actual)] == [n for n, _ in states.leaves(expected)]
    for (name, a), (_, b) in zip(states.leaves(actual), states.leaves(expected), strict=True):
        if a.is_floating_point():
            assert_close(a, b, "state", name)
        else:
            assert torch.equal(a, b), name


def warm_state(model: LanguageModel, rows: int = 3) -> State:
    """A state that is not empty."""
    with torch.no_grad():
        return model(some_tokens(rows, 7, seed=5))[1]


@every_spec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forms_are_equal(name: str, dtype: torch.dtype) -> None:
    model, tokens = made(name, dtype), some_tokens()
    before = warm_state(model)
    assert model.forms == ("step", "chunk", "parallel")
    expected, after = model(tokens, before, form="step")
    wanted = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
    for form in ("chunk", "parallel", "auto"):
        logits, state = model(tokens, before, form=form)
        assert_close(logits, expected, what=form)
        assert_states_close(state, after)
        found = torch.autograd.grad(logits.square().mean(), list(model.parameters()))
        for (which, _), a, b in zip(model.named_parameters(), found, wanted, strict=True):
            assert_close(a, b, "gradient", f"{form} {which}")


@every_spec
def test_the_step_is_one_token_through_the_whole_model(name: str) -> None:
    model, tokens = made(name), some_tokens()
    expected, after = model(tokens, form="step")
    state = model.empty_state(3)
    for t in range(LENGTH):
        logits, state = model.step(tokens[:, t], state)
        assert logits.shape == (3, 61)
        assert_close(logits, expected[:, t])
    assert_states_close(state, after)


def test_form_step_loops_over_what_carries_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(made("gla"))
    calls: list[tuple[str, str, int]] = []

    def record(name: str, part: Mixer) -> None:
        mix = part.mix

        def recorded(x: Tensor, state: State, form: str, lengths: Tensor | None) -> object:
            calls.append((name, form, x.shape[1]))
            return mix(x, state, form, lengths)

        monkeypatch.setattr(part, "mix", recorded)

    for name, part in model.stack.parts["0"].parts.items():
        record(name, part)
    model(some_tokens(2, 4), form="step")
    assert calls == [("mixer", "step", 1)] * 4 + [("channel", "parallel", 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=50, deadline=None, derandomize=True)
@given(pieces=st.lists(st.integers(1, 9), min_size=1, max_size=7), data=st.data())
def test_cut_anywhere_and_go_on(dtype: torch.dtype, pieces: list[int], data: st.DataObject) -> None:
    model = made(data.draw(st.sampled_from(sorted(SPECS))), dtype)
    tokens = some_tokens(2, sum(pieces))
    with torch.no_grad():
        expected, after = model(tokens)
        state, outputs = None, []
        for piece in tokens.split(pieces, 1):
            logits, state = model(piece, state)
            outputs.append(logits)
    assert state is not None
    assert_close(torch.cat(outputs, 1), expected)
    assert_states_close(state, after)


@every_spec
@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("form", ["step", "chunk", "parallel"])
def test_padding_does_not_exist(name: str, side: str, form: str) -> None:
    model, lengths, width = made(name, torch.float64), (5, 0, 9, 1), 9
    before = warm_state(model, 4)
    tokens = some_tokens(4, width) * 0 - 10**9  # garbage, out of range
    mask = torch.zeros(4, width, dtype=torch.bool)
    for row, n in enumerate(lengths):
        start = {"left": width - n, "right": 0, "both": (width - n) // 2}[side]
        mask[row, start : start + n] = True
        tokens[row, start : start + n] = some_tokens(1, 9, seed=row)[0, :n]
    logits, after = model(tokens, before, form=form, mask=mask)
    last, _ = model(tokens, before, form=form, mask=mask, last=True)
    assert bool((logits[~mask] == 0).all())
    assert bool((last[1] == 0).all())
    for row, n in enumerate(lengths):
        alone = states.select(before, [row])
        if n:
            expected, alone = model(some_tokens(1, 9, seed=row)[:, :n], alone, form=form)
            assert_close(logits[row, mask[row]], expected[0])
            assert_close(last[row], expected[0, -1])
        assert_states_close(states.select(after, [row]), alone)


@every_spec
@pytest.mark.parametrize("form", ["step", "chunk", "parallel"])
def test_causality_and_rows_bit_for_bit(name: str, form: str) -> None:
    model, tokens = made(name), some_tokens()
    expected, after = model(tokens, form=form)
    later = tokens.clone()
    later[:, 12:] = (later[:, 12:] + 1) % 61
    logits, _ = model(later, form=form)
    assert torch.equal(logits[:, :12], expected[:, :12])
    assert not torch.equal(logits[:, 12:], expected[:, 12:])
    others = tokens.clone()
    others[1:] = (others[1:] + 1) % 61
    logits, state = model(others, form=form)
    assert torch.equal(logits[0], expected[0])
    for (_, a), (_, b) in zip(states.leaves(state), states.leaves(after), strict=True):
        assert torch.equal(a[0], b[0])


@every_spec
@pytest.mark.parametrize("form", ["step", "chunk", "parallel"])
def test_gradients_flow_through_the_state(name: str, form: str) -> None:
    model, tokens = made(name, torch.float64), some_tokens(2, 10)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(model(tokens)[0][:, 6:].square().sum(), parameters)
    _, state = model(tokens[:, :6], form=form)
    found = torch.autograd.grad(
        model(tokens[:, 6:], state, form=form)[0].square().sum(), parameters
    )
    for (which, _), a, b in zip(model.named_parameters(), found, expected, strict=True):
        assert_close(a, b, "gradient", which)


@every_spec
def test_a_call_leaves_older_states_alone(name: str) -> None:
    model = made(name)
    before = warm_state(model)
    copied = states.clone(before)
    first, _ = model(some_tokens(), before)
    for (_, a), (_, b) in zip(states.leaves(before), states.leaves(copied), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(model(some_tokens(), before)[0], first)


@every_spec
def test_last_reads_one_element_of_each_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = made(name), some_tokens()
    whole, _ = model(tokens)
    shapes = []
    norm = model.norm.forward
    monkeypatch.setattr(model.norm, "forward", lambda x: shapes.append(x.shape) or norm(x))
    last, _ = model(tokens, last=True)
    assert shapes == [(3, 32)]
    assert_close(last, whole[:, -1])


@every_spec
def test_bf16_runs_and_keeps_memory_wide(name: str) -> None:
    model = copy.deepcopy(made(name)).bfloat16()
    logits, state = model(some_tokens())
    assert logits.dtype == torch.bfloat16
    assert bool(logits.isfinite().all())
    dtypes = {path.rpartition(".")[2]: leaf.dtype for path, leaf in states.leaves(state)}
    assert dtypes["memory"] == torch.float32
    logits, _ = model.step(some_tokens()[:, 0], state)
    assert bool(logits.isfinite().all())


@every_spec
def test_state_size_is_what_the_tensors_hold(name: str) -> None:
    model = made(name)
    for length, state in ((0, model.empty_state(3)), (7, warm_state(model))):
        held = sum(leaf.nbytes for _, leaf in states.leaves(state))
        assert model.state_size(length) * 3 == held


def test_state_is_a_tree_by_layer_without_empty_branches() -> None:
    for name, branches in (("gla", {"mixer"}), ("hybrid", {"mixer", "channel"})):
        model = made(name)
        for state in (model.empty_state(1), warm_state(model, 1)):
            assert list(state) == [str(layer) for layer in range(model.spec.depth)]
            assert all(set(branch) == branches for branch in state.values())


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.zeros(2, 3), "torch.float32, expected an int64 tensor"),
        (torch.zeros(2, 3, dtype=torch.int32), "torch.int32, expected an int64 tensor"),
        ([[1, 2]], "list, expected an int64 tensor"),
        (torch.zeros(3, dtype=torch.int64), r"\(3,\), expected \[batch, length\]"),
        (torch.zeros(2, 0, dtype=torch.int64), r"\(2, 0\), expected .* at least one token"),
        (torch.zeros(0, 2, dtype=torch.int64), r"\(0, 2\), expected .* at least one token"),
        (torch.tensor([[0, 1], [2, 61]]), "token 61 in row 1 at position 1 .* 0 to 60"),
        (torch.tensor([[0, -1]]), "token -1 in row 0 at position 1 .* 0 to 60"),
    ],
)
def test_bad_tokens_are_refused(tokens: Tensor, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        made("gla")(tokens)


def test_other_bad_input_is_refused() -> None:
    model, tokens = made("gla"), some_tokens()
    with pytest.raises(ThreefoldError, match=r"step: tokens is \(3, 20\), expected \[batch\]"):
        model.step(tokens)
    with pytest.raises(ThreefoldError, match="unknown form 'chunks'; did you mean 'chunk'"):
        model(tokens, form="chunks")
    with pytest.raises(ThreefoldError, match=r"mask is \(3, 19\) torch.bool, expected \(3, 20\)"):
        model(tokens, mask=torch.ones(3, 19, dtype=torch.bool))
    hole = torch.ones(3, 20, dtype=torch.bool)
    hole[1, 4] = False
    with pytest.raises(ThreefoldError, match="row 1 has a hole"):
        model(tokens, mask=hole)


def test_states_of_others_are_refused() -> None:
    model, tokens = made("gla"), some_tokens()
    with pytest.raises(ThreefoldError, match="state of another batch size"):
        model(tokens, model.empty_state(2))
    with pytest.raises(ThreefoldError, match="another dtype"):
        model(tokens, states.transform(Tensor.double, model.empty_state(3)))
    with pytest.raises(ThreefoldError, match="state must be a dict"):
        model(tokens, torch.zeros(3))
    for other in ("mamba alone", "hybrid"):
        with pytest.raises(ThreefoldError, match="state of another model"):
            model(tokens, made(other).empty_state(3))
    for part in ({}, {"0": {}}, {**model.empty_state(3), "7": {}}):
        with pytest.raises(ThreefoldError, match="state of another model"):
            model(tokens, part)


def test_beginnings() -> None:
    torch.manual_seed(0)
    spec = Spec("language", 64, 1, "mamba", vocabulary=500, options={"tie": False})
    model = threefold.build(spec)
    for weight in (model.embedding.weight, model.head.weight):
        assert abs(weight.std().item() - 0.02) < 1e-3
    torch.manual_seed(0)
    tied = threefold.build(Spec("language", 64, 1, "mamba", vocabulary=500))
    assert model.parameter_count - tied.parameter_count == 500 * 64
    assert torch.equal(tied.stack.blocks[0].mixer.A_log[0], torch.arange(1.0, 17).log())


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(0)
    spec = Spec("language", 32, 2, "gla", vocabulary=61, options={"dropout": 0.5})
    model, tokens = threefold.build(spec), some_tokens()
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    with pytest.raises(ThreefoldError, match=r"dropout is 1.5, expected at least 0 and below 1"):
        threefold.build(Spec("language", 32, 2, "gla", options={"dropout": 1.5}))


def test_it_compiles_as_one_graph() -> None:
    model, tokens = made("mamba alone"), some_tokens()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    logits, state = compiled(tokens)
    assert_close(logits, model(tokens)[0])
    assert_states_close(state, model(tokens)[1])
