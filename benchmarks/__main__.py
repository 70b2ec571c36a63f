"""`python -m benchmarks [name …]`: run the benchmarks of this folder, or those named."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import benchmarks
from benchmarks import figure, machine, record
from benchmarks.measure import Result, report, verdict
from threefold.kernels.system_memory import keep_memory

# Not benchmarks themselves.
TOOLS = {
    *("__main__", "figure", "machine", "mamba", "measure"),
    *("peers", "record", "weights"),
}
RESULTS = Path(__file__).parent / "results"


def names() -> list[str]:
    """The benchmarks of this folder."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in found if name not in TOOLS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(names()))
    parser.add_argument("--list", action="store_true", help="say what each benchmark is, and stop")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON and figure")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run at all?")
    given = parser.parse_args()
    unknown = set(given.names) - set(names())
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; known: {', '.join(names())}")
    if given.threads < 1:
        sys.exit(f"--threads {given.threads}: expected 1 or more")
    return given


def progress(text: str) -> None:
    """One line that is written over, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


def races(module: Any, quick: bool) -> Iterator[Any]:
    """The races of a benchmark; a quick run has those that know a tiny shape."""
    if quick and not hasattr(module, "quick"):
        return iter(())
    found: Iterator[Any] = module.quick() if quick else module.run()
    return found


def keeps_memory(name: str) -> bool:
    """Whether a benchmark, as `threefold train` does, has freed memory kept, of all it measures."""
    return getattr(import_module(f"benchmarks.{name}"), "KEEPS_MEMORY", False)


def measure(name: str, quick: bool, calm: float) -> Iterator[Result]:
    """Run and print each race of a benchmark; `calm` is the machine's pulse before all of them."""
    module = import_module(f"benchmarks.{name}")
    if keeps_memory(name):
        keep_memory()
    for race in races(module, quick):
        before = machine.pulse()
        result = race.measure(progress)
        result = replace(result, pulse=max(before, machine.pulse()) / calm)
        progress("")
        print("\n" + "\n".join(report(result)), flush=True)
        yield result


def targets(results: list[Result]) -> list[str]:
    """Every target of the run in one table."""
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


def run(chosen: list[str], quick: bool, out: Path) -> bool:
    """All of it; whether every benchmark came to its end."""
    about = machine.description()
    print(", ".join(f"{key} {about[key]}" for key in ("torch", "threefold", "kernels", "threads")))
    if quick:
        print("a quick run: tiny shapes, so that no figure below means anything")
    roofs = machine.roofs(quick)
    for roof in roofs:
        print(f"  {roof.name:<20}{roof.rate:>8.2f} {roof.unit}")
    calm = machine.pulse()
    path = out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S.json")
    results: record.Results = {}
    failures: dict[str, str] = {}
    try:
        for name in chosen:
            try:
                for result in measure(name, quick, calm):
                    results.setdefault(name, []).append(result)
                    record.write(path, record.as_json(about, roofs, results, failures))
            except Exception as error:  # the other benchmarks are still worth their time
                failures[name] = f"{type(error).__name__}: {error}"
                print(f"\nFAILED {name}: {failures[name]}", file=sys.stderr)
    except KeyboardInterrupt:
        failures["interrupted"] = f"during {name}"
    record.write(path, record.as_json(about, roofs, results, failures))
    table = targets([result for found in results.values() for result in found])
    if table:
        print("\ntargets\n" + "\n".join(table))
    print(f"\nwrote {path}")
    draw(path, results)
    return not failures


def main() -> None:
    given = arguments()
    chosen = given.names or names()
    if given.list:
        for name in chosen:
            text = import_module(f"benchmarks.{name}").__doc__ or ""
            print(f"{name:<22}{text.splitlines()[0]}")
        return
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    # Memory that is kept once is kept for good, so those who want it come last.
    sys.exit(0 if run(sorted(chosen, key=keeps_memory), given.quick, given.out) else 1)


if __name__ == "__main__":
    main()
