"""Delay: a noise, and the same noise some elements later.

    inputs    0.3 −1.1  0.8  0.2 −0.5  1.4 −0.9
    targets     ·    ·    ·  0.3 −1.1  0.8  0.2        · is NaN and does not count

At every moment the last `delay` elements have to be known: what a state can hold of a signal.  The
noise is white, averaged over `smooth` neighbours, so its state is worth about delay/smooth numbers.
Its variance is 1, the squared error of always answering 0.  Solved: an error of 0.1.
Voelker et al. 2019, "Legendre Memory Units" (capacity); Gu et al. 2023, "How to Train Your HiPPO"
(delay), both with noise whose band is cut off sharply.
"""

from __future__ import annotations

import numpy as np

from threefold.data.draws import integers_by_row
from threefold.data.stream import Batch
from threefold.errors import ThreefoldError
from threefold.tasks.task import Numbers, Task, address, declare, rows_of

LEVELS = 2**16  # of the white noise: sums of whole numbers are the same on every machine


def delay(length: int = 256, delay: int = 64, smooth: int = 8, *, seed: int = 0) -> Task[Batch]:
    """Rows of one number an element, and as many targets."""
    if smooth < 1 or not 1 <= delay < length:
        raise ThreefoldError(
            f"delay: length {length}, a delay of {delay}, smoothed over {smooth}; expected a delay "
            "from 1 to below the length, and at least 1"
        )
    # A whole number from −(N−1) to N−1 in steps of 2 has the variance (N² − 1)/3.
    scale = (smooth * (LEVELS**2 - 1) / 3) ** -0.5

    def draw(split: str, numbers: Numbers) -> Batch:
        white = integers_by_row(address(seed, split), numbers, LEVELS, length + smooth - 1)
        sums = np.cumsum(2 * white - (LEVELS - 1), axis=1)
        noise = sums[:, smooth - 1 :].copy()
        noise[:, 1:] -= sums[:, : length - 1]
        signal = noise * scale
        late = np.full_like(signal, np.nan)
        late[:, delay:] = signal[:, :-delay]
        return rows_of(signal[..., None], late[..., None])

    return declare("delay", draw, length=length)
