"""Documents cut into chunks, addressed by step; no document sees another one.

    documents   a b c d e | f g h | i j           chunks of 3 in 2 lanes
    step 0      a b c       f g                   starts: both
    step 1      d           i                     starts: the second; d continues a b c

Lanes carry their state from step to step and reset it where `starts` is True.  A document always
begins at the start of a chunk; chunks that are too short are padded at the end (`lengths`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.data.loaders import IGNORE, Batch, Tokens
from threefold.data.shuffling import shuffled
from threefold.errors import ThreefoldError

Positions = NDArray[np.int64]


class DocumentChunks:
    """Documents cut into chunks of at most `length` inputs, numbered in the order of the text.

    The last token of a document is only a target, so documents of one token are left out.
    """

    def __init__(self, tokens: Tokens, starts: Positions, length: int) -> None:
        first, sizes = _documents(tokens, starts)
        self.tokens, self.length = tokens, length
        self.first, self.sizes = first[sizes > 1], sizes[sizes > 1] - 1  # inputs of each document
        self.counts = -(-self.sizes // max(length, 1))  # chunks of each document
        self.ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def rows(self, numbers: Positions) -> Batch:
        """The chunks with these numbers, each by itself."""
        document = np.searchsorted(self.ends, numbers, side="right")
        inside = numbers - (self.ends - self.counts)[document]
        return self.cut(document, inside, np.ones(len(numbers), bool))

    def cut(self, document: Positions, inside: Positions, starts: NDArray[np.bool_]) -> Batch:
        """Chunk `inside` of each document."""
        begin = self.first[document] + inside * self.length
        lengths = np.minimum(self.length, self.sizes[document] - inside * self.length)
        positions = np.minimum(begin[:, None] + np.arange(self.length + 1), len(self.tokens) - 1)
        rows = torch.from_numpy(self.tokens[positions].astype(np.int64))
        real = torch.from_numpy(np.arange(self.length) < lengths[:, None])
        inputs = torch.where(real, rows[:, :-1], 0)
        targets = torch.where(real, rows[:, 1:], IGNORE)
        return Batch(inputs, targets, torch.from_numpy(starts), torch.from_numpy(lengths))


class Documents:
    """Chunks of documents in lanes; every epoch has the documents in another order."""

    def __init__(
        self, tokens: Tokens, starts: Positions, batch_size: int, length: int, seed: int = 0
    ) -> None:
        self.chunks = DocumentChunks(tokens, starts, length)
        self.batch_size, self.seed = batch_size, seed
        possible = batch_size > 0 and length > 0
        self.steps_per_epoch = len(self.chunks) // batch_size if possible else 0
        if self.steps_per_epoch == 0:
            raise ThreefoldError(
                f"{batch_size} lanes of chunks of {length} tokens from {len(self.chunks.first)} "
                f"documents with {len(self.chunks)} chunks; expected at least one chunk per lane"
            )
        # Of the newest epoch, for speed.
        self._order: tuple[int, Positions, Positions] | None = None

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        order, ends = self._order_of(epoch)
        chunk = np.arange(self.batch_size) * self.steps_per_epoch + index
        slot = np.searchsorted(ends, chunk, side="right")
        document = order[slot]
        inside = chunk - (ends[slot] - self.chunks.counts[document])
        return self.chunks.cut(document, inside, (inside == 0) | (index == 0))

    def _order_of(self, epoch: int) -> tuple[Positions, Positions]:
        """Documents in the order of an epoch, and the number of chunks up to the end of each."""
        if self._order is None or self._order[0] != epoch:
            count = len(self.chunks.first)
            order = shuffled((self.seed, epoch), count, np.arange(count))
            self._order = epoch, order, np.cumsum(self.chunks.counts[order])
        return self._order[1], self._order[2]


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
