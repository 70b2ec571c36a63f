"""Small image networks learn handwritten digits in a few hundred steps."""

from __future__ import annotations

from typing import Any

import pytest

import threefold

pytest.importorskip("sklearn")


@pytest.mark.parametrize(
    ("kind", "steps", "threshold", "settings"),
    [
        # Reached: 0.956, 0.914 (test split, seed 0; a guess is right in a tenth of all cases).
        ("convolutional", 150, 0.9, {"model.width": 8, "model.depth": 2}),
        (
            "swin",
            300,
            0.85,
            {"model.width": 32, "model.depth": 2, "model.options": {"patch": 2, "window": 2}},
        ),
    ],
)
def test_digits_are_learnt(
    kind: str, steps: int, threshold: float, settings: dict[str, Any]
) -> None:
    rate = {"convolutional": 1e-2, "swin": 5e-3}[kind]
    settings = {**settings, "data.batch_size": 64, "training.learning_rate": rate}
    run = threefold.train("digits8-images", kind=kind, steps=steps, settings=settings)
    assert run.model.kind == kind
    assert run.test is not None and run.test.metric > threshold
