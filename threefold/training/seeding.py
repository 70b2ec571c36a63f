"""Random numbers of a run by address, beside those of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

BLOCK = 64  # steps whose seeds are made at once


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's random numbers go on as if nothing had been drawn meanwhile."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Random numbers of a step depend on (seed, step, rank) only: none of them has to be kept."""
    block, place = divmod(step, BLOCK)
    number = _numbers(seed, block, rank)[place]
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


@lru_cache(maxsize=2)
def _numbers(seed: int, block: int, rank: int) -> list[int]:
    """Those of `BLOCK` steps: one after another they take a third of the time."""
    steps = range(block * BLOCK, (block + 1) * BLOCK)
    drawn = (
        np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64) for step in steps
    )
    return [int(one[0] >> np.uint64(1)) for one in drawn]
