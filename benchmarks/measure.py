"""ratio = median time of a contender / median time of threefold, both from the same rounds

Contenders do the same work in turns, so that a slow moment of the machine affects all of them.
Their results are compared first, and nothing is measured if they differ.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Largest relative difference between the results of two contenders.
TOLERANCE = 1e-4
# If the machine is this many times slower than at the start of the run, something else uses it.
DISTURBED = 1.3

Contender = Callable[[], Iterable[Tensor]]


def on_one_thread(run: Contender) -> Contender:
    """The same work on one thread."""

    def limited() -> Iterable[Tensor]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return run()
        finally:
            torch.set_num_threads(threads)

    return limited


Point = tuple[str, int]  # line of the figure, sequence length
Medians = Mapping[str, float]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A limit for the ratio of two medians; the fastest of several `others` counts."""

    others: tuple[str, ...]
    limit: float
    faster: bool  # others / ours ≥ limit; else ours / others ≤ limit
    ours: str | None = None  # None: the first contender
    growth: float = 1.0  # if not 1, the target is the exponent log(ratio) / log(growth)

    def measured(self, medians: Medians) -> float | None:
        """The ratio (or exponent), or None if none of the others was measured."""
        ours = medians[self.ours or next(iter(medians))]
        others = [medians[name] for name in self.others if name in medians]
        if not others:
            return None
        if self.growth != 1.0:
            return math.log(ours / min(others)) / math.log(self.growth)
        return min(others) / ours if self.faster else ours / min(others)

    def met(self, value: float) -> bool:
        return value >= self.limit if self.faster else value <= self.limit

    @property
    def text(self) -> str:
        """What the measured number means."""
        name = self.others[0] if len(self.others) == 1 else "the fastest other"
        if self.growth != 1.0:
            return f"exponent of growth from {name} to {self.ours}"
        if self.faster:
            return f"times as fast as {name}"
        return f"× {name}" + (f" for {self.ours}" if self.ours else "")


def min_speedup(limit: float, *others: str) -> Target:
    """Threefold is at least `limit` times as fast as the fastest of the others."""
    return Target(others, limit, faster=True)


def max_ratio(limit: float, *others: str, ours: str | None = None) -> Target:
    """Threefold needs at most `limit` times what the best of the others needs."""
    return Target(others, limit, faster=False, ours=ours)


def max_exponent(limit: float, short: str, long: str, factor: float) -> Target:
    """The work grows by `factor` from `short` to `long`, the time by at most factor^limit."""
    return Target((short,), limit, faster=False, ours=long, growth=factor)


@dataclass(frozen=True)
class Result:
    """What a comparison measured: the samples of each contender, in seconds or bytes."""

    title: str
    samples: dict[str, list[float]]
    targets: tuple[Target, ...] = ()
    unit: str = "s"
    panel: str = ""
    points: dict[str, Point] = field(default_factory=dict)
    slowdown: float = 1.0  # machine.reference_time() around the comparison / before all of them

    @property
    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.samples.items()}

    def quartiles(self, name: str) -> tuple[float, float]:
        values = self.samples[name]
        if len(values) == 1:
            return values[0], values[0]
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
        return first, third


@dataclass(frozen=True)
class Comparison:
    """The time that several contenders need for the same work; the first is threefold.

    `unchecked`: contenders that do other work (a bound, another model), so results may differ.
    `slow`: contenders measured in every third round only.
    `tolerance`: how far results may differ, relative to the largest value of threefold's.
    `panel`, `points`: where the figure draws each contender, as panel title, line and length.
    """

    title: str
    contenders: dict[str, Contender]
    rounds: int = 15
    targets: tuple[Target, ...] = ()
    unchecked: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    panel: str = ""
    points: dict[str, Point] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    def measure(self, progress: Progress = lambda _: None) -> Result:
        """Time all contenders in turns, after one unmeasured round that compares results."""
        progress(f"{self.title}: comparing results")
        check(self)
        samples: dict[str, list[float]] = {name: [] for name in self.contenders}
        for turn in range(self.rounds):
            progress(f"{self.title}: round {turn + 1} of {self.rounds}")
            # Reverse every second round, so that no contender always follows the same one.
            for name in list(self.contenders)[:: -1 if turn % 2 else 1]:
                if name in self.slow and turn % 3:
                    continue
                start = time.perf_counter()
                self.contenders[name]()
                samples[name].append(time.perf_counter() - start)
        return Result(self.title, samples, self.targets, panel=self.panel, points=self.points)


@dataclass(frozen=True)
class MemoryComparison:
    """The memory in bytes that each contender needs, measured once; the first is threefold."""

    title: str
    contenders: dict[str, Callable[[], int]]
    targets: tuple[Target, ...] = ()

    def measure(self, progress: Progress = lambda _: None) -> Result:
        samples = {}
        for name, measure_bytes in self.contenders.items():
            progress(f"{self.title}: {name}")
            samples[name] = [float(measure_bytes())]
        return Result(self.title, samples, self.targets, unit="B")


def check(comparison: Comparison) -> None:
    """Raise unless all contenders agree with the first; unchecked ones only run once."""
    (ours, first), *others = comparison.contenders.items()
    expected = [tensor.detach().double() for tensor in first()]
    for name, contender in others:
        results = list(contender())
        if name in comparison.unchecked:
            continue
        for a, b in zip(results, expected, strict=True):
            error = ((a.detach().double() - b).abs().max() / b.abs().max()).item()
            if not error <= comparison.tolerance:
                raise AssertionError(f"{comparison.title}: {name} and {ours} differ by {error:.1e}")


def report(result: Result) -> list[str]:
    """The printed lines of a result: medians, quartiles, ratios to the first, and targets."""
    ours = next(iter(result.medians.values()))
    lines = [result.title]
    for name, value in result.medians.items():
        amount = f"{value * 1e3:,.3f} ms" if result.unit == "s" else f"{value / 1e6:,.1f} MB"
        low, high = (100 * (q / value - 1) for q in result.quartiles(name))
        lines.append(f"  {name:<36}{amount:>16}  {low:+4.0f} {high:+4.0f} %{value / ours:>9.2f} ×")
    for target in result.targets:
        lines.append(f"  {verdict(target, result.medians)}")
    if result.slowdown > DISTURBED:
        slowdown = f"{result.slowdown:.1f} times slower than at the start"
        lines.append(f"  ! the machine was {slowdown}: measure again")
    return lines


def verdict(target: Target, medians: Medians) -> str:
    """One target, what was measured, and whether it is met."""
    value = target.measured(medians)
    sign = "≥" if target.faster else "≤"
    if value is None:
        return f"– not measured: {target.text}, target {sign} {target.limit:g}"
    mark, word = ("✓", "met") if target.met(value) else ("✗", "NOT MET")
    return f"{mark} {value:.2f} {target.text}: target {sign} {target.limit:g}, {word}"
