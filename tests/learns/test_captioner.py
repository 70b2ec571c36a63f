"""Captioners learn to describe drawn shapes and to write the words of digits."""

from __future__ import annotations

import pytest
import torch

import threefold
from threefold.tasks.pairs import END
from threefold.tasks.table import task


def test_sentences_never_seen_are_written() -> None:
    """The best constant sentence is right for 1 or 2 per cent of the images."""
    settings = {
        "model.width": 64,
        "model.depth": 1,
        "model.options": {"attention": "luong"},
        "training.learning_rate": 3e-3,
        "data.batch_size": 64,
        "data.eval_examples": 50,
    }
    run = threefold.train("shapes", mixers="gru", steps=600, settings=settings)
    rows = task("shapes").batch("test", 0, 200)
    with torch.no_grad():
        state = run.model.encode(rows.source)
    begin = torch.zeros(200, 1, dtype=torch.int64)
    made = threefold.generate(run.model, begin, state, max_tokens=14, beams=2, stop=END).rows()
    right = sum(a == b for a, b in zip(made, rows.texts(), strict=True)) / 200
    assert right >= 0.95, right
    # Looking elsewhere changes the sentence: it describes this image, not images in general.
    other = run.model.encode(rows.source.roll(1, 0))
    turned = threefold.generate(run.model, begin, other, max_tokens=14, temperature=0.0, stop=END)
    wrong = sum(a == b for a, b in zip(turned.rows(), rows.texts(), strict=True)) / 200
    assert wrong < 0.03


def test_digits_become_words() -> None:
    pytest.importorskip("sklearn")
    settings = {
        "model.width": 48,
        "model.depth": 1,
        "model.options": {"attention": "luong"},
        "training.learning_rate": 8e-3,
        "data.batch_size": 64,
    }
    run = threefold.train("digits8-words", mixers="gru", steps=300, settings=settings)
    assert run.summary["test"]["metric"] > 0.5, run.summary["test"]
    assert run.summary["chance"] < 0.13
