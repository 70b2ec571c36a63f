"""The rows of the adding problem, and a small study of it."""

from __future__ import annotations

import pytest
import torch

import threefold
from threefold.lab.studies.adding import AddingStudy, study
from threefold.tasks.adding import adding


def test_rows_are_as_the_docstring_shows() -> None:
    task = adding(21, seed=3)
    rows = task.batch("train", 0, 400)
    numbers, marks = rows.inputs.unbind(-1)
    assert rows.inputs.shape == (400, 21, 2)
    assert (marks[:, :10].sum(1) == 1).all() and (marks[:, 10:].sum(1) == 1).all()
    assert torch.allclose((numbers * marks).sum(1), rows.targets)
    assert marks.sum(0).gt(0).all()  # every position is marked somewhere
    assert ((1 - rows.targets) ** 2).mean().item() == pytest.approx(task.chance, rel=0.2)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(threefold.ThreefoldError, match="length 1"):
        adding(1)


def test_a_gru_solves_the_adding_problem() -> None:
    outcome, _ = study("gru", AddingStudy(length=16, width=32, steps=600, learning_rate=1e-2))
    assert outcome.solved, outcome
