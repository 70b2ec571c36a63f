"""Same seed, same weights, bit for bit, for every mixer over 50 steps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.training import runs
from threefold.layers.table import MIXERS
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training import TrainingSettings, train


def weights(name: str) -> list[Tensor]:
    causal = MIXERS[name].load().causal
    kind, options = ("language", {}) if causal else ("tagger", {"classes": 17})
    torch.manual_seed(0)
    model = build(Spec(kind, 16, 1, name, vocabulary=17, options=options))
    train(model, runs.rows, TrainingSettings(steps=50))
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("name", MIXERS)
def test_same_seed_same_bits(name: str) -> None:
    for one, other in zip(weights(name), weights(name), strict=True):
        assert torch.equal(one, other)
