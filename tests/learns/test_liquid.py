"""The liquid state machine: its wiring, its state, what it learns, and what it says and refuses."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor

from threefold.classical import ridge
from threefold.errors import ThreefoldError
from threefold.estimators import EchoStateNetwork, LiquidStateMachine, reservoir_estimator
from threefold.memory import state as states

# The paper's figures, by sending and receiving neuron: excitatory, inhibitory.
CONNECTIONS = ((0.3, 0.2), (0.4, 0.1))
AMPLITUDES = ((30.0, 60.0), (-19.0, -19.0))
UTILISATION = ((0.5, 0.05), (0.25, 0.32))
RECOVERY = ((1100.0, 125.0), (700.0, 144.0))
FACILITATION = ((50.0, 1200.0), (20.0, 60.0))
SVG = "{http://www.w3.org/2000/svg}"
SMALL: dict[str, Any] = {"grid": (5, 3, 2), "input_kind": "spikes"}


def trains(length: int, size: int = 2, seed: int = 0) -> Tensor:
    """Poisson spike trains of 40 Hz."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(length, size, generator=generator) < 0.04).double()


def senders(machine: LiquidStateMachine) -> Tensor:
    starts = machine.wiring.starts
    return torch.arange(machine.units).repeat_interleave(starts[1:] - starts[:-1])


def test_wiring_is_that_of_the_paper() -> None:
    machine = LiquidStateMachine(grid=(12, 9, 9), time_step=0.5, input_kind="spikes")
    machine.draw(3)
    wiring, kinds = machine.wiring, machine.wiring.inhibitory.long()
    assert int(kinds.sum()) == round(0.2 * 972)
    assert sorted(set(zip(kinds.tolist(), wiring.periods.tolist(), strict=True))) == [
        (0, 6),
        (1, 4),
    ]
    places = np.array([(i, j, k) for i in range(12) for j in range(9) for k in range(9)])
    sender, target = senders(machine), wiring.targets.long()
    assert not bool((sender == target).any())
    squared = ((places[:, None] - places[None]) ** 2).sum(-1)
    numbers = {
        "weights": (wiring.weights, AMPLITUDES, 1.0),
        "utilisation": (wiring.utilisation, UTILISATION, 1.0),
        "recovery": (-0.5 / wiring.recovery.log(), RECOVERY, 0.5),
        "facilitation": (-0.5 / wiring.facilitation.log(), FACILITATION, 0.5),
    }
    for a in (0, 1):
        for b in (0, 1):
            pairs = np.outer(kinds.numpy() == a, kinds.numpy() == b)
            np.fill_diagonal(pairs, False)
            chance = CONNECTIONS[a][b] * np.exp(-squared[pairs] / 4)
            own = (kinds[sender] == a) & (kinds[target] == b)
            distances = squared[sender[own], target[own]]
            for radius in (1, 4, 1000):
                share = chance[squared[pairs] <= radius]
                # Four standard deviations of a sum of independent draws.
                limit = 4 * math.sqrt(float((share * (1 - share)).sum()))
                assert abs((distances <= radius).sum() - share.sum()) < limit
            for name, (found, table, deviation) in numbers.items():
                mean = float(found[own].mean()) / table[a][b]
                # Redrawn and cut values move the means of U, D and F by a few per cent.
                limit = 0.05 + 4 * deviation / math.sqrt(int(own.sum()))
                assert abs(mean - 1) < limit, (name, a, b, mean)
            delay = 3 if (a, b) == (0, 0) else 2  # 1.5 ms and 0.8 ms in steps of 0.5 ms
            assert set(wiring.delays[own].tolist()) == {delay}
    weight_in = machine.tensors["weight_in"]
    assert abs(float((weight_in > 0).double().mean()) - 0.3) < 0.04
    for kind, mean in enumerate((18.0, 9.0)):
        drawn = weight_in[kinds == kind]
        assert abs(float(drawn[drawn > 0].mean()) / mean - 1) < 0.35


@pytest.mark.parametrize("dynamics", [True, False])
def test_states_are_filtered_spikes_and_read_by_ridge(dynamics: bool) -> None:
    u = trains(300)
    y = u.cumsum(0) / 10
    scale = 1.0 if dynamics else 0.2
    machine = LiquidStateMachine(
        wash_out=40, regularisation=1e-2, dynamics=dynamics, weight_scale=scale, **SMALL
    ).fit(u, y)
    spikes, x = machine.spikes(u), torch.zeros(300, 30).double()
    for t in range(300):
        x[t] = spikes[t] + (math.exp(-1 / 30) * x[t - 1] if t else 0.0)
    torch.testing.assert_close(machine.states(u), x)
    assert machine.firing_rate == pytest.approx(float(spikes.mean()) * 1000)
    folds = ridge.FoldStatistics(1, False)
    folds.add(x[40:], y[40:], 0)
    solution = ridge.fit_ridge(folds, [1e-2])
    expected = x @ solution.weight + solution.offset
    torch.testing.assert_close(machine.predict(u), expected)
    # A neuron rests for its refractory period after each spike.
    for neuron, period in enumerate(machine.wiring.periods.tolist()):
        gaps = spikes[:, neuron].nonzero()[:, 0].diff()
        assert not len(gaps) or int(gaps.min()) > period


