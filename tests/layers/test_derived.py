"""What is made from parameters and kept is never older than they are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer
from threefold.layers.state_space_mixer import Discretised, set_rate

MIXERS = ("s4", "s4d", "s5", "h3", "lssl")


def make(name: str) -> Mixer:
    torch.manual_seed(0)
    made = threefold.mixer(name, width=8, state_size=4)
    return made.eval()


def optimised(layer: Mixer) -> None:
    """One step of an optimiser that changes all parameters in one call."""
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    with torch.enable_grad():
        layer(torch.randn(1, 5, 8))[0].square().sum().backward()
    optimiser.step()


def edited(layer: Mixer) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.add_(0.1)


def loaded(layer: Mixer) -> None:
    other = make("s4d") if layer.name == "S4D" else copy.deepcopy(layer)
    edited(other)
    layer.load_state_dict(other.state_dict())


def swapped(layer: Mixer) -> None:
    """An edit that nobody counts; going through `train` and `eval` is enough."""
    for parameter in layer.parameters(recurse=False):
        parameter.data = parameter.data + 0.1
    layer.train().eval()


def edited_data(layer: Mixer) -> None:
    for parameter in layer.parameters():
        parameter.data.mul_(1.25)


def edited_numpy(layer: Mixer) -> None:
    for parameter in layer.parameters():
        parameter.detach().numpy()[:] *= 1.25


CHANGES: dict[str, Callable[[Mixer], None]] = {
    "optimised": optimised,
    "edited": edited,
    "loaded": loaded,
    "swapped": swapped,
    "edited data": edited_data,
    "edited numpy": edited_numpy,
}


def outputs(layer: Mixer, x: Tensor) -> tuple[Tensor, Tensor]:
    """In one pass, and element by element."""
    state, stepped = layer.empty_state(len(x)), []
    for element in x.unbind(1):
        y, state = layer.step(element, state)
        stepped.append(y)
    return layer(x)[0], torch.stack(stepped, 1)


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MIXERS)
def test_a_change_of_the_parameters_is_seen(name: str, change: str) -> None:
    layer, x = make(name), torch.randn(2, 7, 8)
    before, _ = outputs(layer, x)
    CHANGES[change](layer)
    layer.zero_grad()
    whole, stepped = outputs(layer, x)
    fresh, _ = outputs(copy.deepcopy(layer), x)
    assert not torch.allclose(whole, before)
    assert torch.equal(whole, fresh)
    assert_close(stepped, whole)


@torch.no_grad()
@pytest.mark.parametrize("change", [edited_data, edited_numpy])
@pytest.mark.parametrize("name", threefold.MIXERS)
def test_a_change_that_nobody_counts_is_seen_by_every_mixer(
    name: str, change: Callable[[Mixer], None]
) -> None:
    torch.manual_seed(0)
    layer, x = threefold.mixer(name, width=16).eval(), torch.randn(2, 7, 16)
    for run in (lambda layer, x: layer(x)[:1], outputs)[: 1 + layer.causal]:
        run(layer, x)
        change(layer)
        for actual, expected in zip(run(layer, x), run(copy.deepcopy(layer), x), strict=True):
            assert torch.equal(actual, expected)


@torch.no_grad()
@pytest.mark.parametrize("name", ["s4", "s4d", "s5", "lssl"])
def test_a_change_of_the_rate_is_seen(name: str) -> None:
    layer, x = make(name), torch.randn(2, 7, 8)
    before, _ = outputs(layer, x)
    set_rate(layer, 0.5)
    whole, stepped = outputs(layer, x)
    assert not torch.allclose(whole, before)
    assert_close(stepped, whole)


@pytest.mark.parametrize("name", MIXERS)
def test_it_is_made_once_without_gradients_and_each_time_with_them(name: str) -> None:
    layer, x = make(name), torch.randn(2, 7, 8)
    assert isinstance(layer, Discretised)
    made: list[object] = []
    original = layer.discretise

    def noted() -> object:
        made.append(original())
        return made[-1]

    layer.discretise = noted  # type: ignore[method-assign]
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    assert len(made) == 1
    for _ in range(3):
        layer(x)[0].sum().backward()
    assert len(made) == 4
    with torch.inference_mode():
        layer(x)
    layer.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    layer(leaf)[0].sum().backward()
    assert leaf.grad is not None and bool(leaf.grad.isfinite().all())
