"""The models of one input sequence that `test_encoders.py` holds against the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from threefold import Spec
from threefold.memory.state import State

Inputs = dict[str, Tensor]  # the first is given by place, the others by name


def tokens(rows: int, length: int, seed: int) -> Inputs:
    return {"": torch.randint(0, 61, (rows, length), generator=_random(seed))}


def segmented(rows: int, length: int, seed: int) -> Inputs:
    segments = torch.randint(0, 2, (rows, length), generator=_random(seed + 100))
    return {**tokens(rows, length, seed), "segments": segments}


def vectors(rows: int, length: int, seed: int) -> Inputs:
    return {"": torch.randn(rows, length, 5, generator=_random(seed), dtype=torch.float64)}


def pairs(rows: int, length: int, seed: int) -> Inputs:
    return {"": torch.stack([tokens(rows, length, seed + i)[""] for i in (0, 50)], 1)}


def series(rows: int, length: int, seed: int) -> Inputs:
    walk = torch.randn(rows, length, 2, generator=_random(seed), dtype=torch.float64).cumsum(1)
    return {"": 3 * walk + 20}


def with_exogenous(rows: int, length: int, seed: int) -> Inputs:
    more = torch.randn(rows, length, 3, generator=_random(seed + 9), dtype=torch.float64)
    return {**series(rows, length, seed), "exogenous": more}


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Case:
    """A model and what it reads."""

    spec: Spec
    make: Callable[[int, int, int], Inputs]

    @property
    def axis(self) -> int:
        """The axis of the elements."""
        return 2 if self.make is pairs else 1

    @property
    def aligned(self) -> bool:
        """Whether there is an answer for each element."""
        return self.spec.kind not in ("classifier", "regressor")


def classifier(mixers: Any, pooling: str, **options: Any) -> Spec:
    more = {"classes": 3, "pooling": pooling, **options}
    return Spec("classifier", 32, 2, mixers, 61, options=more)


HISTORY = (("attention", {"heads": 4, "positions": "none"}), "gla")
LEARNED = {"positions": "learned", "max_length": 64}
CASES = {
    "last": Case(classifier("gla", "last"), tokens),
    "first": Case(classifier(HISTORY, "first", segments=2, **LEARNED), segmented),
    "mean": Case(classifier("mamba", "mean", input_size=5, hidden=16), vectors),
    "attention": Case(classifier(("mamba", "gru"), "attention", **LEARNED), tokens),
    "pair": Case(classifier(HISTORY, "mean", pair=True), pairs),
    "numbers": Case(
        Spec("regressor", 32, 2, HISTORY, options={"outputs": 2, "input_size": 5}), vectors
    ),
    "tagger": Case(
        Spec("tagger", 32, 2, HISTORY, 61, options={"classes": 5, "segments": 2}), segmented
    ),
    "quantile": Case(
        Spec("forecaster", 32, 2, "mamba", options={"channels": 2, "horizon": 3}), series
    ),
    "gaussian": Case(
        Spec(
            "forecaster",
            32,
            2,
            ("gla", "lstm"),
            options={
                "channels": 2,
                "exogenous": 3,
                "head": "gaussian",
                "scaling": "mean",
                **LEARNED,
            },
        ),
        with_exogenous,
    ),
    "lags": Case(
        Spec(
            "forecaster",
            32,
            1,
            "gla",
            options={"channels": 2, "exogenous": 3, "horizon": 3, "lags": 5},
        ),
        with_exogenous,
    ),
}
every_case = pytest.mark.parametrize("name", CASES)
LENGTH = 14


@cache
def made(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """A model whose layers weigh as much as its embedding, so that no fault hides behind it."""
    torch.manual_seed(0)
    model = threefold.build(CASES[name].spec)
    with torch.no_grad():
        filters = [tensor for name, tensor in model.named_buffers() if name.startswith("start.")]
        for parameter in (*model.parameters(), *filters):
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def some(
    name: str, rows: int = 3, length: int = LENGTH, seed: int = 1, dtype: Any = None
) -> Inputs:
    made_up = CASES[name].make(rows, length, seed)
    return {
        key: value.to(dtype or torch.float64) if value.is_floating_point() else value
        for key, value in made_up.items()
    }


def ask(
    model: Any, inputs: Inputs, state: State | None = None, **more: Any
) -> tuple[Tensor, State]:
    first = inputs[""]
    named = {key: value for key, value in inputs.items() if key}
    answer, state = model(first, state, **named, **more)
    return answer, state


def cut(name: str, inputs: Inputs, begin: int, end: int) -> Inputs:
    axis = CASES[name].axis
    return {key: value.narrow(axis, begin, end - begin) for key, value in inputs.items()}


def warm(name: str, rows: int = 3, dtype: torch.dtype = torch.float64) -> State:
    with torch.no_grad():
        return ask(made(name, dtype), some(name, rows, 6, 5, dtype))[1]
