"""Tokens cut into batches, addressed by step: batches(step) is the same whatever came before.

A loader has no position of its own, so training resumes at any step by asking for that step.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.random_by_address import integers, permutation
from threefold.data.shuffling import check_ranks
from threefold.errors import ThreefoldError

STEPS_PER_DRAW = 64  # steps whose windows are drawn at once
IGNORE = -100  # a target that does not count
Tokens: TypeAlias = NDArray[np.integer[Any]]


class Batch(NamedTuple):
    """What a model reads, what it should answer, and which rows begin anew."""

    inputs: Tensor  # [B, L] int64, or numbers [B, L, features]
    targets: Tensor  # [B, L] int64, or one for each row, or numbers; IGNORE, NaN do not count
    starts: Tensor  # [B] bool: a document begins here, a carried state must be emptied
    lengths: Tensor | None = (
        None  # [B] int64: real elements of each row; of pairs [B, 2]; None: all
    )

    @property
    def mask(self) -> Tensor | None:
        """True for real elements [B, L], of pairs [B, 2, L]; None where all are."""
        if self.lengths is None:
            return None
        length = self.inputs.shape[self.lengths.ndim]
        if bool((self.lengths == length).all()):
            return None
        return torch.arange(length) < self.lengths.unsqueeze(-1)


Batches: TypeAlias = Callable[[int], Batch]


class TokenStream:
    """Parallel lanes through a text, in pieces that follow one another: state can be carried.

        tokens   a b c d e f g h i j k l m      batch 2, length 3
        step 0   a b c   g h i                  step 1   d e f   j k l

    Targets are the next tokens.  Every pass through the text begins at another place, drawn from
    (seed, pass), and goes round; the lanes start anew with it.  Of several ranks each has
    `batch_size` lanes of its own.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        seed: int = 0,
        *,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        check_ranks(rank, ranks)
        taken = batch_size * ranks * length
        self.pieces = (len(tokens) - 1) // taken if taken > 0 else 0
        if self.pieces == 0:
            raise ThreefoldError(_too_short("a stream", len(tokens), taken + 1))
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.rank = rank
        self._text = _Text(tokens, length + 1)

    def __call__(self, step: int) -> Batch:
        epoch, piece = divmod(step, self.pieces)
        lanes = (np.arange(self.batch_size) + self.rank * self.batch_size) * (
            self.pieces * self.length
        )
        first = self._offset(epoch) + lanes + piece * self.length
        starts = torch.full((self.batch_size,), piece == 0)
        return self._text.cut(first, starts)

    def _offset(self, epoch: int) -> int:
        # The first pass begins at the beginning: validation reads the text as it is written.
        return int(integers((self.seed, epoch), len(self.tokens), 1)[0]) if epoch else 0


class Windows:
    """Random windows of a text, drawn with replacement from (seed, step); each rank has its own."""

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        seed: int = 0,
        *,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        check_ranks(rank, ranks)
        if batch_size < 1 or length < 1 or len(tokens) <= length:
            raise ThreefoldError(_too_short("a window", len(tokens), max(length, 1) + 1))
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.rank, self.ranks = rank, ranks
        self._text = _Text(tokens, length + 1)
        self._places: tuple[int, list[NDArray[np.int64]]] | None = None  # kept for speed only

    def __call__(self, step: int) -> Batch:
        block, place = divmod(step, STEPS_PER_DRAW)
        if self._places is None or self._places[0] != block:
            self._places = block, self._drawn(block)
        first = self._places[1][place]
        self._text.announce(first)
        return self._text.cut(first, torch.ones(self.batch_size, dtype=torch.bool))

    def _drawn(self, block: int) -> list[NDArray[np.int64]]:
        """Places of `STEPS_PER_DRAW` steps: one after another they take half the time."""
        places, count = len(self.tokens) - self.length, self.batch_size * self.ranks
        steps = range(block * STEPS_PER_DRAW, (block + 1) * STEPS_PER_DRAW)
        mine = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        return [integers((self.seed, step), places, count)[mine] for step in steps]


class Examples:
    """Rows of a set of examples, every pass in another order, drawn from (seed, pass)."""

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int, seed: int = 0) -> None:
        # Steps of one pass; a rest shorter than a batch is left out.
        self.steps = len(inputs) // batch_size if batch_size > 0 else 0
        if self.steps == 0 or len(inputs) != len(targets):
            raise ThreefoldError(
                f"batches of {batch_size} from {len(inputs)} inputs and {len(targets)} targets: "
                "expected as many inputs as targets, and at least one batch of them"
            )
        self.inputs, self.targets, self.batch_size, self.seed = inputs, targets, batch_size, seed
        self._order: tuple[int, Tensor] | None = None  # the newest pass's, kept for speed only

    def __call__(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps)
        rows = self._shuffled(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        starts = torch.ones(self.batch_size, dtype=torch.bool)
        return Batch(self.inputs[rows], self.targets[rows], starts)

    def _shuffled(self, epoch: int) -> Tensor:
        if self._order is None or self._order[0] != epoch:
            order = permutation((self.seed, epoch), len(self.inputs))
            self._order = (epoch, torch.from_numpy(order))
        return self._order[1]


class _Text:
    """Windows of so many tokens, from any place on; what is the same for all is found once."""

    def __init__(self, tokens: Tokens, size: int) -> None:
        # Indexing a mapped array wraps every part of it anew, which costs more than the reading.
        self.plain, self.size = np.asarray(tokens), size
        self.windows = sliding_window_view(self.plain, size) if len(tokens) >= size else None
        self.mapped, self.begin = _place_in_file(tokens)

    def cut(self, first: NDArray[np.int64], starts: Tensor) -> Batch:
        """Windows from `first` on, round the end, as inputs and next tokens."""
        count = len(self.plain)
        if self.windows is not None and int(first.max()) <= count - self.size:
            found = self.windows[first]
        else:
            found = self.plain[(first[:, None] + np.arange(self.size)) % count]
        rows = torch.from_numpy(found.astype(np.int64))
        return Batch(rows[:, :-1], rows[:, 1:], starts)

    def announce(self, first: NDArray[np.int64]) -> None:
        """Ask for all windows of a mapped file at once: a disk reads them side by side."""
        if self.mapped is None:
            return
        item = self.plain.itemsize
        for start in (self.begin + first * item).tolist():
            page = start - start % mmap.PAGESIZE
            self.mapped.madvise(mmap.MADV_WILLNEED, page, start + self.size * item - page)


def _place_in_file(tokens: Tokens) -> tuple[Any, int]:
    """The map that tokens lie in and at which byte of it, None where there is nothing to ask."""
    mapped: Any = getattr(tokens, "_mmap", None) if tokens.flags.c_contiguous else None
    if not isinstance(tokens, np.memmap) or mapped is None or not hasattr(mmap, "MADV_WILLNEED"):
        return None, 0
    whole: Any = tokens
    while isinstance(whole.base, np.memmap):  # a part of a file knows only where the file begins
        whole = whole.base
    behind = tokens.ctypes.data - whole.ctypes.data
    return mapped, int(whole.offset % mmap.ALLOCATIONGRANULARITY + behind)


def _too_short(what: str, given: int, needed: int) -> str:
    return f"{what} needs at least one row of one token, and {needed} tokens in all; given {given}"
