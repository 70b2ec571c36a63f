"""Retrieval: does one of two papers cite the other?  The Long Range Arena's task, from its files.

    first    "Neural machine translation …"      bytes, the first `length`
    second   "We propose a new attention …"      → 1: one cites the other

No package registry has the ACL Anthology Network: give the folder `tsv_data` of the arena's
release, with new_aan_pairs.train.tsv, .eval.tsv and .test.tsv (label, two names, two texts).
`retrieval-bible` asks the same question about other texts and needs no folder.
Solved: 0.88 (S4 has 0.909).
Tay et al. 2020, "Long Range Arena"; Radev et al. 2013, "The ACL Anthology Network Corpus".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import file_error, read_lines
from threefold.errors import ThreefoldError, setting
from threefold.tasks.stored import Array, Splits, StoredExamples, data_folder, stored
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Task

FILES = dict(zip(SPLITS, ("train", "eval", "test"), strict=True))


def retrieval(folder: Path | None = None, *, length: int = 4000) -> Task[Batch]:
    """Pairs [2, L] of texts in bytes, cut or padded with spaces."""
    if folder is None:
        raise ThreefoldError(
            "retrieval: no package registry has its data; unpack lra_release.gz and give its "
            f"folder, e.g. {setting('data.options.folder', 'lra_release/tsv_data')}, or use "
            "retrieval-bible"
        )
    source = data_folder(folder, "")

    def read() -> Splits:
        return {
            split: _pairs(source / f"new_aan_pairs.{name}.tsv", length)
            for split, name in FILES.items()
        }

    return stored("retrieval", read, pinned=False, length=length)


def _pairs(path: Path, length: int) -> StoredExamples:
    inputs: list[Array] = []
    labels: list[int] = []
    for number, line in read_lines(path):
        cells = line.split("\t")
        if len(cells) != 5 or cells[0] not in ("0", "1", "0.0", "1.0"):
            what = f"{len(cells)} cells, the first {cells[0][:20]!r}"
            raise file_error(path, number, f"{what}; expected 0 or 1, two names and two texts")
        inputs.append(pair_of_bytes(cells[3], cells[4], length))
        labels.append(int(cells[0][0]))
    return StoredExamples(np.stack(inputs), np.array(labels, np.uint8))


def pair_of_bytes(first: str, second: str, length: int) -> Array:
    """Two texts [2, length] in bytes, cut or padded with spaces."""
    rows = [text.encode()[:length].ljust(length) for text in (first, second)]
    return np.stack([np.frombuffer(row, np.uint8) for row in rows])
