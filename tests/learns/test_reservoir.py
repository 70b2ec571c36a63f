"""The echo state network: its equations written out, what it learns, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import threefold
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.estimators import reservoir_estimator
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.memory import state as states
from threefold.memory.spectrum import random_matrix, scale_to_radius, spectral_radius


def noise(length: int, size: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(length, size, generator=generator, dtype=torch.float64) - 0.5


def dense(network: EchoStateNetwork) -> Tensor:
    weight = network.weight
    matrix = torch.zeros(network.units, network.units, dtype=torch.float64)
    matrix[weight.rows, weight.columns.long()] = weight.values
    return matrix


def written_out(network: EchoStateNetwork, u: Tensor, teacher: Tensor) -> Tensor:
    """All states, by the equation, outputs fed back as the teacher has them."""
    parts = network.tensors
    x, made, before = torch.zeros(network.units).double(), [], torch.zeros_like(teacher[0])
    for element, known in zip(u, teacher, strict=True):
        inner = parts["weight_in"] @ element + parts["bias"] + dense(network) @ x
        inner = inner + (parts["feedback"] @ before if network.feedback_scale else 0.0)
        x = (1 - network.leak) * x + network.leak * torch.tanh(inner)
        made.append(x)
        before = known
    return torch.stack(made)


def ridge(x: Tensor, y: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    centred, wanted = x - x.mean(0), y - y.mean(0)
    squares = centred.T @ centred + beta * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(squares, centred.T @ wanted)
    return weight, y.mean(0) - x.mean(0) @ weight


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"leak": 0.3, "bias_scale": 0.5, "direct": False, "precise": True},
    {"feedback_scale": 0.4, "squares": True, "distribution": "normal", "input_density": 0.5},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_states_ridge_and_predictions_as_written(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reservoir_estimator, "PIECE_LENGTH", 37)
    u, y = noise(200, 2), noise(200, 2).roll(3, 0)
    network = EchoStateNetwork(units=30, wash_out=50, regularisation=1e-3, **options).fit(u, y)
    x = written_out(network, u, y)
    parts = [u] if network.direct else []
    features = torch.cat([*parts, x, *([x.square()] if network.squares else [])], 1)
    weight, offset = ridge(features[50:], y[50:], 1e-3)
    assert_close(network.readout, weight)
    assert_close(network.offset, offset)
    assert_close(network.predict(u, teacher=y), features @ weight + offset)


def test_several_series_and_numpy() -> None:
    lengths = (120, 80, 300)
    inputs = [noise(length, seed=length).float().numpy() for length in lengths]
    targets = [np.roll(each[:, 0], 2) for each in inputs]
    network = EchoStateNetwork(units=20, wash_out=30).fit(inputs, targets)
    x = torch.cat([written_out(network, *_doubles(u, y))[30:] for u, y in zip(inputs, targets)])  # noqa: B905
    u = torch.cat([torch.from_numpy(each[30:]).double() for each in inputs])
    y = torch.cat([torch.from_numpy(each[30:]).double() for each in targets]).unsqueeze(1)
    assert_close(network.readout, ridge(torch.cat([u, x], 1), y, 1e-6)[0])
    made = network.predict(inputs)
    assert [type(each) for each in made] == [np.ndarray] * 3
    assert [each.shape for each in made] == [(length, 1) for length in lengths]
    alone = network.predict(inputs[1])
    assert np.array_equal(alone, made[1])
    assert network.score(inputs, targets) > 0.9


def _doubles(*given: Any) -> list[Tensor]:
    return [torch.as_tensor(each).double().reshape(len(each), -1) for each in given]


@pytest.mark.parametrize("feedback", [0.0, 0.3])
def test_a_state_goes_on(feedback: float) -> None:
    u = noise(300)
    network = EchoStateNetwork(units=25, feedback_scale=feedback, regularisation=1e-2)
    network.fit(u, u.roll(2, 0))
    whole, end = network.predict(u, return_state=True)
    first, state = network.predict(u[:101], return_state=True)
    copy = states.clone(state)
    rest, last = network.predict(u[101:], state=state, return_state=True)
    assert_close(torch.cat([first, rest]), whole)
    assert_close(last["memory"], end["memory"])
    assert all(torch.equal(state[name], copy[name]) for name in copy)


def test_feedback_is_the_teacher_while_fitting_and_itself_afterwards() -> None:
    y = torch.sin(0.3 * torch.arange(800, dtype=torch.float64)).unsqueeze(1)
    options: dict[str, Any] = {"units": 60, "feedback_scale": 1.0, "bias_scale": 0.2, "noise": 1e-6}
    network = EchoStateNetwork(regularisation=1e-10, **options).fit(None, y[:600])
    assert_close(network.state["output"], y[599:600])  # type: ignore[index]
    ahead = network.generate(200)
    assert (ahead - y[600:]).abs().max() < 1e-2
    _, state = network.predict(None, teacher=y[:650], return_state=True)
    assert (network.generate(100, state=state) - y[650:750]).abs().max() < 1e-2
    # Two states run free together as each alone.
    both = states.join([network.state, state])  # type: ignore[list-item]
    assert_close(network.generate(50, state=both)[0], ahead[:50])
    assert network.score(None, y) > 0.999


def test_an_output_may_be_the_next_input() -> None:
    wave = np.sin(0.2 * np.arange(1000))
    network = EchoStateNetwork(units=50, seed=1).fit(wave[:-1], wave[1:])
    ahead = network.generate(20)
    assert isinstance(ahead, np.ndarray)
    given, state = wave[-1:], network.predict(wave[:-1], return_state=True)[1]
    for made in ahead:
        again, state = network.predict(given, state=state, return_state=True)
        assert np.allclose(again[0], made, atol=1e-10)
        given = again[0]


@pytest.mark.parametrize("precise", [False, True])
def test_regularisation_is_chosen_on_held_out_folds(precise: bool) -> None:
    u = noise(400)
    y = u.roll(1, 0) + 0.3 * noise(400, seed=5)
    grid = [1e-8, 1e-4, 1e-2, 1.0, 100.0]
    network = EchoStateNetwork(
        units=60, wash_out=40, regularisation=grid, folds=4, precise=precise
    ).fit(u, y)
    features = torch.cat([u, network.states(u)], 1)[40:]
    wanted, expected = y[40:], {}
    for beta in grid:
        squared = 0.0
        for held in range(4):
            inside = torch.arange(360) * 4 // 360 == held
            weight, offset = ridge(features[~inside], wanted[~inside], beta)
            squared += float((features[inside] @ weight + offset - wanted[inside]).square().sum())
        expected[beta] = squared / 360
    assert network.held_out_errors == pytest.approx(expected, rel=1e-6)
    assert network.best_regularisation == min(expected, key=lambda beta: expected[beta])
    assert network.best_regularisation not in (grid[0], grid[-1])
    assert_close(network.readout, ridge(features, wanted, network.best_regularisation)[0])


@pytest.mark.parametrize("forgetting", [1.0, 0.99])
def test_recursive_least_squares(forgetting: float) -> None:
    u = noise(200)
    y = u.roll(2, 0)
    options: dict[str, Any] = {"units": 15, "wash_out": 20, "regularisation": 1e-2}
    network = EchoStateNetwork(forgetting=forgetting, **options)
    _, state = network.partial_fit(u[:90], y[:90], return_state=True)
    network.partial_fit(u[90:], y[90:], state=state)
    x = torch.cat([u, network.states(u), torch.ones(200, 1).double()], 1)[20:]
    # One element at a time, as in the books.
    weights, covariance = torch.zeros(17, 1).double(), 100 * torch.eye(17).double()
    for row, wanted in zip(x, y[20:], strict=True):
        gain = covariance @ row / (forgetting + row @ covariance @ row)
        weights = weights + torch.outer(gain, wanted - row @ weights)
        covariance = (covariance - torch.outer(gain, row @ covariance)) / forgetting
    torch.testing.assert_close(network.readout, weights[:-1], rtol=1e-7, atol=1e-9)
    if forgetting == 1.0:
        squares = x.T @ x + 1e-2 * torch.eye(17).double()
        solved = torch.linalg.solve(squares, x.T @ y[20:])
        torch.testing.assert_close(network.readout, solved[:-1], rtol=1e-7, atol=1e-9)
        for precise in (False, True):  # after fit it goes on from what fit has seen
            other = EchoStateNetwork(precise=precise, **options).fit(u[:90], y[:90])
            other.partial_fit(u[90:], y[90:], state=other.state)
            torch.testing.assert_close(other.readout, solved[:-1], rtol=1e-7, atol=1e-9)


def test_precise_solves_what_squares_cannot() -> None:
    u = torch.sin(0.1 * torch.arange(600, dtype=torch.float64)).unsqueeze(1)
    options: dict[str, Any] = {"units": 60, "regularisation": 1e-18, "direct": False}
    with pytest.raises(ThreefoldError, match="precise=True"):
        EchoStateNetwork(**options).fit(u[:-1], u[1:])
    network = EchoStateNetwork(precise=True, **options).fit(u[:-1], u[1:])
    assert (network.predict(u[:-1]) - u[1:])[100:].abs().max() < 1e-7


def test_labels_by_the_mean_state() -> None:
    generator = np.random.default_rng(0)
    time, rows, labels = np.arange(60), [], []
    for i in range(60):
        name = ("slow", "fast", "square")[i % 3]
        wave = np.sin((0.2 if name == "slow" else 0.45) * time[: 40 + i % 20] + i)
        wave = np.sign(wave) if name == "square" else wave
        rows.append(wave + 0.1 * generator.standard_normal(len(wave)))
        labels.append(name)
    options: dict[str, Any] = {"bias_scale": 0.5, "squares": True, "input_scale": 0.5}
    network = EchoStateNetwork(
        units=80, classify=True, wash_out=10, regularisation=[1e-4, 1e-2, 1], **options
    )
    network.fit(rows[:40], labels[:40])
    assert network.classes == ["fast", "slow", "square"]
    assert network.score(rows[40:], labels[40:]) >= 0.9
    assert list(network.predict(rows[:3])) == labels[:3]


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made inside it has."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // 8)
        return made


def test_memory_does_not_grow_with_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservoir_estimator, "PIECE_LENGTH", 100)
    found = []
    for length in (1000, 4000):
        u = noise(length)
        with Largest() as largest:
            EchoStateNetwork(units=60, regularisation=[1e-6, 1e-2]).fit(u.numpy(), u.numpy())
        found.append(largest.numbers)
    assert found[0] == found[1] < 1000 * 60


def test_saved_and_loaded(tmp_path: Path) -> None:
    u = noise(200)
    network = EchoStateNetwork(units=20, feedback_scale=0.2, noise=1e-4, regularisation=[1e-6, 1])
    network.fit(u, u)
    network.save(tmp_path / "echo")
    network.save(tmp_path / "echo")  # an older one is replaced
    again = EchoStateNetwork.load(tmp_path / "echo")
    assert again == again and again.settings == network.settings
    assert torch.equal(again.predict(u), network.predict(u))
    assert torch.equal(again.generate(9, inputs=u[:9]), network.generate(9, inputs=u[:9]))
    with pytest.raises(ThreefoldError, match=r"threefold\.estimators\.EchoStateNetwork\.load"):
        threefold.load(tmp_path / "echo")
    with pytest.raises(ThreefoldError, match="samples are not saved"):
        again.partial_fit(u, u)
    online = EchoStateNetwork(units=10).partial_fit(u[:150], u[:150])
    online.save(tmp_path / "online")
    again = EchoStateNetwork.load(tmp_path / "online")
    for one in (online, again):
        one.partial_fit(u[150:], u[150:], state=one.state)
    assert torch.equal(online.readout, again.readout)
    (tmp_path / "online" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ThreefoldError, match="safetensors"):
        EchoStateNetwork.load(tmp_path / "online")


def test_own_matrices_stay() -> None:
    u = noise(150, 2)
    weight = scale_to_radius(random_matrix(12, 12, density=0.3), 0.8)
    weight_in = random_matrix(12, 2)
    network = EchoStateNetwork(wash_out=10).set_weights(weight.numpy(), weight_in)
    network.fit(u, u)
    assert torch.equal(dense(network), weight) and network.units == 12
    with pytest.raises(ThreefoldError, match=r"weight_in is \(11, 2\), expected \(12, 2\)"):
        network.set_weights(weight, weight_in[1:])


@pytest.mark.parametrize("distribution", ["uniform", "normal", "signs"])
def test_spectral_radius_is_numpys(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    for density in (0.1, 1.0):
        matrix = random_matrix(
            90, 90, density=density, distribution=distribution, generator=generator
        )
        expected = np.abs(np.linalg.eigvals(matrix.numpy())).max()
        with monkeypatch.context() as patch:
            assert spectral_radius(matrix) == pytest.approx(expected, rel=1e-10)
            patch.setattr("threefold.memory.spectrum.MAX_DENSE", 10)
            assert spectral_radius(matrix) == pytest.approx(expected, rel=1e-7)
        after = np.abs(np.linalg.eigvals(scale_to_radius(matrix, 1.25).numpy())).max()
        assert after == pytest.approx(1.25, rel=1e-10)
    network = EchoStateNetwork(units=70, spectral_radius=1.1, distribution=distribution)
    network.draw(1, 1)
    assert np.abs(np.linalg.eigvals(dense(network).numpy())).max() == pytest.approx(1.1, rel=1e-9)


def test_without_connections_there_is_no_memory() -> None:
    u = noise(50)
    network = EchoStateNetwork(units=9, spectral_radius=0.0, bias_scale=0.3)
    states = network.states(u)
    inner = u @ network.tensors["weight_in"].T + network.tensors["bias"]
    assert len(network.weight.values) == 0
    assert_close(states, torch.tanh(inner))


class TestBadInput:
    def test_spectral_radius_of_nothing(self) -> None:
        assert spectral_radius(torch.zeros(4, 4)) == 0.0
        for nothing in (torch.zeros(4, 4), torch.ones(4, 4).triu(1)):
            with pytest.raises(ThreefoldError, match="spectral radius 0 and cannot be scaled"):
                scale_to_radius(nothing, 0.9)
        with pytest.raises(ThreefoldError, match="square"):
            spectral_radius(torch.ones(2, 3))
        with pytest.raises(ThreefoldError, match="finite"):
            spectral_radius(torch.full((2, 2), torch.nan))

    def test_fewer_samples_than_units(self) -> None:
        u = noise(30)
        with pytest.raises(ThreefoldError, match="30 samples for 51 features have no unique"):
            EchoStateNetwork(units=50, wash_out=0, regularisation=0.0).fit(u, u)
        network = EchoStateNetwork(units=50, wash_out=0, regularisation=1e-3).fit(u, u)
        features = torch.cat([u, network.states(u)], 1)
        assert_close(network.readout, ridge(features, u, 1e-3)[0])
        with pytest.raises(ThreefoldError, match="no element is left after the wash-out"):
            EchoStateNetwork(units=5, wash_out=30).fit(u, u)
        with pytest.raises(ThreefoldError, match="cannot be split into 5 folds"):
            EchoStateNetwork(units=5, wash_out=27, regularisation=[0.1, 1]).fit(u, u)

    def test_lengths_that_differ(self) -> None:
        u, network = noise(30), EchoStateNetwork(units=5, wash_out=0)
        with pytest.raises(ThreefoldError, match="inputs of lengths 30 and targets of lengths 29"):
            network.fit(u, u[1:])
        with pytest.raises(ThreefoldError, match=r"lengths 30, 20 and targets of lengths 20, 30"):
            network.fit([u, u[:20]], [u[:20], u])
        with pytest.raises(ThreefoldError, match=r"series with \[1, 2\] numbers"):
            network.fit([u, noise(5, 2)], [u, u[:5]])
        network.fit(u, u)
        with pytest.raises(ThreefoldError, match="inputs with 2 numbers per element, expected 1"):
            network.predict(noise(5, 2))
        with pytest.raises(ThreefoldError, match="teacher differ in length"):
            network.predict(u, teacher=u[1:])

    def test_numbers_that_are_not(self) -> None:
        u, bad = noise(2000), noise(2000)
        bad[1500] = torch.nan
        network = EchoStateNetwork(units=5)
        with pytest.raises(ThreefoldError, match="inputs: element 1500 is not finite"):
            network.fit(bad, u)
        with pytest.raises(ThreefoldError, match="targets, series 1: element 1500 is not finite"):
            network.fit([u, u], [u, bad])
        network.fit(u, u)
        with pytest.raises(ThreefoldError, match="element 1500"):
            network.predict(bad)

    def test_settings(self) -> None:
        for settings, message in (
            ({"units": 0}, "units=0"),
            ({"leak": 0.0}, "leak=0.0"),
            ({"regularisation": -1.0}, "regularisation=-1.0"),
            ({"regularisation": []}, "regularisation"),
            ({"folds": 1}, "folds=1"),
            ({"forgetting": 1.5}, "forgetting=1.5"),
            ({"noise": -1.0}, "noise=-1.0"),
            ({"activation": "tahn"}, "did you mean 'tanh'"),
            ({"classify": True, "feedback_scale": 1.0}, "labels cannot be fed back"),
        ):
            with pytest.raises(ThreefoldError, match=message):
                EchoStateNetwork(**settings)  # type: ignore[arg-type]

    def test_order_of_calls(self) -> None:
        u, network = noise(200), EchoStateNetwork(units=5)
        for call in (network.predict, lambda x: network.generate(3), lambda x: network.save("no")):
            with pytest.raises(ThreefoldError, match=r"call fit first|no state"):
                call(u)
        with pytest.raises(ThreefoldError, match="nothing drives the reservoir"):
            network.fit(None, u)
        network.fit(u, torch.cat([u, u], 1))
        with pytest.raises(ThreefoldError, match="2 outputs cannot be the 1 inputs"):
            network.generate(3)
        with pytest.raises(ThreefoldError, match="as predict returns it"):
            network.predict(u, state={"memory": torch.zeros(1, 5).double()})
        with pytest.raises(ThreefoldError, match="classify=True"):
            network.fit([u, u], [0, 1])
        with pytest.raises(ThreefoldError, match="expected several"):
            EchoStateNetwork(classify=True).fit(u, [0])
