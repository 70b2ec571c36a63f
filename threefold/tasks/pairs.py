"""Pairs of a source and its target, for sequence-to-sequence models and captioners.

    source   ⟨ 7 2 5 ⟩        ⟨ is BEGIN, ⟩ is END; padding comes at the end
    target   ⟨ 5 2 7 ⟩        without ⟩ it is the decoder's input, without ⟨ its output

The source has BEGIN and END too: a decoder attends to them when it has to begin or to end (without
them, a source that ends with two equal symbols is taken to end one symbol earlier).  The source of
a captioner is an image or a vector, without BEGIN, END and padding.

An answer counts if all of it is correct, END included.  No source of one split is in another: by
their checksum, a tenth of all sources is for `test`, a tenth for `valid`, the rest for `train`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE
from threefold.data.padding import pad_rows
from threefold.errors import ThreefoldError

BEGIN, END = 0, 1
FIRST_TOKEN = 2  # the first token that is neither BEGIN nor END
DRAW_ATTEMPTS = 300  # all of them fail with probability 0.9^300 = 2e-14


@dataclass(frozen=True)
class Pairs:
    """A batch of pairs; unless the task has its own metric, an answer counts if it is exact."""

    name: str
    source: Tensor  # [N, M] int64, from BEGIN to END, padded with 0; or images or vectors, floats
    target: Tensor  # [N, L] int64, from BEGIN to END, padded with 0
    source_lengths: Tensor | None  # [N], BEGIN and END included; None: images or vectors
    target_lengths: Tensor  # [N], BEGIN and END included
    source_vocabulary: int
    vocabulary: int
    references: tuple[Any, ...] = ()  # one per row, for the task's own metric

    @property
    def lengths(self) -> Tensor:
        """The lengths of sources and targets, [N, 2]; of images and vectors only of targets."""
        if self.source_lengths is None:
            return self.target_lengths.unsqueeze(-1)
        return torch.stack([self.source_lengths, self.target_lengths], -1)

    @property
    def source_mask(self) -> Tensor | None:
        """True for elements that are not padding; None if there is no padding."""
        return None if self.source_lengths is None else _mask(self.source, self.source_lengths)

    @property
    def inputs(self) -> Tensor:
        """The decoder's inputs: all but the last column of the target."""
        return self.target[:, :-1]

    @property
    def inputs_mask(self) -> Tensor | None:
        """True for inputs that have an answer; None if all have."""
        return _mask(self.inputs, self.target_lengths - 1)

    @property
    def answers(self) -> Tensor:
        """The decoder's targets, IGNORE after END."""
        mask = self.inputs_mask
        answers = self.target[:, 1:]
        return answers if mask is None else answers.masked_fill(~mask, IGNORE)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Pairs:
        """The pairs on a device, numbers (not tokens) of sources in `dtype` if given."""
        lengths = None if self.source_lengths is None else self.source_lengths.to(device)
        return replace(
            self,
            source=self.source.to(device, dtype if self.source.is_floating_point() else None),
            target=self.target.to(device),
            source_lengths=lengths,
            target_lengths=self.target_lengths.to(device),
        )

    def texts(self) -> list[list[int]]:
        """The correct answers as lists of tokens, END included."""
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
    """Make a batch of sources and targets of any lengths; BEGIN and END are added to each."""
    if not sources or len(sources) != len(targets) or not all(sources):
        raise ThreefoldError(
            f"{name}: {len(sources)} sources and {len(targets)} targets; expected the same number, "
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


def captions(
    name: str, sources: Tensor, targets: Sequence[Sequence[int]], vocabulary: int
) -> Pairs:
    """Make a batch of images or vectors [N, …] and texts; BEGIN and END are added to each text."""
    if len(sources) == 0 or len(sources) != len(targets):
        raise ThreefoldError(
            f"{name}: {len(sources)} sources and {len(targets)} targets; expected the same number, "
            "at least one"
        )
    target, target_lengths = _framed(targets)
    return Pairs(name, sources, target, None, target_lengths, 0, vocabulary)


def check_lengths(name: str, lengths: tuple[int, int], most: int) -> None:
    """Refuse a range of lengths that is empty or not within 1 to `most`."""
    low, high = lengths
    if not 1 <= low <= high <= most:
        raise ThreefoldError(
            f"{name}: lengths from {low} to {high}; expected lengths from 1 to {most}, the smaller "
            "first"
        )


def split_of(source: Sequence[int]) -> str:
    """The split that a source belongs to, by its checksum; tokens are below 256."""
    return {0: "test", 1: "valid"}.get(zlib.crc32(bytes(source)) % 10, "train")


def sources_of(
    name: str,
    split: str,
    numbers: NDArray[np.int64],
    make: Callable[[int, NDArray[np.int64]], list[list[int]]],
) -> list[list[int]]:
    """One source per number: its first draw that belongs to the split.

    make(attempt, numbers): one draw per number.
    """
    sources: dict[int, list[int]] = {}
    for attempt in range(DRAW_ATTEMPTS):
        left = np.array([i for i in range(len(numbers)) if i not in sources], dtype=np.int64)
        if not len(left):
            return [sources[i] for i in range(len(numbers))]
        for index, source in zip(left.tolist(), make(attempt, numbers[left]), strict=True):
            if split_of(source) == split:
                sources[index] = source
    raise ThreefoldError(
        f"{name}: too few different sources for {split!r}; expected longer sources, or more symbols"
    )


def _framed(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows between BEGIN and END, padded, and their lengths."""
    tokens = [np.array([BEGIN, *row, END], dtype=np.int64) for row in rows]
    table, lengths = pad_rows(tokens)
    return torch.from_numpy(table), torch.from_numpy(lengths)


def _mask(table: Tensor, lengths: Tensor) -> Tensor | None:
    if bool((lengths == table.shape[1]).all()):
        return None
    return torch.arange(table.shape[1], device=lengths.device) < lengths.unsqueeze(1)
