"""What people decide by, besides the score: calibration, robustness, influence, worst examples.

extras.json    for each model: the measurements of `probes.py`, its size on disk, and for the best
               model the examples on which it is most wrong

They are measured once, of the first seed of each model, on a part of the test examples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_json
from threefold.data.preprocessing.numbers import Standardise
from threefold.lab.race.examples import worst_examples
from threefold.lab.race.planning import RacePlan
from threefold.lab.race.probes import ProbeSizes, probe_model, probe_sizes
from threefold.lab.report.report import Report, plain_values
from threefold.models.model import Model
from threefold.models.saving import load
from threefold.training.training_data import TrainingData, sample

EXTRAS = "extras.json"
PASSES = 4  # as many elements are read as by this many passes over the test of a race
MODEL = "model"  # the folder of the trained model in a run folder

Say = Callable[[str], None]


def sizes_of(examples: int, data: TrainingData) -> ProbeSizes:
    """How many test examples the measurements use in a race whose test has `examples`."""
    return probe_sizes(data.task, PASSES * examples * data.task.length)


def with_extras(
    report: Report,
    plan: RacePlan,
    data: TrainingData,
    folder: Path,
    run_folder: Callable[[str, int], Path],
    say: Say,
) -> Report:
    """The report with what was measured besides the scores, from extras.json if it is there.

    run_folder: from the name of a contender and a seed to its run folder.
    """
    path, sizes = folder / EXTRAS, sizes_of(plan.test_examples, data)
    if not path.is_file():
        found = {}
        for contender in report.ranked:
            say(f"measuring robustness and calibration of {contender.name}")
            place = run_folder(contender.name, contender.runs[0].seed) / MODEL
            worst = contender is report.ranked[0]
            found[contender.name] = measure_extras(data, place, sizes, worst)
        write_json(path, plain_values(found))
    values = json.loads(path.read_text(encoding="utf-8"))
    contenders = tuple(replace(c, extras=values.get(c.name, {})) for c in report.contenders)
    subject = replace(report.subject, quantity=quantity_of(data))
    return replace(report, subject=subject, contenders=contenders)


def quantity_of(data: TrainingData) -> str:
    """What absolute errors are measured in: the columns that are predicted, if they have names."""
    scale = data.output_step(Standardise) if data.task.metric == "absolute_error" else None
    if scale is None:
        return ""
    return " and ".join(scale.columns) if len(scale.columns) <= 2 else "each target"


def measure_extras(
    data: TrainingData, folder: Path, sizes: ProbeSizes, worst: bool
) -> dict[str, Any]:
    """The measurements of one trained model; `worst`: also its worst examples."""
    model = load(folder)
    assert isinstance(model, Model)
    found = {"disk_bytes": disk_bytes(folder), **probe_model(data, model, sizes)}
    if worst:
        numbers = sample(data.task.size("test"), sizes.calibration)
        found["worst"] = worst_examples(data, model, numbers)
        found["worst_of"] = len(numbers)
    return found


def disk_bytes(folder: Path) -> int:
    """Bytes of all files of a saved model."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
