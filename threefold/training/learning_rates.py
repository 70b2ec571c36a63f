"""Learning rates over a run, as a factor of the peak by the part of the run that is done.

A part of the run, not a step: a run of so many seconds has a schedule like one of so many steps.
All rise in a line over `warmup` (a part of the run) first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threefold.training.settings import TrainingSettings


def constant(done: float, warmup: float = 0.05) -> float:
    """1 from the warm-up on."""
    return done / warmup if done < warmup else 1.0


def cosine(done: float, warmup: float = 0.05, final: float = 0.1) -> float:
    """Falls as half a cosine to `final`."""
    if done < warmup:
        return done / warmup
    rest = min((done - warmup) / (1 - warmup), 1.0)
    return final + (1 - final) * (1 + math.cos(math.pi * rest)) / 2


def linear(done: float, warmup: float = 0.05, final: float = 0.1) -> float:
    """Falls in a line to `final`."""
    if done < warmup:
        return done / warmup
    return 1 - (1 - final) * min((done - warmup) / (1 - warmup), 1.0)


def inverse_square_root(done: float, warmup: float = 0.05) -> float:
    """Falls as √(warmup / done).

    With a peak of (width · warm-up steps)^(−½) it is the rate of Vaswani et al. 2017.
    """
    return done / warmup if done < warmup else math.sqrt(warmup / done) if done else 1.0


def stable(done: float, warmup: float = 0.05, decay: float = 0.2, final: float = 0.1) -> float:
    """Stays at 1, and falls in a line to `final` over the last `decay` of the run.

    Hu et al. 2024, "MiniCPM": warm-up, stable, decay.
    """
    if done < warmup:
        return done / warmup
    fallen = max(0.0, done - (1 - decay)) / decay if decay else float(done >= 1)
    return 1 - (1 - final) * min(fallen, 1.0)


SCHEDULES: dict[str, Callable[[float, TrainingSettings], float]] = {
    "constant": lambda done, s: constant(done, s.warmup_fraction),
    "cosine": lambda done, s: cosine(done, s.warmup_fraction, s.final_fraction),
    "linear": lambda done, s: linear(done, s.warmup_fraction, s.final_fraction),
    "inverse_square_root": lambda done, s: inverse_square_root(done, s.warmup_fraction),
    "stable": lambda done, s: stable(done, s.warmup_fraction, s.decay_fraction, s.final_fraction),
}
