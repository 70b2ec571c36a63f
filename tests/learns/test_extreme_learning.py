"""The extreme learning machine: its ridge written out, what it learns, and what it refuses."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.estimators import echo_state_network, extreme_learning, liquid_state_machine
from threefold.estimators.extreme_learning import ExtremeLearningMachine


def rows(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("direct", [False, True])
def test_ridge_as_written(direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extreme_learning, "PIECE_ROWS", 17)
    x = rows(100)
    y = torch.stack([x.prod(1), x[:, 0].square()], 1)
    machine = ExtremeLearningMachine(
        units=20, activation="sigmoid", direct=direct, regularisation=1e-2
    ).fit(x, y)
    hidden = torch.sigmoid(x @ machine.tensors["weight_in"].T + machine.tensors["bias"])
    features = torch.cat([x, hidden], 1) if direct else hidden
    centred = features - features.mean(0)
    squares = centred.T @ centred + 1e-2 * torch.eye(centred.shape[1]).double()
    expected = torch.linalg.solve(squares, centred.T @ (y - y.mean(0)))
    assert_close(machine.readout, expected)
    assert_close(machine.predict(x), features @ expected + y.mean(0) - features.mean(0) @ expected)


def test_regularisation_is_chosen_on_interleaved_folds() -> None:
    x = rows(90)
    y = x.sum(1, keepdim=True) + 0.5 * rows(90, 1)[:, :1]
    grid = [1e-6, 1e-1, 10.0]
    machine = ExtremeLearningMachine(units=60, regularisation=grid, folds=3).fit(x, y)
    squared = 0.0
    for held in range(3):
        inside = torch.arange(90) % 3 == held
        part = ExtremeLearningMachine(units=60, regularisation=0.1).fit(x[~inside], y[~inside])
        squared += float((part.predict(x[inside]) - y[inside]).square().sum())
    assert machine.held_out_errors[0.1] == pytest.approx(squared / 90, rel=1e-8)
    assert machine.best_regularisation == min(
        machine.held_out_errors, key=lambda beta: machine.held_out_errors[beta]
    )


def test_learns_numbers_and_labels(tmp_path: Path) -> None:
    x, other = rows(600), rows(200, 1)
    machine = ExtremeLearningMachine(units=200).fit(x, torch.sin(x).prod(1))
    assert machine.score(other, torch.sin(other).prod(1)) > 0.9
    labels, wanted = ((each.norm(dim=1) > 1.5).long() for each in (x, other))
    machine = ExtremeLearningMachine(units=200, classify=True, regularisation=[1e-6, 1e-3, 1.0])
    machine.fit(x, labels)
    assert machine.score(other, wanted) > 0.95
    assert (machine.predict(other) == wanted).double().mean() == machine.score(other, wanted)
    machine.save(tmp_path / "machine")
    again = ExtremeLearningMachine.load(tmp_path / "machine")
    assert torch.equal(again.decision_function(other), machine.decision_function(other))
    with pytest.raises(
        ThreefoldError, match="contains ExtremeLearningMachine, expected a saved Echo"
    ):
        echo_state_network.EchoStateNetwork.load(tmp_path / "machine")


def test_row_by_row() -> None:
    x = rows(80)
    y = x.prod(1, keepdim=True)
    machine = ExtremeLearningMachine(units=10, regularisation=1e-3)
    for first in range(0, 80, 13):
        machine.partial_fit(x[first : first + 13].numpy(), y[first : first + 13].numpy())
    hidden = torch.tanh(x @ machine.tensors["weight_in"].T + machine.tensors["bias"])
    features = torch.cat([hidden, torch.ones(80, 1).double()], 1)
    squares = features.T @ features + 1e-3 * torch.eye(11).double()
    expected = torch.linalg.solve(squares, features.T @ y)
    torch.testing.assert_close(machine.readout, expected[:-1], rtol=1e-8, atol=1e-10)


def test_bad_input() -> None:
    x = rows(20)
    machine = ExtremeLearningMachine(units=30, regularisation=0.0)
    with pytest.raises(ThreefoldError, match="20 samples for 30 features"):
        machine.fit(x, x)
    with pytest.raises(ThreefoldError, match="inputs have 20 rows, targets have 19"):
        machine.fit(x, x[1:])
    bad = x.clone()
    bad[7, 1] = torch.inf
    with pytest.raises(ThreefoldError, match="element 7 is not finite"):
        machine.fit(bad, x)
    with pytest.raises(ThreefoldError, match="integers or strings"):
        ExtremeLearningMachine(classify=True).fit(x, np.full(20, 0.5))
    with pytest.raises(ThreefoldError, match="at least two classes"):
        ExtremeLearningMachine(classify=True).fit(x, np.zeros(20, dtype=int))
    with pytest.raises(ThreefoldError, match="call fit first"):
        machine.predict(x)
    with pytest.raises(ThreefoldError, match="expected 3 as in fit"):
        ExtremeLearningMachine(units=5).fit(x, x).predict(x[:, :2])


@pytest.mark.parametrize("module", [extreme_learning, echo_state_network, liquid_state_machine])
def test_the_examples_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted >= 4 and result.failed == 0
