"""A mixer and another layer with the same weights: how far apart outputs, gradients, states are.

A state is compared by what follows it: the mixer reads the first part of a sequence, then the rest
from the state, and the other layer reads the whole in one pass.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from tests.layers.published import make, rows_of_input
from tests.tolerances import relative_error
from threefold.layers.mixer import Mixer

Layer = Callable[[Tensor], Tensor]
DTYPES = (torch.float64, torch.float32)
CUT = 9  # elements before the state that is carried


class Deviations(NamedTuple):
    """Relative differences; None where there is nothing to compare."""

    output: float
    gradient: float | None  # of the inputs; None if the other layer has none
    state: float | None  # None if the mixer has none


@dataclass(frozen=True)
class Parity:
    """One comparison: `build` makes the other layer with the weights of the mixer."""

    mixer: str
    peer: str
    build: Callable[[Mixer], Layer]
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 32
    reason: str = ""  # why the layers may differ by more than rounding
    differentiable: bool = True  # whether the other layer has gradients

    def measure(self, dtype: torch.dtype) -> Deviations:
        """The differences in a dtype."""
        mixer = make(self.mixer, dtype, self.width, **self.options)
        x = rows_of_input(dtype, self.width).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.no_grad():
                layer = self.build(mixer)
            with computing_in(dtype):
                expected = layer(x)
                wanted = input_gradient(expected, x) if self.differentiable else None
        actual, _ = mixer(x)
        return Deviations(
            relative_error(actual, expected),
            None if wanted is None else relative_error(input_gradient(actual, x), wanted),
            relative_error(after_a_state(mixer, x), expected[:, CUT:]) if mixer.causal else None,
        )


def input_gradient(y: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weighted sum of the outputs."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).cos().view_as(y)
    return torch.autograd.grad((y * weights.to(y.dtype)).sum(), x)[0]


def after_a_state(mixer: Mixer, x: Tensor) -> Tensor:
    """The outputs after the first elements, from the state that those left."""
    _, state = mixer(x[:, :CUT])
    rest: Tensor = mixer(x[:, CUT:], state)[0]
    return rest


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Many layers convert to float32 inside; in float64 they are made to stay in float64."""
    if dtype == torch.float32:
        yield
        return
    with (
        mock.patch.object(torch.Tensor, "float", lambda self: self.to(dtype)),
        mock.patch.object(torch, "float32", dtype),
        mock.patch.object(torch, "float", dtype),
    ):
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def package(name: str) -> ModuleType:
    """Import a module of a peer, or skip the test."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        pytest.skip(f"{name.partition('.')[0]} is not installed; `make test-peers` installs it")


def load(layer: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Copy weights, each reshaped; every weight of the layer must be given, and no other."""
    wanted = dict(layer.named_parameters())
    assert wanted.keys() == weights.keys(), sorted(wanted.keys() ^ weights.keys())
    for name, parameter in wanted.items():
        parameter.data = weights[name].detach().reshape(parameter.shape).clone()
    return layer.eval()
