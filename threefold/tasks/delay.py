"""Delay: a signal, and the same signal some elements later.

    inputs    0.3 −1.1  0.8  0.2 −0.5  1.4 −0.9
    targets     ·    ·    ·  0.3 −1.1  0.8  0.2        · is NaN and does not count

At every moment the last `delay` elements have to be known: what a state can hold of a signal.  The
signal is white noise averaged over `smooth` neighbours, so its state is worth about delay/smooth
numbers; or, with a `period`, a sum of sines no faster than one in that many elements.
Its variance is 1, the squared error of always answering 0.  Solved: an error of 0.1.
Voelker et al. 2019, "Legendre Memory Units" (capacity); Gu et al. 2023, "How to Train Your HiPPO"
(delay), both with noise whose band is cut off sharply.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import Batch
from threefold.data.random_by_address import by_row, integers_by_row
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, make_batch

LEVELS = 2**16  # of the white noise: sums of whole numbers are the same on every machine
WAVES = 12


def delay(
    length: int = 256,
    delay: int = 64,
    smooth: int = 8,
    *,
    period: float | None = None,
    seed: int = 0,
) -> Task[Batch]:
    """Rows of one number an element, and as many targets."""
    if smooth < 1 or not 1 <= delay < length or (period is not None and period < 2):
        raise ThreefoldError(
            f"delay: length {length}, a delay of {delay}, smoothed over {smooth}, period {period}; "
            "expected a delay from 1 to below the length, at least 1, and 2 elements a period"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        place = address(seed, split)
        if period is None:
            signal = noise(place, numbers, length, smooth)
        else:
            signal = waves(place, numbers, length, period)
        late = np.full_like(signal, np.nan)
        late[:, delay:] = signal[:, :-delay]
        return make_batch(signal[..., None], late[..., None])

    return declare("delay", draw, length=length)


def noise(
    place: tuple[int, ...], numbers: Numbers, length: int, smooth: int
) -> NDArray[np.float64]:
    """White noise averaged over `smooth` neighbours, brought to a variance of 1."""
    white = integers_by_row(place, numbers, LEVELS, length + smooth - 1)
    sums = np.cumsum(2 * white - (LEVELS - 1), axis=1)
    averaged = sums[:, smooth - 1 :].copy()
    averaged[:, 1:] -= sums[:, : length - 1]
    # A whole number from −(N−1) to N−1 in steps of 2 has the variance (N² − 1)/3.
    scaled: NDArray[np.float64] = averaged * (smooth * (LEVELS**2 - 1) / 3) ** -0.5
    return scaled


def waves(
    place: tuple[int, ...], numbers: Numbers, length: int, period: float
) -> NDArray[np.float64]:
    """A sum of sines of any phase and pitch up to one in `period`, brought to a variance of 1."""
    pitch, phase = (by_row((*place, stream), numbers, WAVES, 1) for stream in range(2))
    angle = pitch / period * np.arange(length) + phase
    sines: NDArray[np.float64] = np.sin(2 * math.pi * angle).sum(1) * math.sqrt(2 / WAVES)
    return sines