def test_pieces_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    u = trains(400)
    machine = LiquidStateMachine(**SMALL).fit(u, u.roll(5, 0))
    whole, end = machine.predict(u, return_state=True)
    cut = int(machine.spikes(u)[:300].sum(1).nonzero()[-1]) + 1  # with spikes on their way
    first, state = machine.predict(u[:cut], return_state=True)
    copy = states.clone(state)
    rest, last = machine.predict(u[cut:], state=state, return_state=True)
    assert torch.equal(torch.cat([first, rest]), whole)
    assert list(last) == list(end) and all(torch.equal(last[name], end[name]) for name in end)
    assert all(torch.equal(state[name], copy[name]) for name in copy)
    assert all(leaf.abs().max() > 0 for leaf in state.values())
    monkeypatch.setattr(reservoir_estimator, "PIECE_LENGTH", 7)
    assert torch.equal(machine.states(u), LiquidStateMachine(**SMALL).states(u))
    again = machine.predict([u[:30], u], state=None)
    torch.testing.assert_close(again[1], whole)  # products of more rows may sum in another order


def test_partial_fit_goes_on() -> None:
    u = trains(300)
    y = u.roll(4, 0)
    one = LiquidStateMachine(regularisation=0.1, **SMALL).partial_fit(u, y)
    two = LiquidStateMachine(regularisation=0.1, **SMALL)
    _, state = two.partial_fit(u[:120], y[:120], return_state=True)
    two.partial_fit(u[120:], y[120:], state=state)
    torch.testing.assert_close(two.readout, one.readout, rtol=1e-7, atol=1e-9)
    assert two.state is not None and one.state is not None
    assert all(torch.equal(two.state[name], leaf) for name, leaf in one.state.items())


def test_saved_loaded_and_pickled(tmp_path: Path) -> None:
    u = trains(200).numpy()
    machine = LiquidStateMachine(**SMALL).fit(u, u)
    machine.save(tmp_path / "liquid")
    again = LiquidStateMachine.load(tmp_path / "liquid")
    for other in (again, pickle.loads(pickle.dumps(machine))):
        assert np.array_equal(other.predict(u), machine.predict(u))
        assert np.array_equal(other.spikes(u), machine.spikes(u))
    with pytest.raises(ThreefoldError, match="contains LiquidStateMachine"):
        EchoStateNetwork.load(tmp_path / "liquid")


