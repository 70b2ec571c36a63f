"""v = a v₋ + b I, spikes at a threshold: a liquid state machine and a loop over time in numpy.

The paper's 15 × 3 × 3 grid and one of 1,000 neurons, Poisson spike trains as inputs, delays, with
static and with dynamic synapses, float64. The loop is vectorised over neurons and synapses. Both
run one series, which is serial, in one thread. The spikes must be equal, or nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.measure import Comparison, min_speedup, on_one_thread
from threefold.estimators.liquid_state_machine import LiquidStateMachine

MEMORY = ("default",)
Matrix = NDArray[np.float64]


class NumpyLiquid:
    """The same liquid with dense matrices [from, to], of which a step reads the rows that spike."""

    def __init__(self, machine: LiquidStateMachine) -> None:
        wiring, self.machine = machine.wiring, machine
        starts = wiring.starts.numpy()
        rows, columns = np.repeat(np.arange(machine.units), np.diff(starts)), wiring.targets.numpy()

        def dense(values: Tensor) -> Matrix:
            matrix = np.zeros((machine.units, machine.units))
            matrix[rows, columns] = values.numpy()
            return matrix

        self.weight, self.base = dense(wiring.weights), dense(wiring.utilisation)
        self.recovery, self.facilitation = dense(wiring.recovery), dense(wiring.facilitation)
        delays = dense(wiring.delays)
        self.delays = [(int(d), delays == d) for d in np.unique(wiring.delays.numpy())]
        self.inhibitory = wiring.inhibitory.numpy() > 0
        self.periods = wiring.periods.numpy()

    def efficacies(self, fired: NDArray[np.intp], gaps: Matrix, memory: list[Matrix]) -> Matrix:
        """What the rows that spike send; u and R are updated."""
        if not self.machine.dynamics:
            return self.weight[fired]
        use, resource = memory
        base, u, r, gap = self.base[fired], use[fired], resource[fired], gaps[fired, None]
        new_u = base + u * (1 - base) * self.facilitation[fired] ** gap
        new_r = 1 + (r - u * r - 1) * self.recovery[fired] ** gap
        use[fired], resource[fired] = new_u, new_r
        return self.weight[fired] * new_u * new_r

    def run(self, inputs: Matrix) -> Tensor:
        """The spikes [L, units]."""
        m, units = self.machine, self.machine.units
        times = (m.membrane_time, *m.synapse_times)
        leak, *decays = (math.exp(-m.time_step / time) for time in times)
        drive = inputs @ m.tensors["weight_in"].numpy().T
        slots = max((delay for delay, _ in self.delays), default=1)
        pending, current = np.zeros((slots, 2, units)), np.zeros((2, units))
        decay = np.array(decays)[:, None]
        v, waiting = m.tensors["start"].numpy().copy(), np.zeros(units)
        last = np.full(units, -np.inf)
        memory = [np.zeros((units, units)), np.ones((units, units))]
        spikes = np.zeros(drive.shape)
        for t in range(len(drive)):
            slot = pending[t % slots]
            current = decay * current + slot
            current[0] += drive[t]
            slot[:] = 0
            v = leak * v + (1 - leak) * (current.sum(0) + m.background)
            v[waiting > 0] = m.reset
            hit = v >= m.threshold
            v[hit] = m.reset
            waiting = np.where(hit, self.periods, np.maximum(waiting - 1, 0))
            spikes[t] = hit
            fired = np.flatnonzero(hit)
            if len(fired):
                sent = self.efficacies(fired, t - last, memory)
                last[fired] = t
                self.send(fired, sent, pending, t)
        return torch.from_numpy(spikes)

    def send(self, fired: NDArray[np.intp], sent: Matrix, pending: Matrix, now: int) -> None:
        kinds = self.inhibitory[fired]
        for delay, mask in self.delays:
            part = sent * mask[fired]
            line = pending[(now + delay) % len(pending)]
            line[0] += part[~kinds].sum(0)
            line[1] += part[kinds].sum(0)


def comparison(grid: tuple[int, int, int], length: int, rounds: int, **options: Any) -> Comparison:
    machine = LiquidStateMachine(grid=grid, input_kind="spikes", **options)
    trains = (np.random.default_rng(0).random((length, 4)) < 0.02).astype(np.float64)
    machine.draw(4)
    plain = NumpyLiquid(machine)
    rate = 1000 * float(machine.spikes(trains).mean())
    kind = "dynamic" if machine.dynamics else "static"
    title = f"liquid of {machine.units} neurons, {kind} synapses, {length} steps, {rate:.0f} Hz"
    return Comparison(
        title,
        {
            "threefold": on_one_thread(lambda: [torch.from_numpy(machine.spikes(trains))]),
            "numpy": on_one_thread(lambda: [plain.run(trains)]),
        },
        rounds,
        (min_speedup(10, "numpy"),),
    )


def run() -> Iterator[Comparison]:
    """Both sizes, static and dynamic."""
    for grid in ((15, 3, 3), (10, 10, 10)):
        yield comparison(grid, 2000, 5)
        yield comparison(grid, 2000, 5, dynamics=False, weight_scale=0.2)


def quick() -> Iterator[Comparison]:
    yield comparison((4, 3, 3), 100, 2)
