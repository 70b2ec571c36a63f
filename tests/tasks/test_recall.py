"""Multi-query associative recall: labels against an independent reading."""

from __future__ import annotations

import pytest
import torch

from threefold.data import IGNORE
from threefold.errors import ThreefoldError
from threefold.tasks.recall import recall
from threefold.tasks.task import accuracy


@pytest.mark.parametrize(("pairs", "length", "vocabulary"), [(4, 64, 256), (1, 4, 4), (8, 32, 18)])
def test_labels_against_a_reading_of_the_row(pairs: int, length: int, vocabulary: int) -> None:
    task = recall(pairs, length, vocabulary, seed=1).batch("train", 3, 200)
    for row, targets in zip(task.inputs.tolist(), task.targets.tolist(), strict=True):
        # Read as a person would: remember what followed each key, answer when a key comes again.
        memory = {row[i]: row[i + 1] for i in range(0, 2 * pairs, 2)}
        answers = [IGNORE] * (2 * pairs) + [memory.get(token, IGNORE) for token in row[2 * pairs :]]
        assert answers == targets
        assert len(memory) == pairs == len(set(memory.values()))
        assert sum(target != IGNORE for target in targets) == pairs
        assert all(1 <= key < vocabulary // 2 <= memory[key] < vocabulary for key in memory)


def test_gaps_follow_the_power_law() -> None:
    task = recall(pairs=1, length=64).examples("train")
    places = (task.targets != IGNORE).int().argmax(1)
    measured = torch.bincount((places - 2) // 2, minlength=31) / len(places)
    expected = torch.arange(1, 32, dtype=torch.float64) ** (0.01 - 1)
    assert (measured - expected / expected.sum()).abs().max() < 0.01


def test_accuracy_counts_query_places_only() -> None:
    targets = torch.tensor([[IGNORE, 1, IGNORE, 0]])
    logits = torch.tensor([[[9.0, 0.0], [0.0, 1.0], [0.0, 9.0], [0.0, 1.0]]])
    assert accuracy(logits, targets).tolist() == [1.0, 0.0]


def test_chance_is_naming_any_value_of_the_row() -> None:
    task = recall()
    rows = task.batch("train", 0, 2000)
    guesses = rows.inputs[:, 1:2].expand_as(rows.inputs)  # always the first value
    logits = torch.nn.functional.one_hot(guesses, task.vocabulary)
    assert abs(float(accuracy(logits, rows.targets).mean()) - task.chance) < 0.02
    assert task.chance < task.solved


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 63}, "even"),
        ({"length": 14}, "at least 16"),
        ({"vocabulary": 8}, "at least 10"),
        ({"pairs": 0}, "at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        recall(**options)
