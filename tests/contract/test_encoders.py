"""Models of one input sequence keep the contract: forms, cuts, padding, rows, gradients."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import threefold
from tests.contract.encoders import (
    CASES,
    LENGTH,
    Inputs,
    ask,
    classifier,
    cut,
    every_case,
    made,
    series,
    some,
    tokens,
    warm,
)
from tests.contract.test_language_model import assert_states_close
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.memory import state as states


@every_case
def test_forms_are_equal(name: str) -> None:
    model, inputs, before = made(name), some(name), warm(name)
    parameters = list(model.parameters())
    expected, after = ask(model, inputs, before, form="step")
    wanted = torch.autograd.grad(expected.square().mean(), parameters, allow_unused=True)
    for form in (*model.forms, "auto"):
        answer, state = ask(model, inputs, before, form=form)
        assert_close(answer, expected, what=form)
        assert_states_close(state, after)
        found = torch.autograd.grad(answer.square().mean(), parameters, allow_unused=True)
        for (which, _), a, b in zip(model.named_parameters(), found, wanted, strict=True):
            assert (a is None) == (b is None), which
            if a is not None:
                assert_close(a, b, "gradient", f"{form} {which}")


@every_case
def test_float32_is_as_equal_as_float32_can_be(name: str) -> None:
    model, inputs = made(name, torch.float32), some(name, dtype=torch.float32)
    before = warm(name, dtype=torch.float32)
    expected, after = ask(model, inputs, before, form="step")
    answer, state = ask(model, inputs, before)
    assert_close(answer, expected)
    assert_states_close(state, after)


@every_case
def test_the_step_is_one_element_through_the_whole_model(name: str) -> None:
    model, inputs, case = made(name), some(name), CASES[name]
    expected, after = ask(model, inputs, form="step")
    state = model.empty_state(3)
    for t in range(LENGTH):
        element = {key: value.select(case.axis, t) for key, value in inputs.items()}
        named = {key: value for key, value in element.items() if key == "exogenous"}
        if "segments" in element:
            answer, state = ask(model, cut(name, inputs, t, t + 1), state, form="step")
            answer = answer[:, 0] if case.aligned else answer
        else:
            answer, state = model.step(element[""], state, **named)
        if case.aligned:
            assert_close(answer, expected[:, t])
    assert_close(answer, expected[:, -1] if case.aligned else expected)
    assert_states_close(state, after)


@every_case
@settings(max_examples=6, deadline=None, derandomize=True)
@given(pieces=st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_cut_anywhere_and_go_on(name: str, pieces: list[int]) -> None:
    model, case, inputs = made(name), CASES[name], some(name, 2, sum(pieces))
    with torch.no_grad():
        expected, after = ask(model, inputs)
        state, answers, begin = None, [], 0
        for piece in pieces:
            answer, state = ask(model, cut(name, inputs, begin, begin + piece), state)
            answers.append(answer)
            begin += piece
            if not case.aligned:
                assert_close(answer, ask(model, cut(name, inputs, 0, begin))[0])
    assert_close(torch.cat(answers, 1) if case.aligned else answers[-1], expected)
    assert_states_close(state, after)


def padded(name: str, inputs: list[Inputs], width: int, side: str) -> tuple[Inputs, Tensor]:
    """Rows of different lengths in one batch, garbage at padding, and the mask."""
    case, batch, mask = CASES[name], some(name, len(inputs), width), None
    for key, value in batch.items():
        value.fill_(torch.nan if value.is_floating_point() else -(10**9))
        shape = value.shape[: case.axis + 1]
        mask = torch.zeros(shape, dtype=torch.bool)
        for row, own in enumerate(inputs):
            count = own[key].shape[case.axis]
            start = {"left": width - count, "right": 0, "both": (width - count) // 2}[side]
            place = (row, ..., slice(start, start + count))
            mask[place] = True
            value[row].narrow(case.axis - 1, start, count).copy_(own[key][0])
    assert mask is not None
    return batch, mask


@every_case
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_does_not_exist(name: str, side: str) -> None:
    model, case, before = made(name), CASES[name], warm(name, 4)
    alone = [some(name, 1, max(n, 1), row) for row, n in enumerate((5, 0, 9, 1))]
    alone[1] = cut(name, alone[1], 0, 0)
    batch, mask = padded(name, alone, 9, side)
    for state in (before, model.empty_state(4)):
        answer, after = ask(model, batch, state, mask=mask)
        assert bool(answer.isfinite().all())
        for row, inputs in enumerate(alone):
            mine = states.select(state, [row])
            if row != 1:
                expected, mine = ask(model, inputs, mine)
                found = answer[row, mask[row]] if case.aligned else answer[row]
                assert_close(found, expected[0])
            assert_states_close(states.select(after, [row]), mine)
        if case.aligned:
            assert bool((answer[~mask] == 0).all())
    if not case.aligned:
        # Without elements a row's answer is that of what it has seen, and 0 if that is nothing.
        assert bool((answer[1] == 0).all())
        _, once = ask(model, some(name, 1, 6, 3))
        again, _ = ask(model, cut_row(name, batch, 1), once, mask=mask[1:2])
        assert_close(again, ask(model, some(name, 1, 6, 3))[0])


def cut_row(name: str, inputs: Inputs, row: int) -> Inputs:
    return {key: value[row : row + 1] for key, value in inputs.items()}


@every_case
def test_causality_and_rows_bit_for_bit(name: str) -> None:
    model, inputs, case = made(name, torch.float32), some(name, dtype=torch.float32), CASES[name]
    other = some(name, seed=77, dtype=torch.float32)
    for form in model.forms:
        expected, after = ask(model, inputs, form=form)
        mixed = {key: torch.cat([inputs[key][:1], other[key][1:]]) for key in inputs}
        answer, state = ask(model, mixed, form=form)
        assert torch.equal(answer[0], expected[0])
        assert not torch.equal(answer[1], expected[1])
        for (_, a), (_, b) in zip(states.leaves(state), states.leaves(after), strict=True):
            assert torch.equal(a[0], b[0])
        if case.aligned:
            early, late = cut(name, inputs, 0, 9), cut(name, other, 9, LENGTH)
            changed = {key: torch.cat([early[key], late[key]], case.axis) for key in inputs}
            answer, _ = ask(model, changed, form=form)
            assert torch.equal(answer[:, :9], expected[:, :9])
            assert not torch.equal(answer[:, 9:], expected[:, 9:])


@every_case
def test_gradients_flow_through_the_state(name: str) -> None:
    model, case, inputs = made(name), CASES[name], some(name, 2, 10)
    parameters = list(model.parameters())

    def gradients(answer: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(answer.square().sum(), parameters, allow_unused=True)
        return [torch.zeros(()) if g is None else g for g in found]

    whole, _ = ask(model, inputs)
    expected = gradients(whole[:, 6:] if case.aligned else whole)
    _, state = ask(model, cut(name, inputs, 0, 6))
    found = gradients(ask(model, cut(name, inputs, 6, 10), state)[0])
    for (which, _), a, b in zip(model.named_parameters(), found, expected, strict=True):
        assert_close(a, b, "gradient", which)


@every_case
def test_a_call_leaves_older_states_alone(name: str) -> None:
    model, before = made(name), warm(name)
    copied = states.clone(before)
    first, _ = ask(model, some(name), before)
    for (_, a), (_, b) in zip(states.leaves(before), states.leaves(copied), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(ask(model, some(name), before)[0], first)


@every_case
def test_state_size_is_what_the_tensors_hold_and_empty_is_zero(name: str) -> None:
    model = made(name, torch.float32)
    empty = model.empty_state(3)
    assert all(bool((leaf == 0).all()) for _, leaf in states.leaves(empty))
    for length, state in ((0, empty), (6, warm(name, dtype=torch.float32))):
        held = sum(leaf.nbytes for _, leaf in states.leaves(state))
        assert model.state_size(length) * 3 == held
        model.check_state(state, 3)


@every_case
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, inputs = made(name, torch.float32), some(name, dtype=torch.float32)
    model.save(tmp_path / "model")
    again = threefold.load(tmp_path / "model")
    assert again.spec == model.spec
    before = warm(name, dtype=torch.float32)
    assert torch.equal(ask(again, inputs, before)[0], ask(model, inputs, before)[0])
    threefold.save_state(tmp_path / "state", before, model)
    loaded = threefold.load_state(tmp_path / "state", again)
    assert torch.equal(ask(again, inputs, loaded)[0], ask(model, inputs, before)[0])


@every_case
def test_bf16_runs(name: str) -> None:
    model = copy.deepcopy(made(name, torch.float32)).bfloat16()
    answer, state = ask(model, some(name, dtype=torch.bfloat16))
    assert answer.dtype == torch.bfloat16
    assert bool(answer.isfinite().all())
    answer, _ = ask(model, some(name, dtype=torch.bfloat16), state)
    assert bool(answer.isfinite().all())


@every_case
def test_states_of_others_are_refused(name: str) -> None:
    model, inputs = made(name), some(name)
    for wrong in (torch.zeros(3), {}, {"0": {}}):
        with pytest.raises(ThreefoldError, match=r"state must be a dict|state of another model"):
            ask(model, inputs, wrong)
    with pytest.raises(ThreefoldError, match="another batch size"):
        ask(model, inputs, model.empty_state(2))


@pytest.mark.parametrize("kind", ["classifier", "tagger"])
@pytest.mark.parametrize("mixer", ["mamba", "attention", "fnet"])
def test_both_directions(kind: str, mixer: str) -> None:
    """Every answer depends on every element, padding does not exist, and there is no state."""
    spec = Spec(kind, 32, 2, (mixer,), 61, options={"bidirectional": True})
    torch.manual_seed(0)
    model = threefold.build(spec).double().eval()
    mixers = [type(block.mixer).__name__ for block in model.stack.blocks]
    wanted = {"mamba": "Bidirectional", "attention": "Attention", "fnet": "FNet"}
    assert mixers == [wanted[mixer]] * 2
    x = tokens(2, 9, 0)[""]
    answer, state = model(x)
    assert state is None
    changed = x.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 61
    other, _ = model(changed)
    assert not torch.equal(
        other[:, 0] if kind == "tagger" else other, answer[:, 0] if kind == "tagger" else answer
    )
    mask = torch.arange(12).expand(2, 12) >= 3
    garbage = torch.cat([torch.full((2, 3), -5), x], 1)
    found, _ = model(garbage, mask=mask)
    assert_close(found[:, 3:] if kind == "tagger" else found, answer)
    for refused in (lambda: model.empty_state(1), lambda: model(x, {})):
        with pytest.raises(ThreefoldError, match="has no state"):
            refused()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (classifier("gla", "max"), "unknown pooling 'max'"),
        (classifier("gla", "mean", classes=0), "classes is 0"),
        (Spec("regressor", 32, 1, "gla", options={"outputs": 0}), "outputs is 0"),
        (classifier("gla", "mean", activation="tahn"), "did you mean 'tanh'"),
        (classifier("gla", "mean", input_size=-1), "input_size is -1"),
        (Spec("tagger", 32, 1, "gla", options={"classes": 0}), "0 classes"),
        (Spec("forecaster", 32, 1, "gla", options={"head": "quantil"}), "did you mean 'quantile'"),
        (Spec("forecaster", 32, 1, "gla", options={"quantiles": [0.5, 0.1]}), "increasing"),
        (Spec("forecaster", 32, 1, "gla", options={"scaling": "max"}), "unknown scaling 'max'"),
        (Spec("forecaster", 32, 1, "gla", options={"horizon": 0}), "horizon 0"),
        (Spec("forecaster", 32, 1, "fnet"), "cannot forecast"),
    ],
)
def test_bad_specs_are_refused(spec: Spec, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.build(spec)


def test_bad_inputs_are_refused() -> None:
    mean, pair, first = made("mean"), made("pair"), made("first")
    for wrong, message in (
        (torch.zeros(2, 3), r"\(2, 3\), expected vectors \[batch, length, 5\]"),
        (torch.zeros(2, 3, 5), "torch.float32, the weights are torch.float64"),
        (torch.zeros(2, 0, 5), "at least one element"),
        ([1], "list, expected vectors"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            mean(wrong)
    with pytest.raises(ThreefoldError, match=r"expected pairs \[batch, 2, length\]"):
        pair(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ThreefoldError, match="has no segments"):
        pair(tokens(2, 3, 0)[""].unsqueeze(1).expand(2, 2, 3), segments=torch.zeros(2, 2, 3).long())
    with pytest.raises(ThreefoldError, match="one segment per element"):
        first(tokens(2, 3, 0)[""], segments=torch.zeros(2, 4).long())
    with pytest.raises(ThreefoldError, match="segments: token 2 in row 0"):
        first(tokens(2, 3, 0)[""], segments=torch.full((2, 3), 2))
    forecaster = made("gaussian")
    with pytest.raises(ThreefoldError, match="exogenous inputs are none, expected 3"):
        forecaster(series(2, 3, 0)[""])
    with pytest.raises(ThreefoldError, match="the same length as the series"):
        forecaster(series(2, 3, 0)[""], exogenous=torch.zeros(2, 4, 3, dtype=torch.float64))
