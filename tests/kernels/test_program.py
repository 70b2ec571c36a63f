"""A stack's step as one native call: equal to its layers one by one, as long as it is valid."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threefold
from tests.crossings import count_crossings
from tests.tolerances import assert_close
from threefold.kernels import library, linear
from threefold.kernels.replay.thread_backoff import ThreadBackoff
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS
from threefold.memory.state import State, leaves
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

DTYPES = [torch.float32, torch.float64]
OPTIONS: list[dict[str, Any]] = [
    {"width": 64},
    {"width": 48, "delta_rank": 5, "state_size": 7, "taps": 3},
    {"width": 17, "expand": 3, "state_size": 1, "taps": 1},
    {"width": 32, "zero_order_hold": True},
]
# Mixers whose steps cannot be recorded, and why.
NOT_RECORDED = {"ckconv": "each element reads all before it by torch's products"}
CAUSAL = [name for name, entry in MIXERS.items() if entry.load().causal]


def make(
    dtype: torch.dtype, rows: int = 3, mixer: str = "mamba", **options: Any
) -> tuple[Mixer, Tensor, State]:
    """A layer, one element for each row, and a state that is not empty."""
    layer = threefold.mixer(mixer, **options).to(dtype).eval()
    with torch.no_grad():
        _, state = layer(torch.randn(rows, 5, layer.width, dtype=dtype))
    return layer, torch.randn(rows, 1, layer.width, dtype=dtype), state


def model(
    mixers: tuple[str, ...] = ("mamba",), channel: str = "none"
) -> tuple[LanguageModel, Tensor, State]:
    depth = max(2, len(mixers))
    made = LanguageModel(Spec("language", 32, depth, mixers, vocabulary=11, channel=channel))
    tokens = torch.randint(0, 11, (3, 4))
    with torch.no_grad():
        _, state = made.eval()(tokens)
    return made, tokens[:, 0], state


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of every program that runs."""
    return count_crossings(monkeypatch)


def assert_same(given: tuple[Tensor, State], expected: tuple[Tensor, State]) -> None:
    assert_close(given[0], expected[0])
    for (name, leaf), (other, wanted) in zip(leaves(given[1]), leaves(expected[1]), strict=True):
        assert name == other
        if leaf.is_floating_point():
            assert_close(leaf, wanted, quantity="state")
        else:
            assert torch.equal(leaf, wanted)


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, linear.MAX_ROWS])
def test_equals_the_layer(
    variant: str, crossings: list[int], rows: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer, x, state = make(dtype, rows, **options)
    before = {name: leaf.clone() for name, leaf in state.items()}
    layer(x, state, form="step")
    crossings.clear()
    stepped = layer(x, state, form="step")
    assert len(crossings) == 1
    with library.using("reference"):
        assert_same(stepped, layer(x, state, form="step"))
    assert len(crossings) == 1
    assert all(torch.equal(state[name], before[name]) for name in state)


@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_mixer_steps_at_once_or_is_known_not_to(
    variant: str, crossings: list[int], name: str, dtype: torch.dtype
) -> None:
    layer, x, state = make(dtype, 2, name, width=32)
    _, state = layer(x, state, form="step")  # records
    crossings.clear()
    stepped = layer(x, state, form="step")
    assert len(crossings) == (name not in NOT_RECORDED)
    with library.using("reference"):
        assert_same(stepped, layer(x, state, form="step"))


@pytest.mark.parametrize("name", CAUSAL)
def test_inference_mode_is_no_other_way(variant: str, crossings: list[int], name: str) -> None:
    layer, x, state = make(torch.float32, 2, name, width=32)
    with torch.inference_mode():
        _, state = layer(x, state, form="step")  # records
        crossings.clear()
        stepped = layer(x, state, form="step")
        layer(torch.randn(2, 4, 32), state)  # what it makes and keeps is good for both
    crossed = name not in NOT_RECORDED
    assert len(crossings) == crossed
    with torch.no_grad(), library.using("reference"):
        assert_same(stepped, layer(x, state, form="step"))
    crossings.clear()
    with torch.no_grad():
        for _ in range(5):  # a stream of inference mode is first copied to another
            _, state = layer(x, state, form="step")
    assert (len(crossings) > 0) == crossed


@torch.no_grad()
def test_whole_numbers_of_a_state_stay_exact(variant: str) -> None:
    layer, x, state = make(torch.float64, 2, "retnet", width=32)
    state["position"] += 2**40
    with library.using("reference"):
        expected = layer(x, state, form="step")
    for _ in range(2):
        _, after = layer(x, state, form="step")
        assert after["position"].dtype is torch.int64
        assert_same(layer(x, state, form="step"), expected)


@torch.no_grad()
@pytest.mark.parametrize("channel", ["none", "swiglu", "mlp", "rwkv", "rwkv7"])
@pytest.mark.parametrize(
    "mixers",
    [
        ("mamba",),
        ("mamba2", "gated_delta_net", "rwkv6", "lstm"),
        ("attention", "mamba", "transformer_xl"),
    ],
)
def test_a_model_crosses_once_a_token(
    variant: str, crossings: list[int], mixers: tuple[str, ...], channel: str
) -> None:
    made, tokens, state = model(mixers, channel)
    _, state = made.step(tokens, state)
    crossings.clear()
    stepped = made.step(tokens, state)
    assert len(crossings) == 1
    with library.using("reference"):
        assert_same(stepped, made.step(tokens, state))


@torch.no_grad()
def test_a_row_has_the_same_bits_alone(variant: str, crossings: list[int]) -> None:
    layer, x, state = make(torch.float32, 5, width=48)
    together, after = layer(x, state, form="step")
    for row in range(5):
        piece = slice(row, row + 1)
        alone, one = layer(x[piece], {n: leaf[piece] for n, leaf in state.items()}, form="step")
        assert torch.equal(alone, together[piece])
        assert all(torch.equal(one[name], after[name][piece]) for name in one)
    assert len(crossings) == 6


def swap_parameter(layer: Mixer) -> None:
    layer.out.weight = nn.Parameter(torch.randn_like(layer.out.weight))  # type: ignore[union-attr]


def swap_data(layer: Mixer) -> None:
    layer.A_log.data = layer.A_log.data + 0.1  # type: ignore[union-attr, operator]


def change_in_place(layer: Mixer) -> None:
    with torch.no_grad():
        layer.D.mul_(2)  # type: ignore[operator]


def swap_module(layer: Mixer) -> None:
    layer.out = nn.Linear(128, 64)


def set_attribute(layer: Mixer) -> None:
    layer.zero_order_hold = not layer.zero_order_hold  # type: ignore[assignment]


def add_hook(layer: Mixer) -> None:
    layer.out.register_forward_hook(lambda module, given, y: y + 1)  # type: ignore[union-attr]


@torch.no_grad()
@pytest.mark.parametrize(
    "change", [swap_parameter, swap_data, change_in_place, swap_module, set_attribute, add_hook]
)
def test_what_changes_is_seen(variant: str, change: Any) -> None:
    layer, x, state = make(torch.float32, width=64)
    layer(x, state, form="step")
    first, _ = layer(x, state, form="step")
    change(layer)
    stepped = layer(x, state, form="step")
    with library.using("reference"):
        assert_same(stepped, layer(x, state, form="step"))
    assert not torch.allclose(stepped[0], first)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, x, state: (layer, torch.randn(65, 1, 64), layer.empty_state(65)),
        lambda layer, x, state: (layer.train(), x, state),
    ],
    ids=["rows", "training"],
)
@torch.no_grad()
def test_what_it_does_not_serve_goes_the_ordinary_way(
    variant: str, crossings: list[int], change: Any
) -> None:
    layer, x, state = change(*make(torch.float32, width=64))
    stepped = layer(x, state, form="step")
    assert crossings == []
    with library.using("reference"):
        assert_same(stepped, layer(x, state, form="step"))


