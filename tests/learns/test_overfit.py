"""Every mixer memorises a text of 64 bytes, which takes a memory of more than one byte."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from threefold.data import Batch, ByteTokenizer
from threefold.layers.table import MIXERS
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.training import TrainingSettings, evaluate, train

TEXT = "In the beginning was the step; then came the chunk, and all was."
LOSS = 0.05


def the_text(step: int) -> Batch:
    tokens = torch.tensor([ByteTokenizer().encode(TEXT).tolist()])
    return Batch(tokens[:, :-1], tokens[:, 1:], torch.ones(1, dtype=torch.bool))


def test_the_text_needs_memory() -> None:
    assert len(ByteTokenizer().encode(TEXT)) == 64
    pairs = Counter(itertools.pairwise(TEXT))
    alone = Counter(TEXT[:-1])
    best = -sum(n * math.log(n / alone[first]) for (first, _), n in pairs.items()) / 63
    assert best > 10 * LOSS  # the best loss of a model that sees only the last byte


@pytest.mark.parametrize("name", [n for n, entry in MIXERS.items() if entry.load().causal])
def test_every_causal_mixer_overfits(name: str) -> None:
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", width=32, depth=1, mixers=(name,)))
    train(model, the_text, TrainingSettings(steps=200, learning_rate=1e-2))
    assert evaluate(model, [the_text(0)]).loss < LOSS
