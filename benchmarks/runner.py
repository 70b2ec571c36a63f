"""Run a list of benchmarks with one memory setting, print each comparison and write the results.

The C library cannot undo keeping freed memory, so each memory setting has its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import benchmarks
from benchmarks import figure, machine, record
from benchmarks.measure import Result, report, verdict
from threefold.kernels.system_memory import keep_memory

# Modules of this folder that are not benchmarks.
HELPER_MODULES = {
    *("__main__", "autocast", "figure", "llama_cpp", "machine", "mamba", "measure"),
    *("peers", "record", "runner", "table", "two_checkouts", "weights"),
}
MEMORY_SETTINGS = ("default", "kept")
# glibc reads them at the start of a process: what `keep_memory` does, for processes started here.
KEPT_ENVIRONMENT = {f"MALLOC_{name}_THRESHOLD_": str(2**31 - 1) for name in ("MMAP", "TRIM")}


@dataclass(frozen=True)
class Job:
    """Benchmarks to run in one process, with one memory setting."""

    memory: str
    names: list[str]
    quick: bool
    threads: int
    out: Path
    command: str


def names() -> list[str]:
    """The benchmarks of this folder."""
    modules = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in modules if name not in HELPER_MODULES)


def memory_settings(name: str, choice: str | None) -> tuple[str, ...]:
    """The memory settings of a benchmark: the chosen one, or its own `MEMORY`, or both."""
    if choice is None:
        settings: tuple[str, ...] = getattr(
            import_module(f"benchmarks.{name}"), "MEMORY", MEMORY_SETTINGS
        )
        return settings
    return MEMORY_SETTINGS if choice == "both" else (choice,)


def plan(chosen: list[str], choice: str | None) -> dict[str, list[str]]:
    """The benchmarks to run with each memory setting; settings without any are left out."""
    settings = {name: memory_settings(name, choice) for name in chosen}
    jobs = {
        memory: [name for name in chosen if memory in settings[name]] for memory in MEMORY_SETTINGS
    }
    return {memory: selected for memory, selected in jobs.items() if selected}


def run_all(jobs: list[Job]) -> bool:
    """Run each job, several in a process each; whether every benchmark finished."""
    if len(jobs) == 1:
        return run(jobs[0])
    finished = True
    for job in jobs:
        code = exit_code_in_child(job)
        if code == INTERRUPTED:
            return False
        finished = finished and code == 0
    return finished


INTERRUPTED = 130  # the exit code that shells use for Ctrl-C


def exit_code_in_child(job: Job) -> int | None:
    """Run a job in a fresh process and wait for it to end, also after Ctrl-C."""
    child = multiprocessing.get_context("spawn").Process(target=run_and_exit, args=(job,))
    child.start()
    try:
        child.join()
    except KeyboardInterrupt:  # the child gets the signal too, and writes what it has
        child.join()
        return INTERRUPTED
    return child.exitcode


def run_and_exit(job: Job) -> None:
    sys.exit(0 if run(job) else 1)


@dataclass
class Outcome:
    """What a job has measured so far; the JSON is rewritten after each comparison."""

    path: Path
    header: record.Header
    results: record.Results = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        record.write(self.path, record.as_json(self.header, self.results, self.failures))


def run(job: Job) -> bool:
    """Run one job in this process; whether every benchmark finished."""
    outcome = prepare(job)
    normal = machine.reference_time()
    try:
        for name in job.names:
            run_benchmark(name, job.quick, normal, outcome)
    except KeyboardInterrupt:
        outcome.failures["interrupted"] = f"during {name}"
    outcome.write()
    summarise(outcome)
    return not outcome.failures


def prepare(job: Job) -> Outcome:
    """Set threads, seed and memory; print and record what the figures depend on."""
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    date = datetime.now(UTC)
    memory = set_memory(job.memory)
    about = machine.description()
    print(", ".join(f"{key} {about[key]}" for key in ("torch", "threefold", "kernels", "threads")))
    print(f"memory setting: {memory}")
    if job.quick:
        print("quick run with tiny shapes: the figures below mean nothing")
    limits = machine.limits(job.quick)
    for limit in limits:
        print(f"  {limit.name:<20}{limit.rate:>8.2f} {limit.unit}")
    details = {
        "memory": memory,
        "date": date.isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "command": job.command,
        "quick": job.quick,
    }
    path = job.out / f"{date:%Y%m%d-%H%M%S}-{job.memory}.json"
    return Outcome(path, record.Header(details, about, limits))


def set_memory(memory: str) -> str:
    """Apply a memory setting to this process and its children; the setting that is in effect."""
    if memory == "default":
        return memory
    if not keep_memory():
        print("this system cannot keep freed memory (needs glibc): measuring the default instead")
        return "default"
    os.environ.update(KEPT_ENVIRONMENT)
    return memory


def run_benchmark(name: str, quick: bool, normal: float, outcome: Outcome) -> None:
    """Measure all comparisons of a benchmark; a failure is recorded and the others still run."""
    try:
        for result in measure(name, quick, normal):
            outcome.results.setdefault(name, []).append(result)
            outcome.write()
    except Exception as error:
        outcome.failures[name] = f"{type(error).__name__}: {error}"
        print(f"\nFAILED {name}: {outcome.failures[name]}", file=sys.stderr)


def measure(name: str, quick: bool, normal: float) -> Iterator[Result]:
    """Measure and print each comparison; `normal` is the reference time before all of them."""
    for comparison in comparisons(import_module(f"benchmarks.{name}"), quick):
        before = machine.reference_time()
        result = comparison.measure(progress)
        result = replace(result, slowdown=max(before, machine.reference_time()) / normal)
        progress("")
        print("\n" + "\n".join(report(result)), flush=True)
        yield result


def comparisons(module: Any, quick: bool) -> Iterator[Any]:
    """The comparisons of a benchmark; none in a quick run if it has no tiny shape."""
    if quick and not hasattr(module, "quick"):
        return iter(())
    iterator: Iterator[Any] = module.quick() if quick else module.run()
    return iterator


def progress(text: str) -> None:
    """Show the current work in one line that is overwritten, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


def summarise(outcome: Outcome) -> None:
    """Print all targets of the run, and write the figure."""
    lines = targets([result for results in outcome.results.values() for result in results])
    if lines:
        print("\ntargets\n" + "\n".join(lines))
    print(f"\nwrote {outcome.path}")
    draw(outcome.path, outcome.results)


def targets(results: list[Result]) -> list[str]:
    """Every target of the run, with the measured ratio."""
    return [
        f"  {verdict(target, result.medians)}\n      {result.title}"
        for result in results
        for target in result.targets
    ]


def draw(path: Path, results: record.Results) -> None:
    if not figure.available():
        print("no figure: matplotlib is not installed (pip install 'threefold[bench]')")
        return
    for suffix in (".svg", ".png"):
        if figure.draw(path.with_suffix(suffix), results):
            print(f"wrote {path.with_suffix(suffix)}")
