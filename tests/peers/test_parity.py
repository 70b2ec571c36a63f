"""Whole layers against other libraries' layers with the same weights: `make test-peers`.

A mixer that no library has is compared with its oracle of tests/layers.
"""

from __future__ import annotations

import pytest
import torch

import threefold
from tests.peers.conftest import ROWS
from tests.peers.other_cases import rwkv7_model
from tests.peers.parity import DTYPES, Parity, computing_in
from tests.peers.table import CASES, exceeded, row_of
from tests.tolerances import TOLERANCES, relative_error
from threefold import Spec
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


RWKV7 = Spec(
    "language",
    **{"width": 32, "depth": 3, "vocabulary": 19},
    mixers=[("rwkv7", {"heads": 2, "ranks": (5, 6, 4, 7), "eps": 64e-5})],
    channel="rwkv7",
    block=("pre_norm", {"norm": "layer"}),
    options={"embedding_norm": True, "tie": False},
)


@torch.no_grad()
def test_a_whole_model_of_rwkv7() -> None:
    """The authors' model with our weights gives our logits; e^{−1/2} has six digits there."""
    tokens = torch.randint(19, (2, 12), generator=torch.Generator().manual_seed(1))
    errors = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        model = threefold.build(RWKV7)
        for parameter in model.parameters():
            parameter += 0.3 * torch.rand_like(parameter) - 0.1
        model.to(dtype).eval()
        with computing_in(dtype):
            expected = rwkv7_model(model)(tokens)
        errors.append(relative_error(model(tokens)[0], expected))
    assert max(errors) <= TOLERANCES[torch.float32, "output"]
