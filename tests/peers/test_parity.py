"""Whole layers against other libraries' layers with the same weights: `make test-peers`."""

from __future__ import annotations

import pytest
import torch

import threefold
from tests.peers import fla_cases, other_cases, transformers_cases
from tests.peers.conftest import ROWS
from tests.peers.other_cases import rwkv7_model
from tests.peers.parity import Parity, computing_in
from tests.tolerances import TOLERANCES, relative_error
from threefold import Spec

CASES = (*transformers_cases.CASES, *fla_cases.CASES, *other_cases.CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.mixer} {case.peer}")
def test_same_weights_same_outputs(case: Parity) -> None:
    errors = {dtype: case.measure(dtype) for dtype in (torch.float64, torch.float32)}
    shown = [f"{error:.1e}" for error in errors.values()]
    ROWS.append((case.mixer, case.peer + (f" ({case.reason})" if case.reason else ""), *shown))
    for dtype, error in errors.items():
        limit = TOLERANCES[torch.float32 if case.reason else dtype, "output"]
        assert error <= limit, f"{case.mixer} and {case.peer}: {error:.1e} in {dtype}"


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
    ROWS.append(("rwkv7", "rwkv RWKV_x070, a whole model", *(f"{error:.1e}" for error in errors)))
    assert max(errors) <= TOLERANCES[torch.float32, "output"]
