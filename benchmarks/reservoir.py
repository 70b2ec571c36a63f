"""x = (1−α) x₋ + α tanh(W_in u + b + W x₋), and a ridge: echo states against reservoirpy's.

1,000 units, 10 % of W not 0, 10,000 elements, float64; both have the same W, W_in, b and
regularisation.  Running gives the states, which are compared, to be three times as fast; fitting is
running and the ridge, to be twice as fast, and nothing is measured unless both predict the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Race, at_least, check
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.memory.reservoir import draw, scaled
from threefold.tasks.mackey_glass import mackey_glass

LEAK, BETA, WASH_OUT = 0.3, 1e-4, 100
EQUAL = 1e-6
PEER = "reservoirpy"


def networks(units: int) -> tuple[EchoStateNetwork, Any]:
    """Ours, and reservoirpy's model of the same numbers (None where it is not installed)."""
    generator = torch.Generator().manual_seed(0)
    weight = scaled(draw(units, units, density=0.1, generator=generator), 0.9)
    weight_in, bias = (draw(units, 1, generator=generator) for _ in range(2))
    ours = EchoStateNetwork(leak=LEAK, direct=False, regularisation=BETA, wash_out=WASH_OUT)
    ours.set_weights(weight, weight_in, 0.1 * bias[:, 0])
    if not peers.installed(PEER):
        return ours, None
    nodes = importlib.import_module("reservoirpy.nodes")
    sparse = importlib.import_module("scipy.sparse")
    reservoir = nodes.Reservoir(
        W=sparse.csr_matrix(weight.numpy()),
        Win=weight_in.numpy(),
        bias=0.1 * bias[:, 0].numpy(),
        lr=LEAK,
    )
    return ours, reservoir >> nodes.Ridge(ridge=BETA)


def pair(units: int, length: int, rounds: int) -> Iterator[Race]:
    series = mackey_glass(length + 1).unsqueeze(1)
    x, y = series[:-1], series[1:]
    ours, theirs = networks(units)
    title = f"echo state network of {units} units, {length} elements"

    def fit() -> list[Tensor]:
        ours.fit(x, y)
        return []

    running: dict[str, Any] = {"threefold": lambda: [ours.states(x)]}
    fitting: dict[str, Any] = {"threefold": fit}
    if theirs is not None:
        reservoir = theirs.nodes[0]
        theirs.initialize(x.numpy(), y.numpy())

        def their_run() -> list[Tensor]:
            reservoir.reset()
            return [torch.from_numpy(reservoir.run(x.numpy()))]

        def their_fit() -> list[Tensor]:
            theirs.reset()
            theirs.fit(x.numpy(), y.numpy(), warmup=WASH_OUT)
            return []

        running[PEER] = their_run
        fitting[PEER] = their_fit
        their_fit()
        theirs.reset()
        # Behind the wash-out: before it are states that no weight was learned from, and rounding
        # of the weights shows.
        made = torch.from_numpy(theirs.run(x.numpy()))[WASH_OUT:]
        answers = {
            "threefold": lambda: [ours.fit(x, y).predict(x)[WASH_OUT:]],
            PEER: lambda: [made],
        }
        check(Race(f"{title}, predictions", answers, tolerance=EQUAL))
    targets = (at_least(3, PEER),), (at_least(2, PEER),)
    yield Race(f"{title}, running", running, rounds, targets[0], tolerance=EQUAL)
    yield Race(f"{title}, fitting", fitting, rounds, targets[1])


def run() -> Iterator[Race]:
    """The size that is promised."""
    yield from pair(1000, 10_000, 5)


def quick() -> Iterator[Race]:
    yield from pair(50, 400, 2)
