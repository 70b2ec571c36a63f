"""Windows of time series that a user has cut: contexts [n, length, features], futures [n, horizon].

The first features are the series that are forecast; the others are known inputs.  Windows of one
series overlap, so they are not shuffled: the first 80 per cent train, the next 10 validate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array, StoredExamples
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.arrays import refuse_complex
from threefold.tasks.user_data.splits import split_cuts


def windows_task(x: Any, y: Any, name: str, splits: Mapping[str, tuple[Any, Any]]) -> Task[Batch]:
    """The task of windows, with the splits that are given or cut in order."""
    given = {split: _read(*pair, f"{name}, {split}") for split, pair in splits.items()}
    whole = _read(x, y, name)
    cuts = split_cuts(len(whole), given)
    parts = {
        split: StoredExamples(whole.inputs[a:b], whole.targets[a:b])
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    } | given
    shapes = {(part.inputs.shape[1:], part.targets.shape[1:]) for part in parts.values()}  # type: ignore[union-attr]
    if len(shapes) > 1 or not all(len(part) for part in parts.values()):
        raise ThreefoldError(
            f"{name}: the splits have {', '.join(str(len(part)) for part in parts.values())} "
            f"windows of shapes {sorted(shapes)}; expected at least one each, of one shape"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        inputs, targets = np.asarray(parts[split].inputs), np.asarray(parts[split].targets)
        return make_batch(inputs[numbers], targets[numbers])

    test, inputs = parts["test"], np.asarray(parts["train"].inputs)
    return declare_user_task(
        name,
        draw,
        kind="forecaster",
        domain="series",
        length=inputs.shape[1],
        sizes=tuple(len(parts[split]) for split in SPLITS),
        metric="absolute_error",
        chance=last_value_error(np.asarray(test.inputs), np.asarray(test.targets)),
        features=inputs.shape[2],
    )


def last_value_error(inputs: Array, targets: Array) -> float:
    """The mean error of repeating the last value of each series."""
    futures = targets[..., None] if targets.ndim == 2 else targets
    return float(np.nanmean(np.abs(futures - inputs[:, -1:, : futures.shape[2]])))


def _read(x: Any, y: Any, where: str) -> StoredExamples:
    refuse_complex("contexts", x)
    refuse_complex("futures", y)
    inputs, targets = np.asarray(x, np.float64), np.asarray(y, np.float64)
    inputs = inputs[..., None] if inputs.ndim == 2 else inputs
    channels = 1 if targets.ndim == 2 else targets.shape[-1]
    fits = inputs.ndim == 3 and targets.ndim in (2, 3) and len(inputs) == len(targets)
    if not fits or channels > inputs.shape[2]:
        raise ThreefoldError(
            f"{where}: contexts {inputs.shape} and futures {targets.shape}; expected as many "
            "[n, length(, features)] as [n, horizon(, channels)], features beginning with channels"
        )
    _refuse_unknown(inputs, targets, where)
    one = targets.ndim == 3 and channels == 1
    return StoredExamples(inputs, targets[..., 0] if one else targets)


def _refuse_unknown(inputs: Array, targets: Array, where: str) -> None:
    """Refuse what no forecast can begin with, and futures of which nothing is known."""
    known = np.isfinite(inputs).reshape(len(inputs), -1).all(1)
    if not known.all():
        raise ThreefoldError(
            f"{where}: context {np.argmin(known) + 1} contains NaN or infinite numbers "
            f"({np.count_nonzero(~known):,} of {len(inputs):,} contexts do), and windows are used "
            "as they are; fill them, leave these windows out, or give the whole series as x with "
            "a horizon, in which missing values are filled and marked"
        )
    infinite = np.isinf(targets).reshape(len(targets), -1).any(1)
    empty = np.isnan(targets).reshape(len(targets), -1).all(1)
    for wrong, what in ((infinite, "contains infinite numbers"), (empty, "has no known value")):
        if wrong.any():
            raise ThreefoldError(
                f"{where}: future {np.argmax(wrong) + 1} {what} ({np.count_nonzero(wrong):,} of "
                f"{len(targets):,} do); expected numbers, NaN where one is not known"
            )
