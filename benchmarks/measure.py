"""ratio = median time of a contender / median time of ours, both from the same rounds

Contenders do the same work in turns, so that a slow moment of the machine meets all of them. Their
results are compared first, and nothing is measured when they differ.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# A figure is only worth printing for results that agree.
TOLERANCE = 1e-4

Contender = Callable[[], Iterable[Tensor]]


@dataclass(frozen=True)
class Race:
    """One piece of work and those who do it; the first is ours."""

    title: str
    contenders: dict[str, Contender]
    rounds: int = 15


def check(race: Race) -> None:
    """Raise unless all contenders give what the first gives."""
    (ours, first), *others = race.contenders.items()
    expected = [tensor.detach().double() for tensor in first()]
    for name, contender in others:
        for a, b in zip(contender(), expected, strict=True):
            error = ((a.detach().double() - b).abs().max() / b.abs().max()).item()
            if not error <= TOLERANCE:
                raise AssertionError(f"{race.title}: {name} and {ours} differ by {error:.1e}")


def medians(race: Race) -> dict[str, float]:
    """Seconds of each contender, taking turns after one unmeasured round."""
    check(race)
    times: dict[str, list[float]] = {name: [] for name in race.contenders}
    for _ in range(race.rounds):
        for name, contender in race.contenders.items():
            start = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def report(race: Race) -> None:
    """Measure a race and print its times and ratios."""
    seconds = medians(race)
    ours = next(iter(seconds.values()))
    print(f"\n{race.title}  ({torch.get_num_threads()} threads)")
    for name, value in seconds.items():
        print(f"  {name:<28}{value * 1e6:>12,.1f} µs{value / ours:>9.2f} ×")
