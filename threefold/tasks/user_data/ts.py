"""A user's .ts file: series with a class each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.ts_files import read_ts
from threefold.errors import setting
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.numbers import fit_numbers
from threefold.tasks.user_data.settings import Reading


def ts_task(path: Path, reading: Reading) -> Task[Any]:
    """Series of a .ts file; NAME_TEST.ts next to NAME_TRAIN.ts is the test split."""
    settings = reading.settings
    settings.allow_only(f"{path.name}, series with classes", "length", "missing")
    examples, numeric = _read(path)
    possible = "regressor" if numeric else "classifier"
    settings.check_kind(f"{path.name}, series with {target_name(numeric)}", possible)
    other = path.with_name(path.name.replace("_TRAIN", "_TEST"))
    has_test = reading.split and other != path and other.exists()
    columns = [f"dimension {n}" for n in range(1, examples.inputs[0].shape[1] + 1)]
    width = "a number" if len(columns) == 1 else f"{len(columns)} numbers"
    target = f"the {target_name(numeric)} of a series"
    facts = [("inputs", f"{width} per element"), ("target", target)]
    missing = sum(int(np.isnan(part).sum()) for part in examples.inputs)
    if missing:
        how = setting("data.missing", "mask|carry|refuse")
        facts.append(("missing", f"{missing:,} values; filled and marked ({how})"))
    if has_test:
        facts.append(("test split", other.name))
    data = ExampleData(
        path.name,
        possible,
        "series",
        examples,
        lambda train: fit_numbers(train, columns, settings),
        given={"test": _read(other)[0]} if has_test else {},
        facts=tuple(facts),
    )
    return examples_task(data, reading)


def target_name(numeric: bool) -> str:
    """What a series of the file has beside its values."""
    return "number" if numeric else "class"


def _read(path: Path) -> tuple[RawExamples, bool]:
    """The series of a file, and whether their targets are numbers."""
    content = read_ts(path)
    targets = [float(x) for x in content.labels] if content.numeric else content.labels
    places = [f"{path.name}, series {number}" for number in range(1, len(targets) + 1)]
    return RawExamples(content.series, targets, places), content.numeric
