"""Long convolutions with their state: any cut, fork or row gives the answer of the whole pass."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.kernels.test_long_convolution import direct
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer
from threefold.memory import state as states

MIXERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("long_conv", {"max_length": 200, "smooth": 2}),
    ("hyena", {"max_length": 200, "order": 3}),
    ("ckconv", {"max_length": 200, "hidden": 8}),
)
every_streaming_mixer = pytest.mark.parametrize(("name", "options"), MIXERS)


def make(name: str, options: dict[str, Any], dtype: torch.dtype = torch.float32) -> Mixer:
    torch.manual_seed(0)
    return threefold.mixer(name, width=16, **options).to(dtype).eval()


def streamed(mixer: Mixer, x: Tensor, state: states.State | None = None) -> tuple[Tensor, Any]:
    outputs = []
    for t in range(x.shape[1]):
        y, state = mixer.step(x[:, t], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("cuts", [(40,), (1, 39), (13, 2, 25), (1,) * 40])
def test_pieces_are_the_whole(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, kernel, skip = (torch.randn(s, dtype=torch.float64) for s in ((2, 40, 5), (5, 17), (5,)))
    state, outputs = None, []
    for piece in x.split(list(cuts), 1):
        y, state = threefold.long_convolution(piece, kernel, skip=skip, state=state)
        outputs.append(y)
    assert_close(torch.cat(outputs, 1), direct(x, kernel, skip))
    assert state is not None and torch.equal(state, x[:, -16:])


def test_gradients_go_through_the_state() -> None:
    torch.manual_seed(0)
    kernel = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    first = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    second = torch.randn(2, 4, 3, dtype=torch.float64)

    def following(first: Tensor, kernel: Tensor) -> Tensor:
        _, state = threefold.long_convolution(first, kernel)
        return threefold.long_convolution(second, kernel, state=state)[0]

    assert torch.autograd.gradcheck(following, (first, kernel))


def test_bad_input() -> None:
    x, kernel = torch.randn(2, 5, 3), torch.randn(3, 4)
    with pytest.raises(threefold.ThreefoldError, match=r"\(2, 5, 3\).*\(2, 3, 3\)"):
        threefold.long_convolution(x, kernel, state=x)
    with pytest.raises(threefold.ThreefoldError, match=r"\(2, 5\).*\[batch, length, channels\]"):
        threefold.long_convolution(x[..., 0], kernel)


@every_streaming_mixer
def test_streaming_is_the_whole_pass(name: str, options: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.float64):
        mixer = make(name, options, dtype)
        x = torch.randn(2, 200, 16, dtype=dtype)
        with torch.no_grad():
            y, state = streamed(mixer, x)
            whole, after = mixer(x, form="parallel")
        assert_close(y, whole, what=f"{name} {dtype}")
        assert_close(state["values"], after["values"], "state")


@every_streaming_mixer
def test_forks_and_copies_give_the_same_bits(name: str, options: dict[str, Any]) -> None:
    """From an older state, a copy, some rows, or after a full pass: the bits of one stream."""
    mixer = make(name, options)
    x = torch.randn(3, 150, 16)
    with torch.no_grad():
        _, old = streamed(mixer, x[:, :100])
        frozen = states.clone(old)
        expected, _ = streamed(mixer, x[:, 100:], old)
        assert all(
            torch.equal(a, b)
            for (_, a), (_, b) in zip(states.leaves(old), states.leaves(frozen), strict=True)
        )
        for fork in (old, frozen):
            assert torch.equal(streamed(mixer, x[:, 100:], fork)[0], expected)
        assert torch.equal(streamed(copy.deepcopy(mixer), x[:, 100:], frozen)[0], expected)
        some = streamed(mixer, x[[2, 0], 100:], states.select(old, [2, 0]))[0]
        assert_close(some, expected[[2, 0]])
        # Two streams continue from one state, alternating.
        first, second = old, old
        for t in range(100, 140):
            _, first = mixer.step(-x[:, t], first)
            z, second = mixer.step(x[:, t], second)
            assert torch.equal(z, expected[:, t - 100])


@every_streaming_mixer
def test_rows_at_different_places(name: str, options: dict[str, Any]) -> None:
    mixer = make(name, options)
    x = torch.randn(3, 90, 16)
    mask = torch.arange(90) < torch.tensor([[90], [33], [64]])
    more = torch.randn(3, 40, 16)
    with torch.no_grad():
        _, state = mixer(x, mask=mask)
        y, _ = streamed(mixer, more, state)
        for row, length in enumerate((90, 33, 64)):
            alone, _ = mixer(torch.cat([x[row : row + 1, :length], more[row : row + 1]], 1))
            assert_close(y[row], alone[0, length:], what=f"{name} row {row}")


@every_streaming_mixer
def test_new_weights_are_seen_in_midstream(name: str, options: dict[str, Any]) -> None:
    mixer = make(name, options)
    x = torch.randn(1, 80, 16)
    with torch.no_grad():
        _, state = streamed(mixer, x[:, :70])
        for parameter in mixer.get_submodule("filters").parameters():
            parameter.mul_(1.5)
        y, _ = streamed(mixer, x[:, 70:], state)
        expected, _ = mixer(x[:, 70:], state, form="parallel")
    assert_close(y, expected)


@every_streaming_mixer
def test_edits_of_data_are_seen_after_eval_or_loading(name: str, options: dict[str, Any]) -> None:
    """They do not advance the version counter, so `train()` and `eval()` recompute the filters."""
    mixer = make(name, options)
    x = torch.randn(1, 20, 16)
    with torch.no_grad():
        before, _ = streamed(mixer, x)
        for ready in (mixer.eval, lambda: mixer.load_state_dict(mixer.state_dict())):
            for parameter in mixer.get_submodule("filters").parameters():
                parameter.data.mul_(1.5)
            ready()
            y, _ = streamed(mixer, x)
            expected, _ = copy.deepcopy(mixer)(x, form="step")
            assert_close(y, expected)
            assert not torch.allclose(y, before)


@every_streaming_mixer
def test_more_than_the_filter_is_refused(name: str, options: dict[str, Any]) -> None:
    mixer = make(name, {**options, "max_length": 20})
    _, state = mixer(torch.randn(1, 15, 16))
    with pytest.raises(
        threefold.ThreefoldError, match=r"21 elements \(15 carried\).*max_length=20"
    ):
        mixer(torch.randn(1, 6, 16), state)
    with pytest.raises(threefold.ThreefoldError, match="max_length is 0"):
        make(name, {**options, "max_length": 0})
