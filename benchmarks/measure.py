"""ratio = median time of a contender / median time of ours, both from the same rounds

Contenders do the same work in turns, so that a slow moment of the machine meets all of them. Their
results are compared first, and nothing is measured when they differ.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

# A figure is only worth printing for results that agree.
TOLERANCE = 1e-4
# A machine this much slower than at the beginning of the run is used by somebody else too.
DISTURBED = 1.3

Contender = Callable[[], Iterable[Tensor]]
Point = tuple[str, int]  # a line of the figure, a length
Medians = Mapping[str, float]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A limit to a ratio of two medians; of several `others` the fastest counts."""

    others: tuple[str, ...]
    limit: float
    faster: bool  # others / ours ≥ limit; else ours / others ≤ limit
    ours: str | None = None  # the first contender
    root: float = 1.0  # of the ratio, for an exponent: log(ratio) / log(root)

    def measured(self, medians: Medians) -> float | None:
        """The ratio, or None where nobody of the others took part."""
        ours = medians[self.ours or next(iter(medians))]
        taken = [medians[name] for name in self.others if name in medians]
        if not taken:
            return None
        if self.root != 1.0:
            return math.log(ours / min(taken)) / math.log(self.root)
        return min(taken) / ours if self.faster else ours / min(taken)

    def met(self, value: float) -> bool:
        return value >= self.limit if self.faster else value <= self.limit

    @property
    def text(self) -> str:
        """What the figure is."""
        name = self.others[0] if len(self.others) == 1 else "the best other"
        if self.root != 1.0:
            return f"exponent of growth from {name} to {self.ours}"
        if self.faster:
            return f"times as fast as {name}"
        return f"× {name}" + (f" for {self.ours}" if self.ours else "")


def at_least(limit: float, *others: str) -> Target:
    """We are at least `limit` times as fast as the fastest of the others."""
    return Target(others, limit, faster=True)


def at_most(limit: float, *others: str, ours: str | None = None) -> Target:
    """We take at most `limit` times what the least of the others takes."""
    return Target(others, limit, faster=False, ours=ours)


def exponent(limit: float, short: str, long: str, factor: float) -> Target:
    """`factor` times the work takes at most factor^limit times as long."""
    return Target((short,), limit, faster=False, ours=long, root=factor)


@dataclass(frozen=True)
class Result:
    """What a race measured: samples of each contender, in its unit."""

    title: str
    samples: dict[str, list[float]]
    targets: tuple[Target, ...] = ()
    unit: str = "s"
    panel: str = ""
    points: dict[str, Point] = field(default_factory=dict)
    pulse: float = 1.0  # time of a fixed work around the race / the same before all races

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
class Race:
    """One piece of work and those who do it; the first is ours.

    `apart`: contenders that do other work (a bound, another model) and are not compared.
    `seldom`: slow ones, measured in every third round only.
    `tolerance`: how far results may differ, relative to the largest of ours.
    `points`: what the figure's `panel` draws of it, as the line and the length of each contender.
    """

    title: str
    contenders: dict[str, Contender]
    rounds: int = 15
    targets: tuple[Target, ...] = ()
    apart: tuple[str, ...] = ()
    seldom: tuple[str, ...] = ()
    panel: str = ""
    points: dict[str, Point] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    def measure(self, progress: Progress = lambda _: None) -> Result:
        """Samples of every contender, taking turns after one unmeasured round."""
        progress(f"{self.title}: comparing results")
        check(self)
        samples: dict[str, list[float]] = {name: [] for name in self.contenders}
        for turn in range(self.rounds):
            progress(f"{self.title}: round {turn + 1} of {self.rounds}")
            # There and back again: nobody always follows the same one.
            for name in list(self.contenders)[:: -1 if turn % 2 else 1]:
                if name in self.seldom and turn % 3:
                    continue
                start = time.perf_counter()
                self.contenders[name]()
                samples[name].append(time.perf_counter() - start)
        return Result(self.title, samples, self.targets, panel=self.panel, points=self.points)


@dataclass(frozen=True)
class Weighing:
    """Peak memory in bytes of each of some works, measured once; the first is ours."""

    title: str
    works: dict[str, Callable[[], int]]
    targets: tuple[Target, ...] = ()

    def measure(self, progress: Progress = lambda _: None) -> Result:
        samples = {}
        for name, work in self.works.items():
            progress(f"{self.title}: {name}")
            samples[name] = [float(work())]
        return Result(self.title, samples, self.targets, unit="B")


def check(race: Race) -> None:
    """Raise unless all contenders give what the first gives; those apart run once as well."""
    (ours, first), *others = race.contenders.items()
    expected = [tensor.detach().double() for tensor in first()]
    for name, contender in others:
        given = contender()
        if name in race.apart:
            continue
        for a, b in zip(given, expected, strict=True):
            error = ((a.detach().double() - b).abs().max() / b.abs().max()).item()
            if not error <= race.tolerance:
                raise AssertionError(f"{race.title}: {name} and {ours} differ by {error:.1e}")


def report(result: Result) -> list[str]:
    """The lines of one result: medians, ratios to ours, and its targets."""
    ours = next(iter(result.medians.values()))
    lines = [result.title]
    for name, value in result.medians.items():
        amount = f"{value * 1e3:,.3f} ms" if result.unit == "s" else f"{value / 1e6:,.1f} MB"
        low, high = (100 * (q / value - 1) for q in result.quartiles(name))
        lines.append(f"  {name:<36}{amount:>16}  {low:+4.0f} {high:+4.0f} %{value / ours:>9.2f} ×")
    for target in result.targets:
        lines.append(f"  {verdict(target, result.medians)}")
    if result.pulse > DISTURBED:
        lines.append(f"  ! the machine was {result.pulse:.1f} times slower here: measure it again")
    return lines


def verdict(target: Target, medians: Medians) -> str:
    """One target beside what was measured."""
    value = target.measured(medians)
    sign = "≥" if target.faster else "≤"
    if value is None:
        return f"– not measured: {target.text}, target {sign} {target.limit:g}"
    mark, word = ("✓", "met") if target.met(value) else ("✗", "NOT MET")
    return f"{mark} {value:.2f} {target.text}: target {sign} {target.limit:g}, {word}"
