"""Pairs of sequences, a source and its target: what translators learn from.

    source   7 2 5            real elements first, padding behind
    target   ⟨ 5 2 7 ⟩        ⟨ is BEGIN, ⟩ is END; read without ⟩, answered without ⟨

An answer counts if all of it is right, END included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from threefold.data.stream import IGNORE
from threefold.errors import ThreefoldError

BEGIN, END = 0, 1
FIRST = 2  # the first token that means something
SOLVED = 0.98


@dataclass(frozen=True)
class Pairs:
    """Rows of a task; the score is the part of the targets that are answered exactly."""

    name: str
    source: Tensor  # [N, M] int64, 0 behind the end
    target: Tensor  # [N, L] int64, from BEGIN to END, 0 behind it
    source_lengths: Tensor  # [N]
    target_lengths: Tensor  # [N], BEGIN and END included
    source_vocabulary: int
    vocabulary: int
    solved: float = SOLVED

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

    def ended(self) -> Pairs:
        """The same rows with END behind each source, which tells a reader of places how many."""
        if bool((self.source == END).any()):
            raise ThreefoldError(f"{self.name}: the sources have an END already")
        rows = torch.arange(len(self.source))
        source = torch.cat([self.source, torch.zeros_like(self.source[:, :1])], 1)
        source[rows, self.source_lengths] = END
        return replace(self, source=source, source_lengths=self.source_lengths + 1)

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
) -> Pairs:
    """Rows of any lengths as tables, BEGIN and END put around each target."""
    if not sources or len(sources) != len(targets) or not all(sources):
        raise ThreefoldError(
            f"{name}: {len(sources)} sources and {len(targets)} targets; expected as many of both, "
            "at least one, and no empty source"
        )
    framed = [[BEGIN, *target, END] for target in targets]
    source, source_lengths = _table(sources)
    target, target_lengths = _table(framed)
    return Pairs(
        name, source, target, source_lengths, target_lengths, source_vocabulary, vocabulary
    )


def check_lengths(name: str, lengths: tuple[int, int], count: int, most: int) -> None:
    """Refuse lengths that cannot be drawn from."""
    low, high = lengths
    if not 1 <= low <= high <= most or count < 1:
        raise ThreefoldError(
            f"{name}: lengths from {low} to {high}, {count} rows; expected at least 1 row, and "
            f"lengths from 1 to {most}, the smaller first"
        )


def _table(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    lengths = [len(row) for row in rows]
    table = np.zeros((len(rows), max(lengths)), dtype=np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(table), torch.tensor(lengths)


def _mask(table: Tensor, lengths: Tensor) -> Tensor | None:
    if bool((lengths == table.shape[1]).all()):
        return None
    return torch.arange(table.shape[1]) < lengths.unsqueeze(1)
