"""Counts the programs that run: native calls that make a whole step, or many."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from threefold.kernels import library
from threefold.kernels.replay.activity import recording
from threefold.kernels.replay.program import REQUEST


def count_crossings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of steps of every program that runs from now on, not those that are compared."""
    steps: list[int] = []
    run = library.run_program

    def noted(request: array[int], done: Any) -> int:
        status = run(request, done)
        if not recording() and status == 0:
            steps.append(request[REQUEST.index("steps")])
        return status

    monkeypatch.setattr(library, "run_program", noted)
    return steps
