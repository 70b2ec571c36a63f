"""Documents cut or packed into rows, addressed by step; no document sees another one.

    documents   a b c d e | f g h | i j           chunks of 3 in 2 lanes
    step 0      a b c       f g                   starts: both
    step 1      d           i                     starts: the second; d continues a b c

Lanes carry their state from step to step and reset it where `starts` is True.  A document always
begins at the start of a chunk; chunks that are too short are padded at the end (`lengths`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE, Batch, Tokens
from threefold.data.shuffling import check_ranks, shuffled
from threefold.errors import ThreefoldError

Positions = NDArray[np.int64]


class Documents:
    """Chunks of documents in lanes; every epoch has the documents in another order.

    The last token of a document is only a target, so documents of one token are left out.
    """

    def __init__(
        self,
        tokens: Tokens,
        starts: Positions,
        batch_size: int,
        length: int,
        seed: int = 0,
        *,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        check_ranks(rank, ranks)
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.rank, self.lanes = rank, batch_size * ranks
        first, sizes = _documents(tokens, starts)
        self.first, self.sizes = first[sizes > 1], sizes[sizes > 1] - 1  # inputs of each document
        self._chunks = -(-self.sizes // max(length, 1))  # of each document
        self.steps_per_epoch = (
            int(self._chunks.sum()) // self.lanes if batch_size > 0 and length > 0 else 0
        )
        if self.steps_per_epoch == 0:
            raise ThreefoldError(
                f"{self.lanes} lanes of chunks of {length} tokens from {len(self.first)} documents "
                f"with {int(self._chunks.sum())} chunks; expected at least one chunk per lane"
            )
        self._order: tuple[int, Positions, Positions] | None = (
            None  # of the newest epoch, cached for speed
        )

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        order, ends = self._order_of(epoch)
        lanes = np.arange(self.batch_size) + self.rank * self.batch_size
        chunk = lanes * self.steps_per_epoch + index
        slot = np.searchsorted(ends, chunk, side="right")
        document = order[slot]
        inside = chunk - (ends[slot] - self._chunks[document])
        begin = self.first[document] + inside * self.length
        lengths = np.minimum(self.length, self.sizes[document] - inside * self.length)
        starts = torch.from_numpy((inside == 0) | (index == 0))
        return _rows(self.tokens, begin, lengths, self.length, starts)

    def _order_of(self, epoch: int) -> tuple[Positions, Positions]:
        """Documents in the order of an epoch, and the number of chunks up to the end of each."""
        if self._order is None or self._order[0] != epoch:
            count = len(self.first)
            order = shuffled((self.seed, epoch), count, np.arange(count))
            self._order = epoch, order, np.cumsum(self._chunks[order])
        return self._order[1], self._order[2]


class Pack(NamedTuple):
    """Rows of several documents one after another."""

    inputs: Tensor  # [B, L] int64, padded with 0
    targets: Tensor  # [B, L]; IGNORE at the end of a document and for padding
    starts: Tensor  # [B, L] bool: a document begins here
    lengths: Tensor  # [B] tokens without padding

    @property
    def mask(self) -> Tensor:
        """True for elements that are not padding [B, L]."""
        return torch.arange(self.inputs.shape[1]) < self.lengths.unsqueeze(1)


class Packed:
    """Whole documents packed tightly into rows of `length`; rows come in a shuffled order.

    A document longer than a row is cut into several independent ones.
    """

    def __init__(
        self,
        tokens: Tokens,
        starts: Positions,
        batch_size: int,
        length: int,
        seed: int = 0,
        *,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        check_ranks(rank, ranks)
        if length < 1:
            raise ThreefoldError(f"rows of {length} tokens; expected at least 1")
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.rank, self.ranks = rank, ranks
        first, sizes = _cut_long(*_documents(tokens, starts), length)
        self.rows = pack(sizes, length)
        self.first, self.sizes = first, sizes
        self.steps_per_epoch = len(self.rows) // (batch_size * ranks) if batch_size > 0 else 0
        if self.steps_per_epoch == 0:
            raise ThreefoldError(
                f"batches of {batch_size} rows for {ranks} ranks from {len(self.rows)} rows of "
                f"{length} tokens; expected at least one batch"
            )

    def __call__(self, step: int) -> Pack:
        epoch, index = divmod(step, self.steps_per_epoch)
        begin = (index * self.ranks + self.rank) * self.batch_size
        chosen = shuffled((self.seed, epoch), len(self.rows), range(begin, begin + self.batch_size))
        inputs = np.zeros((self.batch_size, self.length), np.int64)
        targets = np.full((self.batch_size, self.length), IGNORE, np.int64)
        starts = np.zeros((self.batch_size, self.length), bool)
        lengths = np.zeros(self.batch_size, np.int64)
        for row, number in enumerate(chosen):
            end = 0
            for document in self.rows[number]:
                first, size = self.first[document], self.sizes[document]
                text = self.tokens[first : first + size]
                inputs[row, end : end + size] = text
                targets[row, end : end + size - 1] = text[1:]
                starts[row, end] = True
                end += int(size)
            lengths[row] = end
        return Pack(*map(torch.from_numpy, (inputs, targets, starts, lengths)))


def pack(sizes: Positions, length: int) -> list[list[int]]:
    """The documents of each row, so that a row has at most `length` tokens.

    Best fit by decreasing size: at most 11/9 of the optimum plus a constant (Johnson 1973).
    """
    room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by their free space
    rows: list[list[int]] = []
    for document in np.argsort(-sizes, kind="stable"):
        size = int(sizes[document])
        fit = next((left for left in range(size, length) if room[left]), length)
        if fit == length:
            rows.append([])
        row = room[fit].pop() if fit < length else len(rows) - 1
        rows[row].append(int(document))
        room[fit - size].append(row)
    return rows


def _documents(tokens: Tokens, starts: Positions) -> tuple[Positions, Positions]:
    """Start positions and sizes; without any start, all tokens are one document."""
    first = np.asarray(starts, dtype=np.int64)
    if len(first) == 0:
        first = np.zeros(1, np.int64)
    sizes = np.diff(np.append(first, len(tokens)))
    if first[0] != 0 or (sizes < 0).any():
        raise ThreefoldError(
            f"documents begin at {first[:4].tolist()} … of {len(tokens)} tokens; expected "
            "increasing positions, the first of them 0"
        )
    return first, sizes


def _cut_long(first: Positions, sizes: Positions, length: int) -> tuple[Positions, Positions]:
    """Documents longer than `length` cut into several; empty ones left out."""
    counts = -(-sizes // length)
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(first, counts) + inside * length
    return begin, np.minimum(length, np.repeat(sizes, counts) - inside * length)


def _rows(
    tokens: Tokens, begin: Positions, lengths: Positions, length: int, starts: Tensor
) -> Batch:
    positions = begin[:, None] + np.arange(length + 1)
    rows = torch.from_numpy(tokens[np.minimum(positions, len(tokens) - 1)].astype(np.int64))
    real = torch.from_numpy(np.arange(length) < lengths[:, None])
    inputs = torch.where(real, rows[:, :-1], 0)
    targets = torch.where(real, rows[:, 1:], IGNORE)
    return Batch(inputs, targets, starts, torch.from_numpy(lengths))
