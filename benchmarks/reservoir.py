"""x = (1−α) x₋ + α tanh(W_in u + b + W x₋): echo state networks of threefold and reservoirpy.

1,000 units, 10 % of W nonzero, 10,000 elements, float64; both have the same W, W_in, b and
regularisation. Running (computing the states) should be three times as fast, and fitting (running
and ridge regression) twice as fast. Nothing is measured unless states and predictions agree.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Comparison, Contender, check, min_speedup
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.memory.spectrum import random_matrix, scale_to_radius
from threefold.tasks.mackey_glass import mackey_glass

LEAK, BETA, WASH_OUT = 0.3, 1e-4, 100
TOLERANCE = 1e-6
MEMORY = ("default",)
PEER = "reservoirpy"


def networks(units: int) -> tuple[EchoStateNetwork, Any]:
    """Our network, and reservoirpy's with the same weights (None if it is not installed)."""
    generator = torch.Generator().manual_seed(0)
    weight = scale_to_radius(random_matrix(units, units, density=0.1, generator=generator), 0.9)
    weight_in, bias = (random_matrix(units, 1, generator=generator) for _ in range(2))
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


def peer_contenders(theirs: Any, x: Tensor, y: Tensor) -> tuple[Contender, Contender]:
    """Running and fitting with reservoirpy."""
    reservoir = theirs.nodes[0]
    theirs.initialize(x.numpy(), y.numpy())

    def run() -> list[Tensor]:
        reservoir.reset()
        return [torch.from_numpy(reservoir.run(x.numpy()))]

    def fit() -> list[Tensor]:
        theirs.reset()
        theirs.fit(x.numpy(), y.numpy(), warmup=WASH_OUT)
        return []

    return run, fit


def check_predictions(
    title: str, ours: EchoStateNetwork, theirs: Any, x: Tensor, y: Tensor
) -> None:
    """Raise unless both networks, fitted, predict the same."""
    theirs.reset()
    # Only after the wash-out: nothing was learned from the states before it, and there rounding
    # errors of the weights show.
    predictions = torch.from_numpy(theirs.run(x.numpy()))[WASH_OUT:]
    contenders: dict[str, Contender] = {
        "threefold": lambda: [ours.fit(x, y).predict(x)[WASH_OUT:]],
        PEER: lambda: [predictions],
    }
    check(Comparison(f"{title}, predictions", contenders, tolerance=TOLERANCE))


def comparisons(units: int, length: int, rounds: int) -> Iterator[Comparison]:
    series = mackey_glass(length + 1).unsqueeze(1)
    x, y = series[:-1], series[1:]
    ours, theirs = networks(units)
    title = f"echo state network of {units} units, {length} elements"

    def fit() -> list[Tensor]:
        ours.fit(x, y)
        return []

    running: dict[str, Contender] = {"threefold": lambda: [ours.states(x)]}
    fitting: dict[str, Contender] = {"threefold": fit}
    if theirs is not None:
        running[PEER], fitting[PEER] = peer_contenders(theirs, x, y)
        fitting[PEER]()
        check_predictions(title, ours, theirs, x, y)
    targets = (min_speedup(3, PEER),), (min_speedup(2, PEER),)
    yield Comparison(f"{title}, running", running, rounds, targets[0], tolerance=TOLERANCE)
    yield Comparison(f"{title}, fitting", fitting, rounds, targets[1])


def run() -> Iterator[Comparison]:
    """The size that the targets are set for."""
    yield from comparisons(1000, 10_000, 5)


def quick() -> Iterator[Comparison]:
    yield from comparisons(50, 400, 2)
