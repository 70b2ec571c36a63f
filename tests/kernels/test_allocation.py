"""Freed memory is reused without asking the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import torch
from threefold.kernels.system_memory import keep_memory
kept = keep_memory() if sys.argv[1] == "keep" else True
torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(1 << 24)  # 64 MiB
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[bool, int]:
    """Whether memory is kept, and the pages that forty large tensors asked for."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    kept, count = done.stdout.split()
    return kept == "1", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator only")
def test_kept_memory_is_not_asked_for_again() -> None:
    kept, count = faults("keep")
    if not kept:
        pytest.skip("another C library than glibc")
    _, before = faults("plain")
    assert count < 0.3 * before
