"""The limits of the machine: matrix products, reading memory, exponentials.

One of the three bounds every benchmark, so they are measured first, in the same run.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import threefold
from benchmarks import peers
from threefold.cli.doctor import processor_name
from threefold.kernels import library


@dataclass(frozen=True)
class MachineLimit:
    """One limit of the machine, as a rate in billions per second."""

    name: str
    unit: str
    amount: float  # per call
    samples: list[float]  # seconds

    @property
    def rate(self) -> float:
        return self.amount / statistics.median(self.samples) / 1e9

    def as_json(self) -> dict[str, Any]:
        return {"rate": self.rate, "unit": self.unit, "seconds": self.samples}


def limits(quick: bool = False) -> list[MachineLimit]:
    """Measure sgemm, reading memory and exp with the current number of torch threads."""
    side, numbers, rounds = (128, 100_000, 3) if quick else (2048, 25_165_824, 11)
    a, b = torch.randn(2, side, side)
    x = torch.randn(numbers)
    y, product = torch.empty_like(x), torch.empty_like(a)
    buffer = torch.ones(5 * numbers)
    works: list[tuple[str, str, float, Callable[[], object]]] = [
        ("sgemm", "GFLOP/s", 2.0 * side**3, lambda: torch.mm(a, b, out=product)),
        ("memory, reading", "GB/s", 4.0 * len(buffer), buffer.sum),
        ("torch.exp", "G/s", float(numbers), lambda: torch.exp(x, out=y)),
    ]
    return [MachineLimit(name, unit, n, timed(work, rounds)) for name, unit, n, work in works]


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of each call, after one warm-up call."""
    work()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


def reference_time() -> float:
    """Seconds of a fixed matrix product: more if the machine is busy or throttled."""
    a, b = torch.ones(2, 768, 768)
    return statistics.median(timed(lambda: torch.mm(a, b), 5))


def description() -> dict[str, Any]:
    """Processor, threads and versions: what a figure depends on besides the code."""
    choice = library.current()
    return {
        "processor": processor_name(),
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


def commit() -> str | None:
    """The git commit of this folder, with "-dirty" after uncommitted changes; None without git."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
