"""Loaders: tokens cut into batches that are addressed by step.

loader(step) depends on the step alone.  A loader has no position of its own, so training resumes at
any step by asking for that step.
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

from threefold.data.random_by_address import integers
from threefold.data.shuffling import Shuffle
from threefold.errors import ThreefoldError

STEPS_PER_DRAW = 64  # the windows of so many steps are drawn together
IGNORE = -100  # a target that counts neither for the loss nor for the score
Tokens: TypeAlias = NDArray[np.integer[Any]]


class Batch(NamedTuple):
    """Inputs, targets, and which rows begin a new sequence."""

    inputs: Tensor  # [B, L] int64, or numbers [B, L, features]
    targets: Tensor  # [B, L] int64, or one per row, or numbers; IGNORE and NaN do not count
    starts: Tensor  # [B] bool: a sequence begins here, a carried state must be reset
    lengths: Tensor | None = (
        None  # [B] int64: elements without padding; of pairs [B, 2]; None: no padding
    )
    weights: Tensor | None = None  # [B]: how much each row counts in training; None: all the same
    # [B, L] int64: the places of predicted elements in a factorisation order, 0: given (XLNet)
    ranks: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """True for elements that are not padding [B, L], of pairs [B, 2, L]; None: no padding."""
        if self.lengths is None:
            return None
        length = self.inputs.shape[self.lengths.ndim]
        if bool((self.lengths == length).all()):
            return None
        return torch.arange(length, device=self.lengths.device) < self.lengths.unsqueeze(-1)

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> Batch:
        """The batch on a device, its numbers (not its tokens) in `dtype` if given."""
        inputs, targets = (
            part.to(device, dtype if part.is_floating_point() else None)
            for part in (self.inputs, self.targets)
        )
        more = (self.lengths, self.weights, self.ranks)
        lengths, weights, ranks = (None if part is None else part.to(device) for part in more)
        return Batch(inputs, targets, self.starts.to(device), lengths, weights, ranks)


Batches: TypeAlias = Callable[[int], Batch]


class TokenStream:
    """Parallel lanes through a text, chunk after chunk, so that the state can be carried.

        tokens   a b c d e f g h i j k l m      batch_size 2, length 3
        step 0   a b c   g h i                  step 1   d e f   j k l

    Targets are the next tokens.  Every epoch begins at another position, drawn from (seed, epoch),
    and wraps around; all lanes restart with it.  reset_every: batches after which a lane restarts
    with an empty state, each at another time; None: only with an epoch.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        seed: int = 0,
        reset_every: int | None = None,
    ) -> None:
        taken = batch_size * length
        self.steps_per_epoch = (len(tokens) - 1) // taken if taken > 0 else 0
        if self.steps_per_epoch == 0:
            raise ThreefoldError(_too_short("a token stream", len(tokens), taken + 1))
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self.reset_every = reset_every
        self._text = _Text(tokens, length + 1)

    def __call__(self, step: int) -> Batch:
        epoch, chunk = divmod(step, self.steps_per_epoch)
        lanes = np.arange(self.batch_size) * (self.steps_per_epoch * self.length)
        first = self._offset(epoch) + lanes + chunk * self.length
        starts = torch.full((self.batch_size,), chunk == 0)
        if self.reset_every is not None:
            delays = torch.arange(self.batch_size) * self.reset_every // self.batch_size
            starts |= (chunk + delays) % self.reset_every == 0
        return self._text.cut(first, starts)

    def _offset(self, epoch: int) -> int:
        # The first epoch begins at the beginning: validation reads the text in its order.
        return int(integers((self.seed, epoch), len(self.tokens), 1)[0]) if epoch else 0


