"""Spiking neurons: three written out by hand, and native = plain to the last bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels.spiking_reservoir import (
    SpikingConstants,
    SpikingWiring,
    plain_spiking_reservoir,
    state_shapes,
)

CONSTANTS = SpikingConstants(0.96, 0.04, 13.5, 15.0, 13.5, 0.7, 0.85, 0.9)


def make(
    batch: int, length: int, units: int, dtype: torch.dtype, dynamic: bool, slots: int = 3
) -> dict[str, Any]:
    """Neurons near their threshold, with random synapses of 1 … 3 steps, some neurons with none."""
    present = torch.rand(units, units) < 0.4
    present[0] = False
    sender, targets = present.nonzero(as_tuple=True)
    inhibitory = (torch.arange(units) % 4 == 1).to(dtype)
    count = len(sender)
    sign = 1 - 2 * inhibitory[sender]
    wiring = SpikingWiring(
        sign * 20 * torch.rand(count, dtype=dtype),
        targets.int(),
        torch.randint(1, slots + 1, (count,)).int(),
        torch.cat([torch.zeros(1), present.sum(1).cumsum(0)]).long(),
        *(0.1 + 0.8 * torch.rand(count, dtype=dtype) for _ in range(3)),
        inhibitory,
        2 + inhibitory,
    )
    shapes = state_shapes(units, slots, count if dynamic else 0)
    state = {name: torch.zeros(batch, *shape, dtype=dtype) for name, shape in shapes.items()}
    state["potential"] += 13.5 + 1.5 * torch.rand(batch, units, dtype=dtype)
    return {
        "drive": 2 + 8 * torch.randn(batch, length, units, dtype=dtype),
        "wiring": wiring,
        "state": state,
        "constants": CONSTANTS,
    }


def assert_equal(found: Any, expected: Any) -> None:
    """The same bits in outputs and states."""
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert torch.equal(one, other)
    assert list(found[2]) == list(expected[2])
    for name, leaf in expected[2].items():
        assert torch.equal(found[2][name], leaf), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("synaptic", "dynamic"), [(False, True), (True, False), (True, True)])
def test_native_is_plain(variant: str, dtype: torch.dtype, synaptic: bool, dynamic: bool) -> None:
    for batch, length, units in ((1, 1, 1), (3, 40, 21)):
        given = make(batch, length, units, dtype, dynamic)
        fast = ops.spiking_reservoir(**given, synaptic=synaptic, dynamic=dynamic)
        plain = plain_spiking_reservoir(**given, synaptic=synaptic, dynamic=dynamic)
        assert_equal(fast, plain)
    assert 0.05 < float(fast[1].mean()) < 0.4
    assert fast[2]["pending"].abs().max() > 0 and fast[2]["refractory"].max() > 0


def test_pieces_and_threads_change_no_bit(variant: str) -> None:
    given = make(2, 60, 300, torch.float64, True)
    drive, state, parts = given.pop("drive"), given.pop("state"), []
    before = {name: leaf.clone() for name, leaf in state.items()}
    torch.set_num_threads(1)
    whole = ops.spiking_reservoir(drive, state=state, **given, dynamic=True)
    torch.set_num_threads(2)
    here = state
    for piece in drive.split([1, 2, 30, 27], 1):
        *made, here = ops.spiking_reservoir(piece, state=here, **given, dynamic=True)
        parts.append(made)
    outputs = [torch.cat(part, 1) for part in zip(*parts, strict=True)]
    assert_equal([*outputs, here], whole)
    assert all(torch.equal(leaf, before[name]) for name, leaf in state.items())


def three_neurons(length: int) -> dict[str, Any]:
    """0 excites 1 (2 steps) and 2 (1 step), 1 excites 0 (3 steps), 2 inhibits 0 (1 step)."""
    numbers = {
        "weights": [40.0, 60.0, 30.0, -25.0],
        "utilisation": [0.5, 0.1, 0.6, 0.3],
        "recovery": [math.exp(-1 / 30), math.exp(-1 / 100), 0.5, 0.9],
        "facilitation": [0.8, math.exp(-1 / 200), 0.7, 0.6],
        "inhibitory": [0.0, 0.0, 1.0],
        "periods": [3.0, 3.0, 2.0],
    }
    reals = {name: torch.tensor(values).double() for name, values in numbers.items()}
    wiring = SpikingWiring(
        targets=torch.tensor([1, 2, 0, 0]).int(),
        delays=torch.tensor([2, 1, 3, 1]).int(),
        starts=torch.tensor([0, 2, 3, 4]),
        **reals,
    )
    state = {name: torch.zeros(1, *s).double() for name, s in state_shapes(3, 3, 4).items()}
    state["potential"] = torch.tensor([[14.0, 13.6, 14.9]]).double()
    drive = torch.zeros(1, length, 3).double()
    drive[0, :, 0] = 4.0
    drive[0, 5:9, 2] = 6.0
    return {"drive": drive, "wiring": wiring, "state": state, "constants": CONSTANTS}


def by_hand(drive: list[list[float]]) -> tuple[list[list[int]], list[list[float]]]:
    """Spikes and traces of the three neurons, every arrival kept with its own time."""
    c = CONSTANTS
    v, ready_at, spikes, traces = [14.0, 13.6, 14.9], [0, 0, 0], [], []
    arrivals: list[tuple[int, int, float, float]] = []  # time, target, amplitude, decay per step
    last: dict[int, int] = {}
    # sender: (target, delay, weight, U, D factor, F factor, [u, R])
    leak = [math.exp(-1 / 30), math.exp(-1 / 100), math.exp(-1 / 200)]
    synapses: dict[int, list[tuple[int, int, float, float, float, float, list[float]]]] = {
        0: [(1, 2, 40.0, 0.5, leak[0], 0.8, [0, 0]), (2, 1, 60.0, 0.1, leak[1], leak[2], [0, 0])],
        1: [(0, 3, 30.0, 0.6, 0.5, 0.7, [0, 0])],
        2: [(0, 1, -25.0, 0.3, 0.9, 0.6, [0, 0])],
    }
    for t, element in enumerate(drive):
        fired = []
        for n in range(3):
            current = element[n] + c.background
            current += sum(a * q ** (t - s) for s, to, a, q in arrivals if to == n and s <= t)
            v[n] = c.leak * v[n] + c.gain * current if t >= ready_at[n] else c.reset
            fired.append(int(v[n] >= c.threshold))
            if fired[n]:
                v[n], ready_at[n] = c.reset, t + 1 + (2 if n == 2 else 3)
        for n in range(3):
            for to, delay, weight, U, d, f, memory in synapses[n] if fired[n] else []:
                u, r = U, 1.0
                if n in last:
                    gap = t - last[n]
                    u = U + memory[0] * (1 - U) * f**gap
                    r = 1 + (memory[1] - memory[0] * memory[1] - 1) * d**gap
                memory[:] = [u, r]
                q = c.inhibitory_decay if n == 2 else c.excitatory_decay
                arrivals.append((t + delay, to, weight * u * r, q))
            if fired[n]:
                last[n] = t
        spikes.append(fired)
        old = traces[-1] if traces else [0.0] * 3
        traces.append([c.trace_decay * b + s for b, s in zip(old, fired, strict=True)])
    return spikes, traces


def test_three_neurons_by_hand() -> None:
    given = three_neurons(120)
    traces, spikes, _ = ops.spiking_reservoir(**given, dynamic=True)
    expected = by_hand(given["drive"][0].tolist())
    assert spikes[0].int().tolist() == expected[0]
    torch.testing.assert_close(traces[0], torch.tensor(expected[1]).double())
    assert min(spikes[0].sum(0)) >= 3, "each neuron must spike several times"


def test_a_spiking_drive_is_a_current_that_decays() -> None:
    """An input spike of 9 nA into the synapse is 9, 6.3, 4.41 … nA at the membrane."""
    given = make(1, 30, 5, torch.float64, False)
    pulses = torch.zeros(1, 30, 5).double()
    pulses[0, [2, 3, 20]] = 9.0
    filtered = torch.zeros_like(pulses)
    for t in range(30):
        filtered[0, t] = pulses[0, t] + (0.7 * filtered[0, t - 1] if t else 0.0)
    one = ops.spiking_reservoir(**{**given, "drive": pulses}, synaptic=True)
    other = ops.spiking_reservoir(**{**given, "drive": filtered})
    assert torch.equal(one[1], other[1]) and one[1].sum() > 3
    torch.testing.assert_close(one[2]["potential"], other[2]["potential"])


def test_what_does_not_fit_is_refused(variant: str) -> None:
    given = make(2, 5, 7, torch.float64, True)
    wiring: SpikingWiring = given["wiring"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"drive": torch.zeros(2, 5, 6).double()}, r"starts \[7\]"),
        ({"drive": given["drive"].float()}, "float32"),
        ({"wiring": wiring._replace(delays=wiring.delays + 3)}, "delays of 1 … 3 steps"),
        ({"wiring": wiring._replace(targets=wiring.targets.long())}, "int32 targets"),
        ({"state": {**given["state"], "use": torch.zeros(2, 1).double()}}, r"expected use \[2, "),
    ]
    for change, message in wrong:
        with pytest.raises(ThreefoldError, match=message):
            ops.spiking_reservoir(**{**given, **change}, dynamic=True)
    beyond = wiring._replace(targets=wiring.targets + 7)
    with pytest.raises(ThreefoldError, match="beyond what the kernel supports"):
        ops.spiking_reservoir(**{**given, "wiring": beyond}, dynamic=True)


def test_the_plain_version_runs_where_there_is_no_kernel() -> None:
    given = make(1, 6, 9, torch.float64, True)
    with library.using("reference"):
        assert ops.available()["spiking_reservoir"] == "reference"
        plain = ops.spiking_reservoir(**given, dynamic=True)
    assert_equal(ops.spiking_reservoir(**given, dynamic=True), plain)
