"""Delay: repeat a signal some elements later.

    inputs    0.3 −1.1  0.8  0.2 −0.5  1.4 −0.9
    targets     ·    ·    ·  0.3 −1.1  0.8  0.2        · is NaN and does not count

At every moment the last `delay` elements have to be remembered: this measures how much of a signal
a state can store.  The signal is white noise averaged over `smooth` neighbours, about delay/smooth
independent numbers; or, with a `period`, a sum of sines with at least that many elements per cycle.
Its variance is 1, the squared error of always answering 0.  Solved: an error of 0.1.
Voelker et al. 2019, "Legendre Memory Units" (capacity); Gu et al. 2023, "How to Train Your HiPPO"
(delay), both with sharply band-limited noise.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

LEVELS = 2**16  # of the white noise: sums of integers are the same on every machine
WAVES = 12  # sines in a sum


def delay(
    length: int = 256,
    delay: int = 64,
    smooth: int = 8,
    *,
    period: float | None = None,
    seed: int = 0,
) -> Task[Batch]:
    """Rows of one number per element, and as many targets."""
    if smooth < 1 or not 1 <= delay < length or (period is not None and period < 2):
        raise ThreefoldError(
            f"delay: length {length}, a delay of {delay}, smooth {smooth}, period {period}; "
            "expected a delay from 1 to below the length, smooth from 1, and a period from 2"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        where = address(seed, split)
        if period is None:
            signal = noise(where, numbers, length, smooth)
        else:
            signal = waves(where, numbers, length, period)
        delayed = np.full_like(signal, np.nan)
        delayed[:, delay:] = signal[:, :-delay]
        return make_batch(signal[..., None], delayed[..., None])

    return declare("delay", draw, length=length)


def noise(
    where: tuple[int, ...], numbers: Numbers, length: int, smooth: int
) -> NDArray[np.float64]:
    """White noise averaged over `smooth` neighbours, scaled to variance 1."""
    white = integers_by_row(where, numbers, LEVELS, length + smooth - 1)
    sums = np.cumsum(2 * white - (LEVELS - 1), axis=1)
    averaged = sums[:, smooth - 1 :].copy()
    averaged[:, 1:] -= sums[:, : length - 1]
    # An integer from −(N−1) to N−1 in steps of 2 has the variance (N² − 1)/3.
    scaled: NDArray[np.float64] = averaged * (smooth * (LEVELS**2 - 1) / 3) ** -0.5
    return scaled


def waves(
    where: tuple[int, ...], numbers: Numbers, length: int, period: float
) -> NDArray[np.float64]:
    """A sum of sines of random phases and of periods of at least `period`, scaled to variance 1."""
    pitch, phase = (by_row((*where, stream), numbers, WAVES, 1) for stream in range(2))
    angle = pitch / period * np.arange(length) + phase
    sines: NDArray[np.float64] = np.sin(2 * math.pi * angle).sum(1) * math.sqrt(2 / WAVES)
    return sines
