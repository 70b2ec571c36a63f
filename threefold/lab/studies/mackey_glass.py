"""Mackey–Glass, τ = 17, by echo state networks: `threefold lab mackey-glass`.

As in Jaeger (2001) and Jaeger & Haas (2004): 400 units, driven only by a bias and their own output;
the series is squashed by tanh(x − 1); 3,000 training elements, the first 1,000 of them as wash-out.
Errors are those of x itself, over 50 starting points after the training part: 84 time units ahead,
divided by the standard deviation of the series (published: 0.00028), and one unit ahead
(reservoirpy's documented example with 100 units, 500 elements: RMSE 0.0020; the same sizes are run
here, too).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from threefold.drawing.figures import plain_figure
from threefold.estimators.echo_state_network import EchoStateNetwork
from threefold.memory.state import join
from threefold.tasks.mackey_glass import PREDICTION_HORIZON, mackey_glass, normalised_error

PUBLISHED, WANTED = 0.00028, 1e-3
DOCUMENTED = 0.0020  # by reservoirpy, one unit ahead


@dataclass(frozen=True)
class MackeyGlassStudy:
    """The amount of training data, and the starting points of free runs."""

    units: int = 400
    train: int = 3000
    wash_out: int = 1000
    starts: int = 50
    apart: int = 60
    squares: bool = False


@dataclass(frozen=True)
class MackeyGlassResult:
    """Errors of one seed."""

    ahead: tuple[float, ...]  # normalised, 1 … 84 units ahead
    one_step: float  # root mean square, with the true outputs up to the previous element
    small: float  # the same for a network as in reservoirpy's example


@cache
def series(length: int) -> Tensor:
    return mackey_glass(length)


def squash(x: Tensor) -> Tensor:
    return torch.tanh(x - 1)


def stretch(y: Tensor) -> Tensor:
    """The inverse of `squash`; outputs outside the range of tanh are clipped."""
    return 1 + torch.atanh(y.clamp(-0.999999, 0.999999))


def study(seed: int, plan: MackeyGlassStudy) -> MackeyGlassResult:
    """Draw a random network, fit it, and run it freely from many points after its training part."""
    need = plan.train + plan.starts * plan.apart + PREDICTION_HORIZON
    begin = 500 * seed
    x = series(begin + need)[begin:].unsqueeze(1)
    y = squash(x)
    network = EchoStateNetwork(
        units=plan.units,
        spectral_radius=0.88,
        density=0.01,
        leak=0.4,
        bias_scale=0.2,
        feedback_scale=1.0,
        noise=1e-8,
        squares=plan.squares,
        regularisation=1e-14,
        precise=True,
        wash_out=plan.wash_out,
        seed=seed,
    ).fit(None, y[: plan.train])
    state, states, one_step = network.state, [], []
    for start in range(plan.train, need - PREDICTION_HORIZON, plan.apart):
        known = slice(start, start + plan.apart)
        predicted, state = network.predict(None, teacher=y[known], state=state, return_state=True)
        one_step.append(stretch(predicted) - x[known])
        states.append(state)
    free = stretch(network.generate(PREDICTION_HORIZON, state=join(states)))
    after = range(plan.train + plan.apart, need - PREDICTION_HORIZON + 1, plan.apart)
    targets = torch.stack([x[start : start + PREDICTION_HORIZON] for start in after])
    variance = float(x.var())
    ahead = (
        normalised_error(free[:, i], targets[:, i], variance) for i in range(PREDICTION_HORIZON)
    )
    error = torch.cat(one_step).square().mean().sqrt()
    return MackeyGlassResult(tuple(ahead), float(error), small_example(seed))


def small_example(seed: int) -> float:
    """RMSE one unit ahead with 100 units that read the series, fitted on its first 500 elements."""
    x = series(2000)
    network = EchoStateNetwork(
        units=100, leak=0.3, spectral_radius=1.1, distribution="normal", wash_out=0, seed=seed
    )
    network.fit(x[:500], x[1:501])
    _, state = network.predict(x[:501], return_state=True)
    predicted = network.predict(x[501:-1], state=state)
    return float((predicted[:, 0] - x[502:]).square().mean().sqrt())


def draw(outcomes: Sequence[MackeyGlassResult], path: str | Path) -> None:
    """Draw the error over the distance, for each seed and as the median."""
    figure = plain_figure(7, 4)
    axes = figure.subplots()
    distances = range(1, PREDICTION_HORIZON + 1)
    for outcome in outcomes:
        axes.plot(distances, outcome.ahead, color="tab:blue", linewidth=0.6, alpha=0.5)
    median = [statistics.median(each) for each in zip(*(o.ahead for o in outcomes), strict=True)]
    axes.plot(distances, median, color="black", label=f"median of {len(outcomes)} seeds")
    axes.axhline(WANTED, color="grey", linestyle=":", label=f"{WANTED:g}")
    axes.plot(
        PREDICTION_HORIZON, PUBLISHED, "o", color="tab:red", label=f"published, {PUBLISHED:g}"
    )
    axes.set_yscale("log")
    axes.set_xlabel("time units ahead, free run")
    axes.set_ylabel("normalised error")
    axes.legend()
    figure.savefig(path)


def table(seeds: int, plan: MackeyGlassStudy, picture: Path | None = None) -> Iterator[str]:
    """The errors of every seed, their medians and known ones; `picture`: file for a figure."""
    outcomes = []
    yield f"{'seed':<8}{f'{PREDICTION_HORIZON} ahead':>12}{'one step':>12}{'100 units':>12}"
    for seed in range(seeds):
        outcomes.append(study(seed, plan))
        yield _line(str(seed), [outcomes[-1]])
    yield _line("median", outcomes)
    yield f"{'known':<8}{PUBLISHED:>12.2e}{'':>12}{DOCUMENTED:>12.2e}"
    if picture:
        draw(outcomes, picture)
        yield f"wrote {picture}"


def _line(name: str, outcomes: Sequence[MackeyGlassResult]) -> str:
    rows = [(outcome.ahead[-1], outcome.one_step, outcome.small) for outcome in outcomes]
    medians = (statistics.median(column) for column in zip(*rows, strict=True))
    return f"{name:<8}" + "".join(f"{median:>12.2e}" for median in medians)
