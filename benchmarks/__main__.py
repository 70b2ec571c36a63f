"""Run the benchmarks of this folder, or only the named ones, and write JSON and a figure."""

from __future__ import annotations

import argparse
import shlex
import sys
from importlib import import_module
from pathlib import Path

import torch

from benchmarks import runner

RESULTS = Path(__file__).parent / "results"


def parser() -> argparse.ArgumentParser:
    names = ", ".join(runner.names())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"benchmarks to run: {names}")
    parser.add_argument("--list", action="store_true", help="describe each benchmark and exit")
    parser.add_argument(
        "--memory",
        choices=("default", "kept", "both"),
        help="return freed memory to the system as torch does by default, keep it in the process "
        "as `threefold train` does, or measure both, each in its own process "
        "(default: what each benchmark asks for, usually both)",
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="threads of torch"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and figure")
    parser.add_argument(
        "--quick", action="store_true", help="tiny shapes, to check that everything runs"
    )
    return parser


def arguments() -> argparse.Namespace:
    options = parser().parse_args()
    unknown = set(options.names) - set(runner.names())
    if unknown:
        known = ", ".join(runner.names())
        sys.exit(f"unknown benchmark {', '.join(sorted(unknown))}; choose from: {known}")
    if options.threads < 1:
        sys.exit(f"--threads {options.threads}: expected 1 or more")
    return options


def describe(names: list[str]) -> None:
    """Print each benchmark with the first line of its docstring."""
    for name in names:
        text = import_module(f"benchmarks.{name}").__doc__ or ""
        print(f"{name:<22}{text.splitlines()[0]}")


def main() -> None:
    options = arguments()
    names = options.names or runner.names()
    if options.list:
        return describe(names)
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    jobs = [
        runner.Job(memory, chosen, options.quick, options.threads, options.out, command)
        for memory, chosen in runner.plan(names, options.memory).items()
    ]
    sys.exit(0 if runner.run_all(jobs) else 1)


if __name__ == "__main__":
    main()
