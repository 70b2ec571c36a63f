"""What is not a dense tensor is refused by every mixer; states can be copied and pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import MIXERS, Spec, ThreefoldError
from threefold.layers.mixer import Mixer
from threefold.memory import state as states

every_mixer = pytest.mark.parametrize("name", MIXERS)
CAUSAL = [name for name, entry in MIXERS.items() if entry.load().causal]
X = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))


def make(name: str) -> Mixer:
    torch.manual_seed(0)
    return threefold.mixer(name, width=32).eval()


def stepped(mixer: Mixer) -> states.State:
    """A state after a few elements and a few single steps, which fill buffers."""
    with torch.no_grad():
        _, state = mixer(X)
        for _ in range(3):
            _, state = mixer.step(X[:, 0], state)
    return state  # type: ignore[no-any-return]


@every_mixer
def test_inputs_and_masks(name: str) -> None:
    mixer = make(name)
    for wrong, what in (
        (X.numpy(), "x is a ndarray, expected a dense tensor"),
        (X.tolist(), "x is a list"),
        (None, "x is None"),
        (X.to_sparse(), r"x is a tensor with layout torch.sparse_coo"),
    ):
        with pytest.raises(ThreefoldError, match=what):
            mixer(wrong)
        with pytest.raises(ThreefoldError, match=what):
            mixer.step(wrong)  # type: ignore[arg-type]
    if any(True for _ in mixer.parameters()):
        with pytest.raises(ThreefoldError, match="x is on meta, the weights are on cpu"):
            mixer(X.to("meta"))
    for mask, what in (([[True] * 5] * 2, "a list"), (np.ones((2, 5), bool), "a ndarray")):
        with pytest.raises(ThreefoldError, match=rf"mask is {what}, expected a bool tensor \(2, 5"):
            mixer(X, mask=mask)


@every_mixer
def test_widths(name: str) -> None:
    for width in (32.0, "32", None, True, 0, -16):
        with pytest.raises(ThreefoldError, match=r"width is .*, expected an integer, 1 or more"):
            threefold.mixer(name, width=width)


LEAVES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "list": (lambda leaf: leaf.tolist(), "is a list, expected a dense tensor"),
    "none": (lambda leaf: None, "is None, expected a dense tensor"),
    "numpy": (lambda leaf: leaf.numpy(), "is a ndarray, expected a dense tensor"),
    "meta": (lambda leaf: leaf.to("meta"), "is on meta, the weights are on cpu; move one of them"),
    "sparse": (lambda leaf: leaf.to_sparse(), "is a tensor with layout torch.sparse_coo"),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_leaves_of_a_state(name: str) -> None:
    mixer = make(name)
    state = stepped(mixer)
    for change, message in LEAVES.values():
        changed = states.transform(change, state)
        with pytest.raises(ThreefoldError, match=f"state leaf '.*' {message}"):
            mixer(X, changed)
        with pytest.raises(ThreefoldError, match=f"state leaf '.*' {message}"):
            mixer.step(X[:, 0], changed)


def test_leaves_of_the_state_of_a_model() -> None:
    model: Any = threefold.build(Spec("language", 32, 2, ("attention", "gla"), vocabulary=61))
    tokens = torch.zeros(2, 3, dtype=torch.int64)
    with torch.no_grad():
        _, state = model(tokens)
        for change, message in LEAVES.values():
            with pytest.raises(ThreefoldError, match=f"state leaf '.*' {message}"):
                model(tokens, states.transform(change, state))
            with pytest.raises(ThreefoldError, match=f"state leaf '.*' {message}"):
                model.step(tokens[:, 0], states.transform(change, state))


@pytest.mark.parametrize("name", CAUSAL)
def test_copies_and_pickles_of_a_state_continue(name: str) -> None:
    mixer = make(name)
    state = stepped(mixer)
    copies = (copy.deepcopy(state), pickle.loads(pickle.dumps(state)))
    with torch.no_grad():
        expected, _ = mixer(X[:, :4], state, form="step")
        for other in copies:
            assert torch.equal(mixer(X[:, :4], other, form="step")[0], expected)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_state_of_inference_mode_is_continued_with_gradients(name: str) -> None:
    mixer = make(name)
    with torch.inference_mode():
        state = mixer(X)[1]
    with torch.no_grad():
        expected = mixer(X, mixer(X)[1])[0]
    y, _ = mixer(X, state)
    y.sum().backward()
    assert_close(y.detach(), expected, "output")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", CAUSAL)
def test_vmap_over_rows(name: str) -> None:
    mixer = make(name)
    with torch.no_grad():
        rows = torch.vmap(lambda row: mixer(row.unsqueeze(0))[0].squeeze(0))(X)
        assert_close(rows, mixer(X)[0], "output")
