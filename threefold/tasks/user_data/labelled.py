"""A user's examples with a class each: shared by .ts files, tables of texts and folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.random_by_address import permutation
from threefold.data.ts_files import read_ts
from threefold.errors import ThreefoldError
from threefold.tasks.stored import Array, Splits, StoredExamples, pick_rows, select_rows
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch


class LabelledRows(NamedTuple):
    """Examples of any lengths, and the label of each."""

    rows: Sequence[Array]
    labels: Sequence[str]


def ts_task(path: Path, length: int | None) -> Task[Batch]:
    """Series of a .ts file; NAME_TEST.ts next to NAME_TRAIN.ts is the test split."""
    train = _read_ts(path, length)
    test_path = path.with_name(path.name.replace("_TRAIN", "_TEST"))
    if test_path == path or not test_path.exists():
        return labelled_task(path.stem, *train)
    return labelled_task(path.stem, *train, test=_read_ts(test_path, length))


def _read_ts(path: Path, length: int | None) -> LabelledRows:
    content = read_ts(path)
    return LabelledRows([row[:length] for row in content.series], content.labels)


def labelled_task(
    name: str,
    rows: Sequence[Array],
    labels: Sequence[str],
    test: LabelledRows | None = None,
) -> Task[Batch]:
    """Examples and their labels; classes are numbered in alphabetical order."""
    classes = sorted({*labels, *(() if test is None else test.labels)})
    splits = _split(LabelledRows(rows, labels), test, classes)
    if len(classes) < 2 or min(map(len, splits.values())) < 1:
        raise ThreefoldError(
            f"{name}: {len(rows)} examples of {len(classes)} classes; expected at least 2 classes, "
            "and enough examples for training, validation and test (ten or more)"
        )
    tokens = rows[0].ndim == 1

    def draw(split: str, numbers: Numbers) -> Batch:
        examples = splits[split]
        inputs, lengths = pick_rows(examples.inputs, numbers)
        return make_batch(inputs, np.asarray(examples.targets)[numbers], lengths)

    commonest = Counter(splits["test"].targets).most_common(1)[0][1]
    return declare_user_task(
        name,
        draw,
        kind="classifier",
        domain="text" if tokens else "series",
        length=max(map(len, rows)),
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="accuracy",
        chance=commonest / len(splits["test"]),
        vocabulary=256 if tokens else 0,
        features=0 if tokens else rows[0].shape[1],
        classes=len(classes),
        labels=tuple(classes),
    )


def _split(examples: LabelledRows, test: LabelledRows | None, classes: Sequence[str]) -> Splits:
    """80, 10 and 10 per cent of the shuffled examples; 90 and 10 if there is a test set."""
    number = {label: index for index, label in enumerate(classes)}
    count = len(examples.rows)
    order = permutation((0, count), count)
    ends = (0.8, 0.9, 1.0) if test is None else (0.9, 1.0, 1.0)
    cuts = [0, *(int(count * part) for part in ends)]
    targets = np.array([number[label] for label in examples.labels])
    splits = {
        split: StoredExamples(select_rows(list(examples.rows), order[a:b]), targets[order[a:b]])
        for split, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)
    }
    if test is not None:
        test_targets = np.array([number[label] for label in test.labels])
        splits["test"] = StoredExamples(list(test.rows), test_targets)
    return splits
