"""Learning rate schedules: a factor of the peak learning rate, by the progress of the run (0 to 1).

They depend on progress instead of steps, so that a run with a time limit has the same schedule as a
run with a number of steps.  All rise linearly over the first `warmup`, a fraction of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threefold.training.settings import TrainingSettings


def constant(progress: float, warmup: float = 0.05) -> float:
    """1 after the warm-up."""
    return progress / warmup if progress < warmup else 1.0


def cosine(progress: float, warmup: float = 0.05, final: float = 0.1) -> float:
    """Fall to `final` along half a cosine."""
    if progress < warmup:
        return progress / warmup
    rest = min((progress - warmup) / (1 - warmup), 1.0)
    return final + (1 - final) * (1 + math.cos(math.pi * rest)) / 2


def linear(progress: float, warmup: float = 0.05, final: float = 0.1) -> float:
    """Fall linearly to `final`."""
    if progress < warmup:
        return progress / warmup
    return 1 - (1 - final) * min((progress - warmup) / (1 - warmup), 1.0)


def inverse_square_root(progress: float, warmup: float = 0.05) -> float:
    """Fall as √(warmup / progress).

    With a peak of (width · warm-up steps)^(−½) it is the schedule of Vaswani et al. 2017.
    """
    if progress < warmup:
        return progress / warmup
    return math.sqrt(warmup / progress) if progress else 1.0


def stable(progress: float, warmup: float = 0.05, decay: float = 0.2, final: float = 0.1) -> float:
    """Stay at 1, then fall linearly to `final` over the last `decay` of the run.

    Hu et al. 2024, "MiniCPM": warm-up, stable, decay.
    """
    if progress < warmup:
        return progress / warmup
    fallen = max(0.0, progress - (1 - decay)) / decay if decay else float(progress >= 1)
    return 1 - (1 - final) * min(fallen, 1.0)


SCHEDULES: dict[str, Callable[[float, TrainingSettings], float]] = {
    "constant": lambda p, s: constant(p, s.warmup_fraction),
    "cosine": lambda p, s: cosine(p, s.warmup_fraction, s.final_fraction),
    "linear": lambda p, s: linear(p, s.warmup_fraction, s.final_fraction),
    "inverse_square_root": lambda p, s: inverse_square_root(p, s.warmup_fraction),
    "stable": lambda p, s: stable(p, s.warmup_fraction, s.decay_fraction, s.final_fraction),
}
