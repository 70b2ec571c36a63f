"""Fixtures of the kernel tests: every variant this machine can run, and a number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from threefold.kernels import library


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        # Without compiled kernels there is one case, and it fails: CI must not pass by skipping.
        metafunc.parametrize("variant", library.runnable() or ["baseline"], indirect=True)


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on one compiled variant."""
    with library.using(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _seed_and_threads() -> Iterator[None]:
    """Every test starts from one seed and leaves the number of threads as it was."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
