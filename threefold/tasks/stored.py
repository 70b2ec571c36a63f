"""Tasks whose examples are read from files, not generated.

Data come from the cache of fetched packages, or from the data set's original files in a folder of
the user's.  Examples from the cache must have the pinned checksum (`checksums.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.data.fetch import require_cached
from threefold.data.loaders import IGNORE, Batch
from threefold.data.padding import pad_rows
from threefold.errors import ThreefoldError
from threefold.tasks.checksums import CHECKSUMS
from threefold.tasks.table import SPLITS, card
from threefold.tasks.task import Numbers, Task, declare, make_batch

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = Array | Sequence[Array]  # an array, or rows of any lengths


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """The examples of one split."""

    inputs: Rows  # [L] or [L, features] each; pairs have two such rows
    targets: Rows  # one number each, or a row as long as the input

    def __len__(self) -> int:
        return len(self.inputs)


Splits: TypeAlias = Mapping[str, StoredExamples]
Prepare: TypeAlias = Callable[[Array, Array, Splits], tuple[Array, Array]]


def stored(
    name: str,
    read: Callable[[], Splits],
    *,
    prepare: Prepare = lambda inputs, targets, splits: (inputs, targets),
    pinned: bool = True,
    **changes: Any,
) -> Task[Batch]:
    """A task of examples that `read` returns when they are first asked for.

    prepare: (inputs, targets, all splits) → inputs and targets of a batch.  Computed numbers may
    differ in their last digits between machines, so the checksum is that of the data before it.
    pinned: the examples must have their checksum of `checksums.py`; else sizes follow the data.
    """

    @cache
    def splits() -> Splits:
        examples = read()
        if pinned:
            check_examples(name, examples)
            sizes = tuple(len(examples[split]) for split in SPLITS)
            assert sizes == card(name).sizes, (
                f"{name}: its card says {card(name).sizes}, not {sizes}"
            )
        return examples

    def draw(split: str, numbers: Numbers) -> Batch:
        examples = splits()[split]
        inputs, lengths = pick_rows(examples.inputs, numbers)
        targets, _ = pick_rows(examples.targets, numbers, IGNORE)
        return make_batch(*prepare(inputs, targets, splits()), lengths)

    if not pinned:
        changes["sizes"] = tuple(len(splits()[split]) for split in SPLITS)
    return declare(name, draw, **changes)


def pick_rows(rows: Rows, numbers: Numbers, fill: int = 0) -> tuple[Array, Numbers | None]:
    """The rows with these numbers as one array, and their lengths if they may differ."""
    if isinstance(rows, np.ndarray):
        return rows[numbers], None
    return pad_rows([rows[number] for number in numbers], fill)


def check_examples(name: str, splits: Splits) -> None:
    """Refuse examples that do not have the pinned checksum."""
    _compare(name, checksum(splits))


def check_bytes(name: str, content: bytes) -> None:
    """Refuse a text that does not have the pinned checksum."""
    _compare(name, hashlib.sha256(content).hexdigest()[:16])


def _compare(name: str, actual: str) -> None:
    expected = CHECKSUMS.get(name)
    if actual != expected:
        raise ThreefoldError(
            f"{name}: the examples have the checksum {actual}, expected {expected}; the fetched "
            "files were changed: delete them from the cache and fetch them again"
        )


def checksum(splits: Splits) -> str:
    """A checksum of all examples, the same on every machine."""
    content = hashlib.sha256()
    for split in SPLITS:
        for rows in (splits[split].inputs, splits[split].targets):
            is_array = isinstance(rows, np.ndarray)
            shape = np.shape(rows) if is_array else "rows"
            content.update(f"{split} {len(rows)} {shape}".encode())
            for row in (np.asarray(rows),) if is_array else rows:
                little = np.ascontiguousarray(row, dtype=row.dtype.newbyteorder("<"))
                content.update(f"{little.dtype.kind}{little.dtype.itemsize}".encode())
                content.update(little.tobytes())
    return content.hexdigest()[:16]


def data_folder(folder: Path | str | None, package: str, inside: str = "") -> Path:
    """The folder of a task's files: the user's folder, or that of a fetched package."""
    if folder is None:
        return require_cached(package) / inside
    path = Path(folder)
    if not path.is_dir():
        raise ThreefoldError(f"{path}: no such folder")
    return path


def first_existing(folder: Path, *names: str) -> Path:
    """The first of these files that exists in a folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ThreefoldError(f"{folder}: contains no file {' or '.join(names)}")


def hold_out(count: int, every: int) -> tuple[Numbers, Numbers]:
    """(the rest, every n-th number): hold out a validation set if a data set has none."""
    numbers = np.arange(count)
    held_out = numbers % every == every - 1
    return numbers[~held_out], numbers[held_out]


def select_rows(rows: Rows, numbers: Numbers) -> Rows:
    """Some rows of an array or a list."""
    return rows[numbers] if isinstance(rows, np.ndarray) else [rows[i] for i in numbers]