def templates(count: int, seed: int) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Spike trains of two segments, each one of two templates with a jitter of 1 ms; the label
    says whether the two have different numbers.

    As in the paper, templates are random times in 4 trains (40 Hz), segments 100 ms long.
    """
    times = np.random.default_rng(9).uniform(0, 100, (2, 2, 4, 4))  # segment, template, train
    generator = np.random.default_rng(seed)
    chosen, rows = generator.integers(0, 2, (count, 2)), []
    for pair in chosen:
        row = np.zeros((200, 4))
        for segment, template in enumerate(pair):
            jittered = times[segment, template] + generator.standard_normal((4, 4))
            steps = 100 * segment + np.clip(np.rint(jittered), 0, 99).astype(int)
            np.add.at(row, (steps, np.arange(4)[:, None]), 1.0)
        rows.append(row)
    return rows, chosen[:, 0] ^ chosen[:, 1]


def test_learns_what_no_linear_read_out_of_the_inputs_can() -> None:
    (rows, labels), (others, expected) = templates(200, 1), templates(100, 2)
    grid = [0.01, 0.1, 1.0, 10.0]
    machine = LiquidStateMachine(
        input_kind="spikes", classify=True, label_state="last", regularisation=grid
    ).fit(rows, labels)
    assert machine.score(others, expected) >= 0.85
    # The linear read-out sees every train at every step, not only what is left at the end.
    folds = ridge.FoldStatistics(5, False)
    one_hot = torch.eye(2).double()[torch.from_numpy(labels)]
    for i, row in enumerate(rows):
        folds.add(torch.from_numpy(row).reshape(1, -1), one_hot[i : i + 1], i % 5)
    solution = ridge.fit_ridge(folds, grid)
    flat = torch.from_numpy(np.stack(others)).reshape(len(others), -1)
    answers = (flat @ solution.weight + solution.offset).argmax(1).numpy()
    assert (answers == expected).mean() < 0.65


def test_remembers_analogue_inputs() -> None:
    """The sum of the last 30 ms of a current; the current itself says little about it."""
    u = np.random.default_rng(0).random((3000, 1))
    window = np.convolve(u[:, 0], np.ones(30))[:3000]
    machine = LiquidStateMachine(wash_out=100, regularisation=1.0).fit(u[:2000], window[:2000])
    found = machine.score(u[2000:], window[2000:])
    assert found > 0.5 and np.corrcoef(u[:, 0], window)[0, 1] ** 2 < 0.1


def test_a_raster_is_drawn(tmp_path: Path) -> None:
    u = trains(150)
    machine = LiquidStateMachine(time_step=0.5, **SMALL)
    figure = machine.raster(u, tmp_path / "spikes.svg")
    drawn = ElementTree.fromstring((tmp_path / "spikes.svg").read_text(encoding="utf-8"))
    paths = [path for path in drawn.iter(f"{SVG}path") if "spike" in (path.get("class") or "")]
    spikes = machine.spikes(u)
    assert sum((path.get("d") or "").count("M") for path in paths) == int(spikes.sum()) > 0
    assert {path.get("class") for path in paths} == {"spike s0", "spike s1"}
    assert "30 neurons in 75 ms" in figure.description
    assert len(figure.rows) == 30 and figure.header == ("neuron", "spikes")
    with pytest.raises(ThreefoldError, match=r"ends in \.svg"):
        machine.raster(u, tmp_path / "spikes.png")


class TestBadInput:
    def test_a_silent_liquid_is_reported(self) -> None:
        machine = LiquidStateMachine(input_scale=0.01, **SMALL)
        message = r"silent: no neuron spiked in 50 steps \(0 Hz\).*raise input_scale \(0.01\)"
        with pytest.warns(UserWarning, match=message) as caught:
            machine.fit(trains(50), trains(50))
        assert machine.firing_rate == 0 and caught[0].filename == __file__
        with pytest.warns(UserWarning, match="silent"):
            machine.raster(trains(50))

    def test_a_saturated_liquid_is_reported(self) -> None:
        machine = LiquidStateMachine(background=500.0, **SMALL)
        message = r"saturated: 2\d\d Hz, \d+% of the limit.*lower input_scale \(1\).*background"
        with pytest.warns(UserWarning, match=message):
            machine.partial_fit(trains(50), trains(50))

    def test_settings(self) -> None:
        for settings, message in (
            ({"grid": (3, 3)}, "three whole numbers"),
            ({"grid": 5}, "grid=5, expected three whole numbers"),
            ({"refractory": 3.0}, "two times"),
            ({"inhibitory": 1.5}, "inhibitory=1.5"),
            ({"input_density": -0.1}, "input_density=-0.1"),
            ({"weight_scale": -1.0}, "weight_scale=-1.0"),
            ({"time_step": 0.0}, "time_step=0.0"),
            ({"refractory": (3.0,)}, "two times"),
            ({"reset": 15.0}, "below the threshold of 15.0"),
            ({"input_kind": "spike"}, "did you mean 'spikes'"),
            ({"label_state": "first"}, "unknown label_state 'first'"),
            ({"wash_out": -1}, "wash_out=-1"),
        ):
            with pytest.raises(ThreefoldError, match=message):
                LiquidStateMachine(**settings)  # type: ignore[arg-type]

    def test_inputs_and_states(self) -> None:
        u, machine = trains(60), LiquidStateMachine(**SMALL)
        with pytest.raises(ThreefoldError, match="call fit first"):
            machine.predict(u)
        with pytest.raises(ThreefoldError, match="nothing drives the liquid"):
            machine.fit(None, u)
        with pytest.raises(ThreefoldError, match=r"element 0 is negative.*input_kind"):
            machine.fit(u - 1, u)
        machine.fit(u, u)
        with pytest.raises(ThreefoldError, match="inputs with 1 numbers per element, expected 2"):
            machine.predict(u[:, :1])
        with pytest.raises(ThreefoldError, match="as predict returns it"):
            machine.predict(u, state={"potential": torch.zeros(1, 30).double()})
        with pytest.raises(ThreefoldError, match="as predict returns it"):
            machine.predict(u, state={"potential": 1})  # type: ignore[dict-item]
        with pytest.raises(ThreefoldError, match="no inputs were given"):
            machine.predict(None)  # type: ignore[arg-type]
