"""Random numbers of a run: seeded for each step, without disturbing those of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import torch

SEED_BLOCK = 64  # steps whose seeds are computed together


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the caller's random state at the end of a `with` block."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed a step by (seed, step, rank) alone, so that no random state has to be saved."""
    block, index = divmod(step, SEED_BLOCK)
    step_seed = _block_seeds(seed, block, rank)[index]
    torch.default_generator.manual_seed(step_seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(step_seed)


@lru_cache(maxsize=2)
def _block_seeds(seed: int, block: int, rank: int) -> list[int]:
    """The seeds of `SEED_BLOCK` steps: together they take a third of the time."""
    steps = range(block * SEED_BLOCK, (block + 1) * SEED_BLOCK)
    states = (
        np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64) for step in steps
    )
    return [int(state[0] >> np.uint64(1)) for state in states]
