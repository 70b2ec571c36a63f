"""A whole Mamba layer in one native call: equal to the layer, and only where it serves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold.kernels import library, linear, mamba_step
from threefold.layers.mamba import Mamba

DTYPES = [torch.float32, torch.float64]
OPTIONS: list[dict[str, Any]] = [
    {"width": 64},
    {"width": 48, "delta_rank": 5, "state_size": 7, "taps": 3},
    {"width": 17, "expand": 3, "state_size": 1, "taps": 1},
    {"width": 32, "zero_order_hold": True},
]


def make(dtype: torch.dtype, rows: int = 3, **options: Any) -> tuple[Mamba, Tensor, Any]:
    """A layer, one element for each row, and a state that is not empty."""
    layer = threefold.mixer("mamba", **options).to(dtype)
    with torch.no_grad():
        _, state = layer(torch.randn(rows, 5, layer.width, dtype=dtype))
    assert isinstance(layer, Mamba)
    return layer, torch.randn(rows, 1, layer.width, dtype=dtype), state


def native(layer: Mamba, x: Tensor, state: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    return mamba_step.step(
        x, state["memory"], state["conv"], layer._weights(), layer.zero_order_hold
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rows", [1, 2, linear.MOST_ROWS])
def test_equals_the_layer(
    variant: str, rows: int, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer, x, state = make(dtype, rows, **options)
    before = {name: leaf.clone() for name, leaf in state.items()}
    with torch.no_grad():
        stepped = native(layer, x, state)
        assert stepped is not None
        with library.using("reference"):
            y, after = layer(x, state, form="step")
    assert_close(stepped[0], y)
    assert_close(stepped[1], after["memory"], quantity="state")
    assert_close(stepped[2], after["conv"], quantity="state")
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_the_layer_uses_it(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, state = make(torch.float32, width=64)
    names: list[str] = []
    call = library.call
    monkeypatch.setattr(
        library, "call", lambda name, *a, **k: (names.append(name), call(name, *a, **k))
    )
    with torch.no_grad():
        layer(x, state)
    assert names == ["mamba_step"]


def test_a_row_has_the_same_bits_alone(variant: str) -> None:
    layer, x, state = make(torch.float32, 5, width=48)
    with torch.no_grad():
        together, after = layer(x, state, form="step")
        for row in range(5):
            piece = slice(row, row + 1)
            alone, one = layer(
                x[piece], {name: leaf[piece] for name, leaf in state.items()}, form="step"
            )
            assert torch.equal(alone, together[piece])
            assert all(torch.equal(one[name], after[name][piece]) for name in one)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer, x, state: (layer, torch.randn(9, 1, 64), layer.empty_state(9)),
        lambda layer, x, state: (layer, x.repeat(1, 2, 1), state),
        lambda layer, x, state: (layer, x.transpose(0, 2).contiguous().transpose(0, 2), state),
        lambda layer, x, state: (layer, x, {**state, "conv": state["conv"][:, :, :-1]}),
        lambda layer, x, state: (layer, x, {**state, "memory": state["memory"].double()}),
        lambda layer, x, state: (layer, x[..., :-1], state),
    ],
    ids=["rows", "length", "layout", "conv", "dtype", "width"],
)
def test_what_it_does_not_serve_it_leaves(variant: str, change: Any) -> None:
    with torch.no_grad():
        assert native(*change(*make(torch.float32, width=64))) is None


def test_not_a_number_stays(variant: str) -> None:
    layer, x, state = make(torch.float32, width=64)
    x[1, 0, 3] = torch.nan
    with torch.no_grad():
        y, _ = layer(x, state, form="step")
    assert y[1].isnan().all()
    assert not y[0].isnan().any() and not y[2].isnan().any()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_same_bits_for_any_number_of_threads(variant: str, threads: int) -> None:
    layer, x, state = make(torch.float32, 1, width=256)
    with torch.no_grad():
        expected, _ = layer(x, state, form="step")
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            y, _ = layer(x, state, form="step")
        finally:
            torch.set_num_threads(before)
    assert torch.equal(y, expected)
