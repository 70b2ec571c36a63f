"""P(a → b) = C exp(−(d(a, b)/λ)²): neurons on a grid, wired at random by kind and distance.

The figures are those of the paper, by the kind of the sending and of the receiving neuron:
excitatory, then inhibitory.
Maass, Natschläger & Markram 2002, "Real-time computing without stable states", Neural
Computation 14, pages 2557 and 2558.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from threefold.kernels.spiking_reservoir import SpikingWiring

Table = tuple[tuple[float, float], tuple[float, float]]

CONNECTIONS: Table = ((0.3, 0.2), (0.4, 0.1))  # C
AMPLITUDES: Table = ((30.0, 60.0), (-19.0, -19.0))  # nA, the mean of a gamma distribution
UTILISATION: Table = ((0.5, 0.05), (0.25, 0.32))  # U, a mean as those of D and F
RECOVERY: Table = ((1100.0, 125.0), (700.0, 144.0))  # D, ms
FACILITATION: Table = ((50.0, 1200.0), (20.0, 60.0))  # F, ms
DELAYS: Table = ((1.5, 0.8), (0.8, 0.8))  # ms
INPUT_AMPLITUDES = (18.0, 9.0)  # nA, onto excitatory and inhibitory neurons
SPREAD = 0.5  # standard deviation of U, D and F, relative to their means
LARGEST_UTILISATION = 1.0  # u is a share of the resources


@dataclass(frozen=True)
class LiquidPlan:
    """What decides the wiring; times in ms."""

    grid: Sequence[int]
    inhibitory: float  # share of the neurons
    reach: float  # λ
    weight_scale: float
    time_step: float
    refractory: Sequence[float]
    delays: bool
    dynamics: bool

    @property
    def units(self) -> int:
        return math.prod(self.grid)

    def steps(self, time: Tensor) -> Tensor:
        """Times as whole steps, at least one."""
        return (time / self.time_step).round().clamp(min=1)


def draw_wiring(plan: LiquidPlan, generator: torch.Generator) -> SpikingWiring:
    """Draw kinds, connections and synapses; the same generator gives the same wiring."""
    kinds = _draw_kinds(plan, generator)
    positions = _positions(plan.grid)
    squared = (positions[:, None] - positions).square().sum(-1)
    share = _by_kind(CONNECTIONS, kinds[:, None], kinds) * torch.exp(-squared / plan.reach**2)
    drawn = torch.rand(share.shape, dtype=torch.float64, generator=generator)
    present = (drawn < share).fill_diagonal_(False)
    senders, targets = present.nonzero(as_tuple=True)
    pair = kinds[senders], kinds[targets]
    utilisation = _draw_positive(UTILISATION, pair, generator).clamp(max=LARGEST_UTILISATION)
    recovery, facilitation = (
        torch.exp(-plan.time_step / _draw_positive(table, pair, generator))
        for table in (RECOVERY, FACILITATION)
    )
    # A gamma distribution whose standard deviation is its mean is an exponential one.
    amplitudes = torch.empty(len(senders), dtype=torch.float64).exponential_(generator=generator)
    weights = plan.weight_scale * _by_kind(AMPLITUDES, *pair) * amplitudes
    delays = plan.steps(_by_kind(DELAYS, *pair)) if plan.delays else torch.ones(len(senders))
    periods = plan.steps(torch.tensor(plan.refractory, dtype=torch.float64))[kinds]
    return SpikingWiring(
        weights if plan.dynamics else weights * utilisation,
        targets.int(),
        delays.int(),
        torch.cat([torch.zeros(1, dtype=torch.int64), present.sum(1).cumsum(0)]),
        utilisation,
        recovery,
        facilitation,
        kinds.double(),
        periods,
    )


def draw_input_amplitudes(kinds: Tensor, inputs: int, generator: torch.Generator) -> Tensor:
    """Amplitudes [units, inputs] of synapses from input spike trains, in nA."""
    mean = torch.tensor(INPUT_AMPLITUDES, dtype=torch.float64)[kinds.long()]
    drawn = torch.empty(len(kinds), inputs, dtype=torch.float64).exponential_(generator=generator)
    return mean[:, None] * drawn


def _draw_kinds(plan: LiquidPlan, generator: torch.Generator) -> Tensor:
    """0 for excitatory and 1 for inhibitory neurons, at random places."""
    kinds = torch.zeros(plan.units, dtype=torch.int64)
    order = torch.randperm(plan.units, generator=generator)
    kinds[order[: round(plan.inhibitory * plan.units)]] = 1
    return kinds


def _positions(grid: Sequence[int]) -> Tensor:
    axes = [torch.arange(size, dtype=torch.float64) for size in grid]
    return torch.cartesian_prod(*axes).reshape(-1, len(grid))


def _by_kind(table: Table, senders: Tensor, targets: Tensor) -> Tensor:
    return torch.tensor(table, dtype=torch.float64)[senders, targets]


def _draw_positive(table: Table, pair: tuple[Tensor, Tensor], generator: torch.Generator) -> Tensor:
    """Normal numbers around the table's means; uniform up to twice the mean where not positive."""
    mean = _by_kind(table, *pair)
    normal = torch.randn(mean.shape, dtype=torch.float64, generator=generator)
    uniform = torch.rand(mean.shape, dtype=torch.float64, generator=generator)
    drawn = mean * (1 + SPREAD * normal)
    return torch.where(drawn > 0, drawn, 2 * mean * (1 - uniform))
