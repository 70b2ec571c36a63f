"""Shuffles by address: where element i goes is computed from (address, count, i) alone.

    L, R ← R, L ⊕ h(R, key)         a few rounds: a bijection of the numbers with so many bits,
    again while the result ≥ count  so that it becomes one of the numbers below `count`

So a pass through a billion examples is shuffled without a list of a billion numbers, and resumes at
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
    address: tuple[int, ...], count: int, places: NDArray[np.int64] | range | list[int]
) -> NDArray[np.int64]:
    """The numbers at some places of a random order of 0 … count − 1."""
    asked = np.asarray(places, dtype=np.int64)
    if count < 1 or (asked.size and (asked.min() < 0 or asked.max() >= count)):
        raise ThreefoldError(
            f"places {asked[:4].tolist()} … of an order of {count}; expected 0 to {count - 1}"
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
    """Numbers of examples in batches, every pass in another order: shuffle(step) → numbers.

    With several ranks each takes its part of every batch; a rest shorter than a batch is left out.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int = 0, *, rank: int = 0, ranks: int = 1
    ) -> None:
        check_ranks(rank, ranks)
        self.steps = count // (batch_size * ranks) if batch_size > 0 else 0  # of one pass
        if self.steps == 0:
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
        epoch, place = divmod(step, self.steps)
        first = (place * self.ranks + self.rank) * self.batch_size
        return shuffled((self.seed, epoch), self.count, range(first, first + self.batch_size))


class Lengths(Protocol):
    """How long examples are: an array, or what finds them out when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: NDArray[np.int64], /) -> NDArray[np.int64]: ...


class Buckets:
    """The same with examples of similar lengths together, so that little is padding.

    Of every `window` shuffled batches the examples are sorted by length and cut anew; the batches
    come in an order of their own.
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
        self._all = Shuffle(len(lengths), batch_size, seed, rank=rank, ranks=ranks)
        self.steps = self._all.steps
        self.lengths, self.window = lengths, min(window, self.steps)
        if window < 1:
            raise ThreefoldError(f"a window of {window} batches; expected at least 1")

    def __call__(self, step: int) -> NDArray[np.int64]:
        epoch, place = divmod(step, self.steps)
        chosen = int(shuffled((self._all.seed, epoch, 1), self.steps, [place])[0])
        group, mine = divmod(chosen, self.window)
        size = self._all.batch_size * self._all.ranks
        end = min((group + 1) * self.window, self.steps) * size
        numbers = shuffled(
            (self._all.seed, epoch), self._all.count, range(group * self.window * size, end)
        )
        numbers = numbers[np.argsort(self.lengths[numbers], kind="stable")]
        return numbers[mine * size : (mine + 1) * size][self._all.rank :: self._all.ranks]


def check_ranks(rank: int, ranks: int) -> None:
    """Refuse a rank that is not there."""
    if not 0 <= rank < ranks:
        raise ThreefoldError(f"rank {rank} of {ranks}; expected 0 to {ranks - 1}")
