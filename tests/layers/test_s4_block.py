"""The S4 block as published, from a Spec: norm, filter, GELU, dropout, GLU, residual."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import threefold
from tests.tolerances import assert_close

MIXERS = ("lssl", "s4", "s4d")


def block(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    spec = threefold.Spec(
        "language",
        width=16,
        depth=1,
        mixers=((name, {"state_size": 8, **options}),),
        vocabulary=8,
        channel="none",
    )
    model: Any = threefold.build(spec)
    return model.double().stack.blocks[0]


@pytest.mark.parametrize("name", MIXERS)
def test_norm_filter_gelu_glu_residual(name: str) -> None:
    made = block(name, glu=True, norm=True, dropout=0.3, eps=0.1).eval()
    mixer = made.mixer
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    u = F.layer_norm(made.mixer_norm(x), (16,), mixer.norm.weight, mixer.norm.bias, eps=0.1)
    convolved, _ = mixer.filter().run(u, form="step")
    y = F.linear(F.gelu(convolved + mixer.skip * u), mixer.out.weight, mixer.out.bias)
    left, gate = y.chunk(2, -1)
    for form in ("step", "chunk", "parallel"):
        assert_close(made(x, form=form)[0], x + left * torch.sigmoid(gate), "output", form)


@pytest.mark.parametrize("name", [*MIXERS, "s5"])
def test_dropout_is_of_training_only(name: str) -> None:
    made = block(name, dropout=0.5)
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    assert not torch.equal(made.train()(x)[0], made(x)[0])
    assert torch.equal(made.eval()(x)[0], made(x)[0])
    with pytest.raises(threefold.ThreefoldError, match=r"dropout is 1.*below 1"):
        block(name, dropout=1)
