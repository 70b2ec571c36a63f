"""Shuffles by address: the position of element i is computed from (address, count, i) alone.

    L, R ← R, L ⊕ h(R, key)         a few rounds: a bijection of the numbers with that many bits,
    repeated while result ≥ count   so that it becomes a bijection of the numbers below `count`

So a few numbers of a random order are known without making all of it: `shuffled`.  Batches of whole
epochs are `Shuffle`, or by length `Buckets`.
Luby & Rackoff 1988, "How to Construct Pseudorandom Permutations"; Black & Rogaway 2002, "Ciphers
with Arbitrary Finite Domains" (walking the cycle).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from threefold.data.random_by_address import permutation, splitmix64
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

    The order is drawn from (seed, epoch).  A last batch that would be incomplete is left out.
    """

    def __init__(self, count: int, batch_size: int, seed: int = 0) -> None:
        self.steps_per_epoch = count // batch_size if batch_size > 0 else 0
        if self.steps_per_epoch == 0:
            raise ThreefoldError(
                f"batches of {batch_size} from {count} examples; expected at least one batch"
            )
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self._order: tuple[int, NDArray[np.int64]] | None = None  # of the newest epoch, for speed

    def __call__(self, step: int) -> NDArray[np.int64]:
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, permutation((self.seed, epoch), self.count)
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size]


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
        self, lengths: Lengths, batch_size: int, seed: int = 0, *, window: int = 32
    ) -> None:
        self.steps_per_epoch = Shuffle(len(lengths), batch_size).steps_per_epoch
        if window < 1:
            raise ThreefoldError(f"a window of {window} batches; expected at least 1")
        self.lengths, self.batch_size, self.seed = lengths, batch_size, seed
        self.window = min(window, self.steps_per_epoch)

    def __call__(self, step: int) -> NDArray[np.int64]:
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = int(shuffled((self.seed, epoch, 1), self.steps_per_epoch, [index])[0])
        group, inside = divmod(batch, self.window)
        first = group * self.window * self.batch_size
        end = min((group + 1) * self.window, self.steps_per_epoch) * self.batch_size
        numbers = shuffled((self.seed, epoch), len(self.lengths), range(first, end))
        numbers = numbers[np.argsort(self.lengths[numbers], kind="stable")]
        return numbers[inside * self.batch_size : (inside + 1) * self.batch_size]