class Windows:
    """Random windows of a text, drawn with replacement from (seed, step)."""

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        seed: int = 0,
    ) -> None:
        if batch_size < 1 or length < 1 or len(tokens) <= length:
            raise ThreefoldError(_too_short("a window", len(tokens), max(length, 1) + 1))
        self.tokens, self.batch_size, self.length, self.seed = tokens, batch_size, length, seed
        self._text = _Text(tokens, length + 1)
        self._starts: tuple[int, list[NDArray[np.int64]]] | None = None  # cached for speed

    def __call__(self, step: int) -> Batch:
        block, index = divmod(step, STEPS_PER_DRAW)
        if self._starts is None or self._starts[0] != block:
            self._starts = block, self._drawn(block)
        first = self._starts[1][index]
        self._text.announce(first)
        return self._text.cut(first, torch.ones(self.batch_size, dtype=torch.bool))

    def _drawn(self, block: int) -> list[NDArray[np.int64]]:
        """Window starts of `STEPS_PER_DRAW` steps: drawn in a row they take half the time."""
        starts = len(self.tokens) - self.length
        steps = range(block * STEPS_PER_DRAW, (block + 1) * STEPS_PER_DRAW)
        return [integers((self.seed, step), starts, self.batch_size) for step in steps]


class Examples:
    """Examples in batches; every epoch in another order, as `Shuffle`."""

    def __init__(self, inputs: Tensor, targets: Tensor, batch_size: int, seed: int = 0) -> None:
        if len(inputs) != len(targets):
            raise ThreefoldError(
                f"{len(inputs)} inputs and {len(targets)} targets; expected at least one of each, "
                "and as many inputs as targets"
            )
        self.inputs, self.targets = inputs, targets
        self._numbers = Shuffle(len(inputs), batch_size, seed)
        self.steps_per_epoch = self._numbers.steps_per_epoch

    def __call__(self, step: int) -> Batch:
        rows = torch.from_numpy(self._numbers(step))
        return Batch(self.inputs[rows], self.targets[rows], torch.ones(len(rows)).bool())


class _Text:
    """Windows of `size` tokens from any position; what all of them share is computed once."""

    def __init__(self, tokens: Tokens, size: int) -> None:
        # Indexing a memory-mapped array wraps every result again, which costs more than reading.
        self.plain, self.size = np.asarray(tokens), size
        self.windows = sliding_window_view(self.plain, size) if len(tokens) >= size else None
        self.mapped, self.begin = _position_in_file(tokens)

    def cut(self, first: NDArray[np.int64], starts: Tensor) -> Batch:
        """Windows that begin at `first`, wrapping around the end, as inputs and next tokens."""
        count = len(self.plain)
        if self.windows is not None and int(first.max()) <= count - self.size:
            windows = self.windows[first]
        else:
            windows = self.plain[(first[:, None] + np.arange(self.size)) % count]
        rows = torch.from_numpy(windows.astype(np.int64))
        return Batch(rows[:, :-1], rows[:, 1:], starts)

    def announce(self, first: NDArray[np.int64]) -> None:
        """Tell the system which parts of a mapped file come next, so that it reads them at once."""
        if self.mapped is None:
            return
        item = self.plain.itemsize
        for start in (self.begin + first * item).tolist():
            page = start - start % mmap.PAGESIZE
            self.mapped.madvise(mmap.MADV_WILLNEED, page, start + self.size * item - page)


def _position_in_file(tokens: Tokens) -> tuple[Any, int]:
    """The memory map of tokens and their first byte in it; None if they are not mapped."""
    mapped: Any = getattr(tokens, "_mmap", None) if tokens.flags.c_contiguous else None
    if not isinstance(tokens, np.memmap) or mapped is None or not hasattr(mmap, "MADV_WILLNEED"):
        return None, 0
    file: Any = tokens
    while isinstance(file.base, np.memmap):  # a slice has the offset of its file, not its own
        file = file.base
    inside = tokens.ctypes.data - file.ctypes.data
    return mapped, int(file.offset % mmap.ALLOCATIONGRANULARITY + inside)


def _too_short(what: str, count: int, needed: int) -> str:
    return (
        f"{what} needs batch_size and length of at least one and {needed} tokens; the text has "
        f"{count}"
    )
