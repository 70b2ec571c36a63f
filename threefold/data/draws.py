"""Random numbers by address: the same on every machine and with every version of numpy.

Only raw bits of Philox are used: numpy promises them for ever, its distributions it does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uniform(address: tuple[int, ...], *shape: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend on the address only, e.g. (seed, epoch)."""
    source = np.random.Philox(np.random.SeedSequence(address))
    bits = np.asarray(source.random_raw(int(np.prod(shape))), dtype=np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64).reshape(shape) * 2.0**-53


def integers(address: tuple[int, ...], below: int, *shape: int) -> NDArray[np.int64]:
    """Whole numbers from 0 to `below` − 1, each as likely."""
    return (uniform(address, *shape) * below).astype(np.int64)


def permutation(address: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """The numbers from 0 to `count` − 1 in a random order."""
    return np.argsort(uniform(address, count), kind="stable")


def choices(
    address: tuple[int, ...], weights: NDArray[np.float64], rows: int, size: int
) -> NDArray[np.int64]:
    """`size` different indices for each row, drawn one after another with the given weights.

    The smallest of Eᵢ/wᵢ, with E exponential, are such a draw (Efraimidis & Spirakis 2006).
    """
    waits = -np.log1p(-uniform(address, rows, len(weights))) / weights
    return np.argsort(waits, axis=1, kind="stable")[:, :size]
