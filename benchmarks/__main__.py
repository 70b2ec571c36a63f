"""`python -m benchmarks [name …]`: run the benchmarks of this folder, or those named."""

from __future__ import annotations

import argparse
import pkgutil
import sys
from importlib import import_module

import torch

import benchmarks
from benchmarks.measure import report
from threefold.kernels import library

# Not benchmarks themselves.
TOOLS = {"__main__", "measure"}


def names() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name for name in found if name not in TOOLS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(names()))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names())
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; known: {', '.join(names())}")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    native = library.current().native
    print(f"torch {torch.__version__}, kernels: {native.variant if native else 'reference'}")
    for name in arguments.names or names():
        for race in import_module(f"benchmarks.{name}").run():
            report(race)


if __name__ == "__main__":
    main()
