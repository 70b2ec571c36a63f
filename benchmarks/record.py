"""The results of a run as JSON: how and where it ran, and every median, quartile and target."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import MachineLimit
from benchmarks.measure import Result, Target

Results = dict[str, list[Result]]  # by benchmark


@dataclass(frozen=True)
class Header:
    """What the figures of a run depend on."""

    run: dict[str, Any]  # memory setting, date, commit, command
    machine: dict[str, Any]  # processor, threads, versions
    limits: Sequence[MachineLimit]

    def as_json(self) -> dict[str, Any]:
        limits = {limit.name: limit.as_json() for limit in self.limits}
        return {"run": self.run, "machine": self.machine, "machine_limits": limits}


def as_json(header: Header, results: Results, failures: dict[str, str]) -> dict[str, Any]:
    """The whole run as values that JSON can store."""
    return {
        **header.as_json(),
        "comparisons": [
            {"benchmark": name, **result_json(result)}
            for name, benchmark_results in results.items()
            for result in benchmark_results
        ],
        "failures": failures,
    }


def result_json(result: Result) -> dict[str, Any]:
    medians = result.medians
    return {
        "title": result.title,
        "unit": result.unit,
        "slowdown": result.slowdown,
        "contenders": {
            name: {
                "median": medians[name],
                "quartiles": list(result.quartiles(name)),
                "samples": samples,
            }
            for name, samples in result.samples.items()
        },
        "targets": [target_json(target, medians) for target in result.targets],
    }


def target_json(target: Target, medians: dict[str, float]) -> dict[str, Any]:
    value = target.measured(medians)
    return {
        "what": target.text,
        "limit": target.limit,
        "at": "least" if target.faster else "most",
        "measured": value,
        "met": None if value is None else target.met(value),
    }


def write(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file atomically: to a temporary file first, which then replaces it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)