@pytest.mark.parametrize(
    "change",
    [
        lambda x, state: (x.transpose(0, 2).contiguous().transpose(0, 2), state),
        lambda x, state: (x, {**state, "memory": state["memory"].mT.contiguous().mT}),
    ],
    ids=["x", "state"],
)
@torch.no_grad()
def test_any_layout_will_do(variant: str, change: Any) -> None:
    layer, x, state = make(torch.float32, width=64)
    expected = layer(x, state, form="step")
    assert_same(layer(*change(x, state), form="step"), expected)


def test_gradients_go_the_ordinary_way(variant: str, crossings: list[int]) -> None:
    layer, x, state = make(torch.float32, width=64)
    y, _ = layer(x, state, form="step")
    y.sum().backward()
    assert crossings == []


@torch.no_grad()
def test_a_copy_steps_by_itself(variant: str) -> None:
    layer, x, state = make(torch.float32, width=64)
    first, _ = layer(x, state, form="step")
    other = copy.deepcopy(layer)
    assert other.programs == {}
    swap_parameter(layer)
    assert torch.equal(other(x, state, form="step")[0], first)


@torch.no_grad()
def test_a_layer_that_stepped_is_let_go(variant: str) -> None:
    layer, x, state = make(torch.float32, width=64)
    layer(x, state, form="step")
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None


@torch.no_grad()
def test_not_a_number_stays(variant: str) -> None:
    layer, x, state = make(torch.float32, width=64)
    x[1, 0, 3] = torch.nan
    y, _ = layer(x, state, form="step")
    assert y[1].isnan().all()
    assert not y[0].isnan().any()
    assert not y[2].isnan().any()


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_for_any_number_of_threads(variant: str, threads: int) -> None:
    layer, x, state = make(torch.float32, 1, width=256)
    expected, _ = layer(x, state, form="step")
    torch.set_num_threads(threads)
    y, _ = layer(x, state, form="step")
    assert torch.equal(y, expected)


def test_threads_that_wait_for_each_other_are_left_alone_for_a_while() -> None:
    torch.set_num_threads(2)
    threads = ThreadBackoff()
    for seconds in (0.9, 0.1, 0.3):
        assert threads.take() == 2
        threads.note(2, seconds)
    threads.note(threads.take(), 0.5)
    for pause in (16, 32, 64):
        assert [threads.take() for _ in range(pause)] == [1] * pause
        threads.note(1, 9.0)
        assert threads.take() == 2
        threads.note(2, 0.5)
    for _ in range(128):
        assert threads.take() == 1
    assert threads.take() == 2
    threads.note(2, 0.1)
    assert threads.take() == 2
