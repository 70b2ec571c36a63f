"""Shuffles by address: the position of element i is computed from (address, count, i) alone.

    L, R ← R, L ⊕ h(R, key)         a few rounds: a bijection of the numbers with that many bits,
    repeated while result ≥ count   so that it becomes a bijection of the numbers below `count`

So an epoch of a billion examples is shuffled without a list of a billion numbers, and resumes at
any of them.  Luby & Rackoff 1988, "How to Construct Pseudorandom Permutations"; Black & Rogaway
2002, "Ciphers with Arbitrary Finite Domains" (walking the cycle).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from threefold.data.random_by_address import splitmix64
from threefold.errors import ThreefoldError

FEISTEL_ROUNDS = 8


def shuffled(
    address: tuple[int, ...], count: int, positions: NDArray[np.int64] | range | list[int]
) -> NDArray[np.int64]:
    """The numbers at some positions of a random order of 0 … count − 1."""
    asked = np.asarray(positions, dtype=np.int64)
    if count < 1 or (asked.size and (asked.min() < 0 or asked.max() >= count)):
        raise ThreefoldError(
            f"positions {asked[:4].tolist()} … in an order of {count}; expected 0 to {count - 1}"
        )
    half = max(1, -(-(count - 1).bit_length() // 2))
    keys = (
        np.random.SeedSequence(address).generate_state(FEISTEL_ROUNDS, np.uint64).astype(np.uint64)
    )
    numbers = _rounds(asked.astype(np.uint64), half, keys)
    outside = np.flatnonzero(numbers >= count)
    while len(outside):
        numbers[outside] = _rounds(numbers[outside], half, keys)
        outside = outside[numbers[outside] >= count]
    return numbers.astype(np.int64)


def _rounds(numbers: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits, low = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = numbers >> bits, numbers & low
    for key in keys:
        left, right = right, left ^ (splitmix64(right + key) & low)
    return (left << bits) | right


class Shuffle:
    """Numbers of examples in batches, every epoch in another order: shuffle(step) → numbers.

    Each of several ranks takes its part of every batch.  A last batch that would be incomplete is
    left out.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int = 0, *, rank: int = 0, ranks: int = 1
    ) -> None:
        check_ranks(rank, ranks)
        self.steps_per_epoch = count // (batch_size * ranks) if batch_size > 0 else 0
        if self.steps_per_epoch == 0:
            raise ThreefoldError(
                f"batches of {batch_size} for {ranks} ranks from {count} examples; expected at "
                "least one batch"
            )
        self.count, self.batch_size, self.seed, self.rank, self.ranks = (
            count,
            batch_size,
            seed,
            rank,
            ranks,
        )

    def __call__(self, step: int) -> NDArray[np.int64]:
        epoch, index = divmod(step, self.steps_per_epoch)
        first = (index * self.ranks + self.rank) * self.batch_size
        return shuffled((self.seed, epoch), self.count, range(first, first + self.batch_size))


class Lengths(Protocol):
    """The lengths of examples: an array, or an object that computes them on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: NDArray[np.int64], /) -> NDArray[np.int64]: ...


class Buckets:
    """As `Shuffle`, with examples of similar lengths together, so that there is little padding.

    The examples of every `window` shuffled batches are sorted by length and cut into new batches,
    which come in a random order.
    """

    def __init__(
        self,
        lengths: Lengths,
        batch_size: int,
        seed: int = 0,
        *,
        window: int = 32,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._shuffle = Shuffle(len(lengths), batch_size, seed, rank=rank, ranks=ranks)
        self.steps_per_epoch = self._shuffle.steps_per_epoch
        self.lengths, self.window = lengths, min(window, self.steps_per_epoch)
        if window < 1:
            raise ThreefoldError(f"a window of {window} batches; expected at least 1")

    def __call__(self, step: int) -> NDArray[np.int64]:
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = int(shuffled((self._shuffle.seed, epoch, 1), self.steps_per_epoch, [index])[0])
        group, inside = divmod(batch, self.window)
        size = self._shuffle.batch_size * self._shuffle.ranks
        end = min((group + 1) * self.window, self.steps_per_epoch) * size
        numbers = shuffled(
            (self._shuffle.seed, epoch), self._shuffle.count, range(group * self.window * size, end)
        )
        numbers = numbers[np.argsort(self.lengths[numbers], kind="stable")]
        return numbers[inside * size : (inside + 1) * size][
            self._shuffle.rank :: self._shuffle.ranks
        ]


def check_ranks(rank: int, ranks: int) -> None:
    """Refuse a rank that does not exist."""
    if not 0 <= rank < ranks:
        raise ThreefoldError(f"rank {rank} of {ranks}; expected 0 to {ranks - 1}")
