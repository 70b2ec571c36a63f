"""Threads that share a mixer from its first call on get the answers of one thread."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import threefold
from tests.tolerances import assert_close

THREADS, STEPS, TRIALS = 8, 3, 3
NAMES = ("performer", "attention", "lmu", "s4d", "s5", "long_conv", "hyena", "mamba")


@pytest.mark.parametrize("name", NAMES)
def test_threads_that_step_one_mixer_from_cold(name: str) -> None:
    torch.manual_seed(0)
    cold = threefold.mixer(name, width=16).double().eval()
    x = torch.randn(STEPS, 2, 16, dtype=torch.float64)

    def steps(mixer: torch.nn.Module, barrier: Barrier | None = None) -> torch.Tensor:
        if barrier is not None:
            barrier.wait()
        state, outputs = None, []
        with torch.no_grad():
            for element in x:
                y, state = mixer.step(element, state)  # type: ignore[operator]
                outputs.append(y)
        return torch.stack(outputs)

    expected = steps(copy.deepcopy(cold))
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(TRIALS):
            mixer, barrier = copy.deepcopy(cold), Barrier(THREADS)
            for found in pool.map(lambda _, m=mixer, b=barrier: steps(m, b), range(THREADS)):
                assert_close(found, expected)  # the recorded step sums in an order of its own
