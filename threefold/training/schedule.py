"""Learning rates over a run, as a factor of the peak by the part of the run that is done.

A part of the run, not a step: a run of so many seconds has a schedule like one of so many steps.
"""

from __future__ import annotations

import math


def cosine(done: float, warmup: float = 0.05, final: float = 0.1) -> float:
    """Rises in a line over `warmup` (a part of the run), then falls as half a cosine to `final`."""
    if done < warmup:
        return done / warmup
    rest = min((done - warmup) / (1 - warmup), 1.0)
    return final + (1 - final) * (1 + math.cos(math.pi * rest)) / 2


def inverse_square_root(done: float, warmup: float = 0.05) -> float:
    """Rises in a line over `warmup` (a part of the run), then falls as √(warmup / done).

    With a peak of (width · warm-up steps)^(−½) it is the rate of Vaswani et al. 2017.
    """
    return done / warmup if done < warmup else math.sqrt(warmup / done)
