"""A run as JSON: the machine, its roofs, and every median, quartile, sample and target."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import Roof
from benchmarks.measure import Result, Target

Results = dict[str, list[Result]]  # by benchmark


def as_json(
    machine: dict[str, Any], roofs: Sequence[Roof], results: Results, failures: dict[str, str]
) -> dict[str, Any]:
    """Plain values."""
    return {
        "machine": machine,
        "roofs": {roof.name: roof.as_json() for roof in roofs},
        "races": [
            {"benchmark": name, **race_json(result)}
            for name, found in results.items()
            for result in found
        ],
        "failures": failures,
    }


def race_json(result: Result) -> dict[str, Any]:
    medians = result.medians
    return {
        "title": result.title,
        "unit": result.unit,
        "pulse": result.pulse,
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
    """All of it or nothing: written beside, then moved into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    beside.replace(path)
