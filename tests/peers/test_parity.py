"""Whole layers against other libraries' layers with the same weights: `make test-peers`.

A mixer that no library has is compared with its oracle of tests/layers.
"""

from __future__ import annotations

import pytest

from tests.peers.conftest import ROWS
from tests.peers.parity import DTYPES, Parity
from tests.peers.table import CASES, exceeded, row_of
from threefold.layers.table import MIXERS


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.mixer} {case.peer}")
def test_same_weights_same_numbers(case: Parity) -> None:
    measured = {dtype: case.measure(dtype) for dtype in DTYPES}
    ROWS.append(row_of(case, measured))
    assert exceeded(case, measured) == []


def test_every_mixer_is_compared() -> None:
    assert {case.mixer for case in CASES} == set(MIXERS)


def test_a_difference_is_noticed() -> None:
    case = next(case for case in CASES if case.mixer == "lstm")
    wrong = Parity("lstm", "", lambda mixer: lambda x: 1.001 * case.build(mixer)(x))
    measured = {dtype: wrong.measure(dtype) for dtype in DTYPES}
    assert len(exceeded(wrong, measured)) == 6
