"""Random numbers by address: the same on every machine and with every version of numpy.

Only the raw bits of Philox are used: numpy guarantees that they stay the same, but not its
distributions.  `by_row` gives each numbered row the same draws, whichever other rows are drawn with
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def uniform(address: tuple[int, ...], *shape: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend only on the address, e.g. (seed, epoch)."""
    source = np.random.Philox(np.random.SeedSequence(address))
    bits = np.asarray(source.random_raw(int(np.prod(shape))), dtype=np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53


def integers(address: tuple[int, ...], below: int, *shape: int) -> NDArray[np.int64]:
    """Integers from 0 to `below` − 1, all equally likely."""
    return (uniform(address, *shape) * below).astype(np.int64)


def by_row(address: tuple[int, ...], rows: NDArray[np.int64], *shape: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), [rows, *shape]; those of a row depend only on (address, row)."""
    size = int(np.prod(shape))
    positions = rows[:, None] * size + np.arange(size)
    return hashed(address, positions).reshape(len(rows), *shape)


def hashed(address: tuple[int, ...], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) of the shape of `positions`; each depends only on (address, position).

    SplitMix64 of the position twice, each time with a key of the address (Steele, Lea & Flood 2014,
    "Fast Splittable Pseudorandom Number Generators").
    """
    first, second = address_keys(address)
    return hashed_by_keys(first, second, positions)


def address_keys(address: tuple[int, ...]) -> tuple[np.uint64, np.uint64]:
    """The two keys of an address, for those who draw many numbers from it one at a time."""
    first, second = np.random.SeedSequence(address).generate_state(2, np.uint64)
    return first, second


def hashed_by_keys(first: Any, second: Any, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """The numbers of `hashed`, for the keys of one address, or of one address per position."""
    bits = splitmix64(splitmix64(positions.astype(np.uint64) * _GOLDEN_GAMMA + first) ^ second)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers_by_row(
    address: tuple[int, ...], rows: NDArray[np.int64], below: int, *shape: int
) -> NDArray[np.int64]:
    """Integers from 0 to `below` − 1, [rows, *shape], as `by_row`."""
    return (by_row(address, rows, *shape) * below).astype(np.int64)


def permutation(address: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """The numbers from 0 to `count` − 1 in a random order."""
    return np.argsort(uniform(address, count), kind="stable")


def choose(
    drawn: NDArray[np.float64], weights: NDArray[np.float64], size: int
) -> NDArray[np.int64]:
    """`size` different indices per row, drawn one after another with the given weights.

    drawn [rows, weights]: numbers in [0, 1).  The indices of the smallest Eᵢ/wᵢ, with exponential
    E, are such a draw (Efraimidis & Spirakis 2006).
    """
    waits = -np.log1p(-drawn) / weights
    return np.argsort(waits, axis=1, kind="stable")[:, :size]


def splitmix64(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014); products wrap around."""
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_FACTORS[0]
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_FACTORS[1]
    return bits ^ (bits >> np.uint64(31))
