"""A user's table: texts with labels for a classifier, or columns of numbers for a forecaster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import Table, read_table
from threefold.errors import ThreefoldError
from threefold.tasks.forecasting import ForecastSettings, forecast_windows, standardise
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.labelled import labelled_task

MOST_TEXT_BYTES = 4096  # of one example, unless `length` is given


def table_task(
    path: Path, target: str | None, length: int | None, horizon: int | None, kind: str | None
) -> Task[Batch]:
    """A classifier of the column `text` if the table has one, else a forecaster."""
    table = read_table(path)
    label = target or next((name for name in ("label", "class") if name in table.cells), "")
    if kind != "forecaster" and label and "text" in table.cells:
        texts = [
            np.frombuffer(text.encode()[: length or MOST_TEXT_BYTES], np.uint8)
            for text in table.texts("text")
        ]
        return labelled_task(path.stem, texts, table.texts(label))
    if kind == "classifier":
        raise ThreefoldError(
            f"{path}: a classifier needs the columns text and label; the table has "
            f"{', '.join(table.cells)} (name the column of the labels with data.target)"
        )
    return _forecasting_task(path, _numbers(path, table, target), length, horizon)


def _numbers(path: Path, table: Table, target: str | None) -> Array:
    """The columns of numbers [time, features], the target first."""
    if target:
        table.column(target)
    names = [target, *(n for n in table.cells if n != target)] if target else list(table.cells)
    numeric = [name for name in names if _is_number(table.cells[name][0])]
    if not numeric or (target and numeric[0] != target):
        raise ThreefoldError(
            f"{path}: no column of numbers to forecast; the table has {', '.join(names)}"
        )
    return np.array([table.numbers(name) for name in numeric]).T


def _forecasting_task(
    path: Path, values: Array, length: int | None, horizon: int | None
) -> Task[Batch]:
    context = length or max(1, min(128, len(values) // 20))
    setting = ForecastSettings(lambda folder: values, context, horizon or max(1, context // 8), 0)
    splits, prepare = forecast_windows(values, setting), standardise()

    def draw(split: str, numbers: Numbers) -> Batch:
        examples = splits[split]
        inputs = np.asarray(examples.inputs)[numbers]
        targets = np.asarray(examples.targets)[numbers]
        return make_batch(*prepare(inputs, targets, splits))

    test = draw("test", np.arange(len(splits["test"])))
    last_value_error = float((test.targets - test.inputs[:, -1:, 0]).abs().mean())
    return declare_user_task(
        path.stem,
        draw,
        kind="forecaster",
        domain="series",
        length=context,
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="absolute_error",
        chance=last_value_error,
        features=values.shape[1],
    )


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True
