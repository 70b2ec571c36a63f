"""Whole layers against other libraries' layers with the same weights: `make test-peers`."""

from __future__ import annotations

import pytest
import torch

from tests.peers import fla_cases, other_cases, transformers_cases
from tests.peers.conftest import ROWS
from tests.peers.parity import Parity
from tests.tolerances import TOLERANCES

CASES = (*transformers_cases.CASES, *fla_cases.CASES, *other_cases.CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.mixer} {case.peer}")
def test_same_weights_same_outputs(case: Parity) -> None:
    errors = {dtype: case.measure(dtype) for dtype in (torch.float64, torch.float32)}
    shown = [f"{error:.1e}" for error in errors.values()]
    ROWS.append((case.mixer, case.peer + (f" ({case.reason})" if case.reason else ""), *shown))
    for dtype, error in errors.items():
        limit = TOLERANCES[torch.float32 if case.reason else dtype, "output"]
        assert error <= limit, f"{case.mixer} and {case.peer}: {error:.1e} in {dtype}"
