"""What the machine can do at most: matrix products, reading memory, exponentials.

Every race is bounded by one of the three, so they are measured in the same run, before it.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import threefold
from benchmarks import peers
from threefold.kernels import library


@dataclass(frozen=True)
class Roof:
    """One limit of the machine: amounts a second, in billions."""

    name: str
    unit: str
    amount: float  # of one call
    samples: list[float]  # seconds

    @property
    def rate(self) -> float:
        return self.amount / statistics.median(self.samples) / 1e9

    def as_json(self) -> dict[str, Any]:
        return {"rate": self.rate, "unit": self.unit, "seconds": self.samples}


def roofs(quick: bool = False) -> list[Roof]:
    """sgemm, reading and exp, with the threads that torch has now."""
    side, numbers, rounds = (128, 100_000, 3) if quick else (2048, 25_165_824, 11)
    a, b = torch.randn(2, side, side)
    x = torch.randn(numbers)
    y, product = torch.empty_like(x), torch.empty_like(a)
    buffer = torch.zeros(5 * numbers)
    works: list[tuple[str, str, float, Callable[[], object]]] = [
        ("sgemm", "GFLOP/s", 2.0 * side**3, lambda: torch.mm(a, b, out=product)),
        ("memory, reading", "GB/s", 4.0 * len(buffer), buffer.sum),
        ("torch.exp", "G/s", float(numbers), lambda: torch.exp(x, out=y)),
    ]
    return [Roof(name, unit, n, timed(work, rounds)) for name, unit, n, work in works]


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each of some calls, after one that is not counted."""
    work()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


def pulse() -> float:
    """Seconds of a fixed matrix product now: more where others use the machine, or it throttles."""
    a, b = torch.ones(2, 768, 768)
    return statistics.median(timed(lambda: torch.mm(a, b), 5))


def description() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    choice = library.current()
    return {
        "processor": processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threefold": threefold.__version__,
        "kernels": choice.native.variant if choice.native else "reference",
        "peers": peers.versions(),
    }


def processor() -> str:
    """The processor's own name of itself, where the system tells it."""
    source = Path("/proc/cpuinfo")
    lines = source.read_text().splitlines() if source.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
