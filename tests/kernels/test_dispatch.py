"""The table (operation, device) → kernel, and the one rule which forms run on kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from threefold.kernels import dispatch, library, ops
from threefold.memory import reservoir
from threefold.memory.cell import CellWeights, LSTMCell
from threefold.memory.cell import run as run_cell
from threefold.memory.coupled import CoupledGated
from threefold.memory.linear.diagonal import diagonal_recurrence
from threefold.memory.linear.recurrence import recur
from threefold.memory.linear.selective import selective_recurrence


def _linear(length: int, form: str, **more: Any) -> Any:
    query, key, value = torch.randn(3, 2, length, 2, 4)
    return recur(query, key, value, form=form, **more)


def _delta(length: int, form: str) -> Any:
    return _linear(length, form, strength=torch.rand(2, length, 2))


def _selective(length: int, form: str) -> Any:
    x, delta = torch.rand(2, 2, length, 3)
    read, write = torch.randn(2, 2, length, 4)
    return selective_recurrence(x, delta, -torch.ones(3, 4), write, read, form=form)


def _diagonal(length: int, form: str) -> Any:
    return diagonal_recurrence(
        torch.rand(2, length, 3), torch.rand(2, length, 3), torch.zeros(2, 3), form=form
    )


def _cell(length: int, form: str) -> Any:
    state = {"memory": {"hidden": torch.zeros(2, 3), "cell": torch.zeros(2, 3)}}
    weights = CellWeights(torch.randn(1, 12, 3))
    return run_cell(LSTMCell(), torch.randn(2, length, 12), state, weights, form)


def _reservoir(length: int, form: str) -> Any:
    weight = reservoir.sparse(torch.randn(5, 5))
    return reservoir.run(torch.randn(2, length, 5), weight, torch.zeros(2, 5), form=form)


def _legs(length: int, form: str) -> Any:
    units = CoupledGated(torch.randn(6, 3), torch.randn(6, 4), torch.randn(1, 3))
    x, position = torch.randn(2, length, 2, 3), torch.zeros(2, dtype=torch.int64)
    return units.run_legs(x, torch.zeros(2, 3), torch.zeros(2, 1, 4), position, form, None)


# Each recurrence, and whether its kernel is worth calling for one element.
RECURRENCES: dict[str, tuple[Callable[[int, str], Any], bool]] = {
    "decay_recurrence": (_linear, True),
    "delta_recurrence": (_delta, True),
    "selective_scan": (_selective, True),
    "diagonal_recurrence": (_diagonal, True),
    "cell_recurrence": (_cell, False),
    "reservoir": (_reservoir, True),
    "legs_recurrence": (_legs, True),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations whose kernels are called."""
    called: list[str] = []

    def spy(operation: str, kernel: dispatch.Kernel) -> dispatch.Kernel:
        def run(*inputs: Any, **more: Any) -> Any:
            called.append(operation)
            return kernel.run(*inputs, **more)

        return kernel._replace(run=run)

    for key, kernel in list(dispatch.KERNELS.items()):
        monkeypatch.setitem(dispatch.KERNELS, key, spy(key[0], kernel))
    return called


@pytest.mark.parametrize("operation", RECURRENCES)
def test_one_rule_for_all_recurrences(operation: str, calls: list[str]) -> None:
    run, serves_one = RECURRENCES[operation]
    run(5, "chunk")
    assert calls.count(operation) == 1
    run(1, "step")  # with gradients the step is the definition
    assert calls.count(operation) == 1
    with torch.no_grad():
        run(5, "step")
        assert calls.count(operation) == 1
        run(1, "step")
    assert calls.count(operation) == 1 + serves_one
    with library.using("reference"):
        run(5, "chunk")
    assert calls.count(operation) == 1 + serves_one


def test_a_given_chunk_length_and_the_parallel_form_are_definitions(calls: list[str]) -> None:
    _linear(5, "chunk", chunk=2)
    _linear(5, "parallel")
    _selective(5, "parallel")
    _diagonal(5, "parallel")
    assert calls == []


def test_a_kernel_of_another_device_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(decay: Tensor, write: Tensor, state: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
        asked.append(write.device.type)
        return torch.empty_like(write), state

    inputs = [torch.zeros(2, 5, 3, device="meta") for _ in range(2)]
    state = torch.zeros(2, 3, device="meta")
    assert ops.diagonal_recurrence(*inputs, state, None) is None
    monkeypatch.setattr(dispatch, "KERNELS", dict(dispatch.KERNELS))
    monkeypatch.setattr(ops, "KERNELS", dispatch.KERNELS)
    dispatch.register_kernel("diagonal_recurrence", "meta", run, native=False)
    diagonal_recurrence(*inputs, state, form="chunk")
    assert asked == ["meta"]
    assert ops.available("meta")["diagonal_recurrence"] == "native"
    assert ops.available("meta")["linear"] == "reference"
