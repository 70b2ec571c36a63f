"""Multi-query associative recall, 4 pairs at length 64: two layers of width 64 solve it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import threefold
from threefold import Spec
from threefold.tasks.recall import recall
from threefold.training import TrainingSettings, train

VOCABULARY = 64
LEARNING_RATES = {"mamba2": 5e-3}  # default: 3e-3


def settings(rate: float) -> TrainingSettings:
    return TrainingSettings(
        steps=800,
        learning_rate=rate,
        weight_decay=0.01,
        warmup_fraction=0.02,
        final_lr=rate,
        eval_every=25,
        target_score=0.96,
    )


# Published GLA cannot see the previous element; the short convolution of its authors' code can.
MIXERS = ("delta_net", "gated_delta_net", "kda", "rwkv7", "mamba2", ("gla", {"taps": 4}))


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_solves_recall(mixer: Any) -> None:
    torch.manual_seed(0)
    spec = Spec("language", 64, 2, (mixer,), vocabulary=VOCABULARY, options={"tie": False})
    model = threefold.build(spec)
    # Embeddings far enough apart to distinguish keys from the first step on.
    torch.nn.init.normal_(model.embedding.weight, std=0.1)
    task = recall(vocabulary=VOCABULARY)
    unseen = [task.batch("valid", 0, 250)]
    rate = LEARNING_RATES.get(str(mixer), 3e-3)
    result = train(model, task.batches(32), settings(rate), validation=unseen)
    assert task.reached(result.scores.metric), [
        (steps, round(scores.metric, 3)) for steps, scores in result.validation
    ]
