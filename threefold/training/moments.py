"""Random numbers of a run by address, beside those of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's random numbers go on as if nothing had been drawn meanwhile."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Random numbers of a step depend on (seed, step, rank) only: none of them has to be kept."""
    drawn = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]
    number = int(drawn >> np.uint64(1))
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)
