"""A mixer and another library's layer with the same weights: how far apart their outputs are."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from tests.layers.published import make, rows_of_input
from tests.tolerances import relative_error
from threefold.layers.mixer import Mixer

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parity:
    """One comparison: `build` makes the other layer with the weights of the mixer."""

    mixer: str
    peer: str
    build: Callable[[Mixer], Layer]
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 32
    reason: str = ""  # why the layers may differ by more than rounding

    def measure(self, dtype: torch.dtype) -> float:
        """The relative difference of the outputs in a dtype."""
        mixer = make(self.mixer, dtype, self.width, **self.options)
        x = rows_of_input(dtype, self.width)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layer = self.build(mixer)
            with computing_in(dtype):
                expected = layer(x)
            return relative_error(mixer(x)[0], expected)


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
