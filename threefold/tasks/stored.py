"""Examples that are read, not made: kept by split, picked by number, pinned by a hash.

Data come from the cache of fetched packages, or from the standard files in a folder that the user
names.  What comes from the cache must have the bytes that were pinned (`digests.py`).
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
from threefold.errors import ThreefoldError
from threefold.tasks.checksums import CHECKSUMS
from threefold.tasks.padding import pad_rows
from threefold.tasks.table import SPLITS, card
from threefold.tasks.task import Numbers, Task, declare, make_batch

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = Array | Sequence[Array]  # a table, or rows of any lengths


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """The examples of one split."""

    inputs: Rows  # [L] or [L, features] each; of pairs two such rows
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
    """A task of examples that `read` brings, when they are first asked for.

    prepare: (inputs, targets, all splits) → what a model reads and answers, of the picked examples
    only.  Computed numbers have other last digits elsewhere, so bytes are pinned before it.
    pinned: the bytes must be those of `digests.py`; else sizes follow what was read.
    """

    @cache
    def splits() -> Splits:
        found = read()
        if pinned:
            check_examples(name, found)
            sizes = tuple(len(found[split]) for split in SPLITS)
            assert sizes == card(name).sizes, (
                f"{name}: its card says {card(name).sizes}, not {sizes}"
            )
        return found

    def draw(split: str, numbers: Numbers) -> Batch:
        one = splits()[split]
        inputs, lengths = pick_rows(one.inputs, numbers)
        targets, _ = pick_rows(one.targets, numbers, IGNORE)
        return make_batch(*prepare(inputs, targets, splits()), lengths)

    if not pinned:
        changes["sizes"] = tuple(len(splits()[split]) for split in SPLITS)
    return declare(name, draw, **changes)


def pick_rows(rows: Rows, numbers: Numbers, fill: int = 0) -> tuple[Array, Numbers | None]:
    """Some rows as a table, and their lengths where they differ from each other."""
    if isinstance(rows, np.ndarray):
        return rows[numbers], None
    return pad_rows([rows[number] for number in numbers], fill)


def check_examples(name: str, splits: Splits) -> None:
    """Refuse examples that are not the pinned ones."""
    _compare(name, checksum(splits))


def check_bytes(name: str, content: bytes) -> None:
    """The same of a text."""
    _compare(name, hashlib.sha256(content).hexdigest()[:16])


def _compare(name: str, found: str) -> None:
    wanted = CHECKSUMS.get(name)
    if found != wanted:
        raise ThreefoldError(
            f"{name}: the examples have the hash {found}, expected {wanted}; the fetched files "
            "were changed: delete them from the cache and fetch them again"
        )


def checksum(splits: Splits) -> str:
    """A hash of all examples, the same on every machine."""
    content = hashlib.sha256()
    for split in SPLITS:
        for rows in (splits[split].inputs, splits[split].targets):
            table = isinstance(rows, np.ndarray)
            shape = np.shape(rows) if table else "rows"
            content.update(f"{split} {len(rows)} {shape}".encode())
            for row in (np.asarray(rows),) if table else rows:
                little = np.ascontiguousarray(row, dtype=row.dtype.newbyteorder("<"))
                content.update(f"{little.dtype.kind}{little.dtype.itemsize}".encode())
                content.update(little.tobytes())
    return content.hexdigest()[:16]


def data_folder(folder: Path | str | None, package: str, inside: str = "") -> Path:
    """Where a task's files are: the folder that the user named, or a package of the cache."""
    if folder is None:
        return require_cached(package) / inside
    named = Path(folder)
    if not named.is_dir():
        raise ThreefoldError(f"{named}: there is no such folder")
    return named


def first_existing(folder: Path, *names: str) -> Path:
    """The first of some names that a folder has."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ThreefoldError(f"{folder}: holds no file {' or '.join(names)}")


def hold_out(count: int, every: int) -> tuple[Numbers, Numbers]:
    """(the rest, every n-th number): a part for validation where there is none."""
    numbers = np.arange(count)
    held_out = numbers % every == every - 1
    return numbers[~held_out], numbers[held_out]


def select_rows(rows: Rows, numbers: Numbers) -> Rows:
    """Some rows of a table or a list."""
    return rows[numbers] if isinstance(rows, np.ndarray) else [rows[i] for i in numbers]
