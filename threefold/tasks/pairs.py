"""Pairs of sequences, a source and its target: what translators learn from.

    source   ⟨ 7 2 5 ⟩        ⟨ is BEGIN, ⟩ is END; real elements first, padding behind
    target   ⟨ 5 2 7 ⟩        read without ⟩, answered without ⟨

The source's ends are elements too: they are what a decoder looks at when it has to begin or to end
(without them, what ends on two equal symbols is taken to have ended a symbol earlier).

An answer counts if all of it is right, END included.  No source of one split is ever in another: a
tenth of all sources, by their checksum, is for `test`, a tenth for `valid`, the rest for `train`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE
from threefold.errors import ThreefoldError
from threefold.tasks.padding import pad_rows

BEGIN, END = 0, 1
FIRST_TOKEN = 2  # the first token that means something
DRAW_ATTEMPTS = 300  # 0.9^300 = 2e-14


@dataclass(frozen=True)
class Pairs:
    """Rows of a task; unless it has a metric of its own, an answer counts if it is exact."""

    name: str
    source: Tensor  # [N, M] int64, from BEGIN to END, 0 behind it
    target: Tensor  # [N, L] int64, from BEGIN to END, 0 behind it
    source_lengths: Tensor  # [N], BEGIN and END included
    target_lengths: Tensor  # [N], BEGIN and END included
    source_vocabulary: int
    vocabulary: int
    references: tuple[Any, ...] = ()  # what a task's own metric compares with, one for each row

    @property
    def lengths(self) -> Tensor:
        """Of sources and targets, [N, 2]."""
        return torch.stack([self.source_lengths, self.target_lengths], -1)

    @property
    def source_mask(self) -> Tensor | None:
        """True for real elements; None where all are."""
        return _mask(self.source, self.source_lengths)

    @property
    def inputs(self) -> Tensor:
        """What a decoder reads: all but the last column."""
        return self.target[:, :-1]

    @property
    def inputs_mask(self) -> Tensor | None:
        """True where something is to be answered; None where everywhere."""
        return _mask(self.inputs, self.target_lengths - 1)

    @property
    def answers(self) -> Tensor:
        """What it should answer, IGNORE behind END."""
        mask = self.inputs_mask
        answers = self.target[:, 1:]
        return answers if mask is None else answers.masked_fill(~mask, IGNORE)

    def texts(self) -> list[list[int]]:
        """The right answers, END included."""
        rows = zip(self.target.tolist(), self.target_lengths.tolist(), strict=True)
        return [row[1:n] for row, n in rows]


def pairs(
    name: str,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    source_vocabulary: int,
    vocabulary: int,
    references: Sequence[Any] = (),
) -> Pairs:
    """Rows of any lengths as tables, BEGIN and END put around each."""
    if not sources or len(sources) != len(targets) or not all(sources):
        raise ThreefoldError(
            f"{name}: {len(sources)} sources and {len(targets)} targets; expected as many of both, "
            "at least one, and no empty source"
        )
    source, source_lengths = _framed(sources)
    target, target_lengths = _framed(targets)
    return Pairs(
        name,
        source,
        target,
        source_lengths,
        target_lengths,
        source_vocabulary,
        vocabulary,
        tuple(references),
    )


def check_lengths(name: str, lengths: tuple[int, int], most: int) -> None:
    """Refuse lengths that cannot be drawn from."""
    low, high = lengths
    if not 1 <= low <= high <= most:
        raise ThreefoldError(
            f"{name}: lengths from {low} to {high}; expected lengths from 1 to {most}, the smaller "
            "first"
        )


def split_of(source: Sequence[int]) -> str:
    """Which split a source belongs to, wherever it comes from; tokens are below 256."""
    return {0: "test", 1: "valid"}.get(zlib.crc32(bytes(source)) % 10, "train")


def sources_of(
    name: str,
    split: str,
    numbers: NDArray[np.int64],
    make: Callable[[int, NDArray[np.int64]], list[list[int]]],
) -> list[list[int]]:
    """One source for each number: its first draw that belongs to the split.

    make(attempt, numbers): a draw for each number.
    """
    found: dict[int, list[int]] = {}
    for attempt in range(DRAW_ATTEMPTS):
        left = np.array([i for i in range(len(numbers)) if i not in found], dtype=np.int64)
        if not len(left):
            return [found[i] for i in range(len(numbers))]
        for place, source in zip(left.tolist(), make(attempt, numbers[left]), strict=True):
            if split_of(source) == split:
                found[place] = source
    raise ThreefoldError(
        f"{name}: there are too few different sources for {split!r}; expected longer ones, or more "
        "symbols"
    )


def _framed(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows between BEGIN and END, padded, and their lengths."""
    tokens = [np.array([BEGIN, *row, END], dtype=np.int64) for row in rows]
    table, lengths = pad_rows(tokens)
    return torch.from_numpy(table), torch.from_numpy(lengths)


def _mask(table: Tensor, lengths: Tensor) -> Tensor | None:
    if bool((lengths == table.shape[1]).all()):
        return None
    return torch.arange(table.shape[1]) < lengths.unsqueeze(1)
