"""Controls with shuffled labels: a model learns the task, and nothing from shuffled labels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from threefold.lab.studies import controls
from threefold.lab.studies.controls import (
    SMALL,
    ControlResult,
    ControlStudy,
    accuracy,
    measure,
    table,
)
from threefold.tasks.table import TASKS, task

QUICK = ControlStudy(steps=60, batch_size=32, examples=400, width=16)


@pytest.mark.parametrize("name", ["parity", "listops-mini"])
def test_a_control_stays_at_chance(name: str) -> None:
    found = measure(name, replace(QUICK, steps=25))
    assert found.clean and found.examples == 400
    assert found.majority <= found.limit  # the declared chance is not too low


def test_what_can_be_learnt_is_learnt_and_a_leak_is_seen() -> None:
    """The first element is the label, also in the control: this is what a leak looks like."""
    made = task("parity", trained=(2, 8), tested=(9, 12))

    def leaky(split: str, numbers: object) -> object:
        rows = made.draw(split, numbers)  # type: ignore[arg-type]
        rows.inputs[:, 0] = rows.targets
        return rows

    score = accuracy(replace(made, draw=leaky), replace(QUICK, steps=120))
    told = ControlResult("leaky", 0.5, 0.5, 0.5, learnt=score, control=score, examples=400)
    assert not told.clean and told.limit == pytest.approx(0.575)


def test_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    rows = iter([ControlResult("parity", 0.5, 0.5, 0.49, 0.7, 0.6, 400)])
    real = controls.measure
    monkeypatch.setattr(
        controls, "measure", lambda name, plan: next(rows) if name == "parity" else real(name, plan)
    )
    head, line, missing = table(["parity", "languages"], QUICK)
    assert head.split() == ["task", "chance", "majority", "bag", "learnt", "control", "limit"]
    assert line.split(None, 1)[1].startswith("0.5000    0.5000    0.4900    0.7000    0.6000")
    assert line.endswith("the control is above the limit: a leak?")
    assert missing.endswith("not downloaded; run: threefold data fetch languages")
    assert {"parity", "digits8", "chords"} <= set(SMALL) and "smnist" not in SMALL
    assert all(TASKS[name].kind == "classifier" for name in SMALL)
