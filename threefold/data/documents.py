"""Documents cut or packed into rows, addressed by step; none ever sees what stood before it.

    documents   a b c d e | f g h | i j           pieces of 3 in 2 lanes
    step 0      a b c       f g                   starts: both
    step 1      d           i                     starts: the second; d goes on from a b c

Lanes carry their state from step to step and empty it where `starts` says so: a document begins at
the border of a piece, always, and what is short is filled up behind `lengths`.
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

Places = NDArray[np.int64]


class Documents:
    """Pieces of documents in lanes; the documents of every pass come in another order.

    A document's last token is only ever a target, so one of a single token is left out.
    """

    def __init__(
        self,
        tokens: Tokens,
        starts: Places,
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
        self._count = -(-self.sizes // max(length, 1))
        self.pieces = int(self._count.sum()) // self.lanes if batch_size > 0 and length > 0 else 0
        if self.pieces == 0:
            raise ThreefoldError(
                f"{self.lanes} lanes of pieces of {length} from {len(self.first)} documents with "
                f"{int(self._count.sum())} pieces; expected at least one for each lane"
            )
        self._order: tuple[int, Places, Places] | None = None  # of the newest pass, for speed only

    def __call__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.pieces)
        order, ends = self._pass(epoch)
        lanes = np.arange(self.batch_size) + self.rank * self.batch_size
        piece = lanes * self.pieces + place
        slot = np.searchsorted(ends, piece, side="right")
        document = order[slot]
        inside = piece - (ends[slot] - self._count[document])
        begin = self.first[document] + inside * self.length
        lengths = np.minimum(self.length, self.sizes[document] - inside * self.length)
        starts = torch.from_numpy((inside == 0) | (place == 0))
        return _rows(self.tokens, begin, lengths, self.length, starts)

    def _pass(self, epoch: int) -> tuple[Places, Places]:
        """Documents in the order of a pass, and how many pieces there are up to each one's end."""
        if self._order is None or self._order[0] != epoch:
            count = len(self.first)
            order = shuffled((self.seed, epoch), count, np.arange(count))
            self._order = epoch, order, np.cumsum(self._count[order])
        return self._order[1], self._order[2]


class Pack(NamedTuple):
    """Rows that hold several documents one after another."""

    inputs: Tensor  # [B, L] int64, 0 behind the last
    targets: Tensor  # [B, L]; IGNORE at a document's end and behind the last
    starts: Tensor  # [B, L] bool: a document begins; `training.truncated.cut` cuts there
    lengths: Tensor  # [B] tokens that are real

    @property
    def mask(self) -> Tensor:
        """True for real elements [B, L]."""
        return torch.arange(self.inputs.shape[1]) < self.lengths.unsqueeze(1)


class Packed:
    """Whole documents packed into rows of `length`, the fullest first, rows in a shuffled order.

    A document longer than a row is cut into several, which know nothing of each other.
    """

    def __init__(
        self,
        tokens: Tokens,
        starts: Places,
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
        first, sizes = _pieces(*_documents(tokens, starts), length)
        self.rows = pack(sizes, length)
        self.first, self.sizes = first, sizes
        self.steps = len(self.rows) // (batch_size * ranks) if batch_size > 0 else 0
        if self.steps == 0:
            raise ThreefoldError(
                f"batches of {batch_size} rows for {ranks} ranks from {len(self.rows)} rows of "
                f"{length} tokens; expected at least one batch"
            )

    def __call__(self, step: int) -> Pack:
        epoch, place = divmod(step, self.steps)
        begin = (place * self.ranks + self.rank) * self.batch_size
        chosen = shuffled((self.seed, epoch), len(self.rows), range(begin, begin + self.batch_size))
        inputs = np.zeros((self.batch_size, self.length), np.int64)
        targets = np.full((self.batch_size, self.length), IGNORE, np.int64)
        starts = np.zeros((self.batch_size, self.length), bool)
        lengths = np.zeros(self.batch_size, np.int64)
        for row, number in enumerate(chosen):
            place = 0
            for document in self.rows[number]:
                first, size = self.first[document], self.sizes[document]
                text = self.tokens[first : first + size]
                inputs[row, place : place + size] = text
                targets[row, place : place + size - 1] = text[1:]
                starts[row, place] = True
                place += int(size)
            lengths[row] = place
        return Pack(*map(torch.from_numpy, (inputs, targets, starts, lengths)))


def pack(sizes: Places, length: int) -> list[list[int]]:
    """Numbers of documents for each row, so that a row holds at most `length` tokens.

    Best fit by decreasing size: at most 11/9 of the fewest rows, and a little (Johnson 1973).
    """
    room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by how much fits into them
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


def _documents(tokens: Tokens, starts: Places) -> tuple[Places, Places]:
    """First places and sizes; without any mark all of it is one document."""
    first = np.asarray(starts, dtype=np.int64)
    if len(first) == 0:
        first = np.zeros(1, np.int64)
    sizes = np.diff(np.append(first, len(tokens)))
    if first[0] != 0 or (sizes < 0).any():
        raise ThreefoldError(
            f"documents begin at {first[:4].tolist()} … of {len(tokens)} tokens; expected 0 first, "
            "and then larger places"
        )
    return first, sizes


def _pieces(first: Places, sizes: Places, length: int) -> tuple[Places, Places]:
    """Documents longer than `length` cut into several; empty ones left out."""
    counts = -(-sizes // length)
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = np.repeat(first, counts) + inside * length
    return begin, np.minimum(length, np.repeat(sizes, counts) - inside * length)


def _rows(tokens: Tokens, begin: Places, lengths: Places, length: int, starts: Tensor) -> Batch:
    places = begin[:, None] + np.arange(length + 1)
    rows = torch.from_numpy(tokens[np.minimum(places, len(tokens) - 1)].astype(np.int64))
    real = torch.from_numpy(np.arange(length) < lengths[:, None])
    inputs = torch.where(real, rows[:, :-1], 0)
    targets = torch.where(real, rows[:, 1:], IGNORE)
    return Batch(inputs, targets, starts, torch.from_numpy(lengths))
