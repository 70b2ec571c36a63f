"""Mackey–Glass: the integration has the order it claims, and an echo state network foretells it."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from threefold.errors import ThreefoldError
from threefold.lab.studies.mackey_glass import DOCUMENTED, WANTED, MackeyGlassStudy, draw, study
from threefold.tasks.mackey_glass import mackey_glass


def test_integration_is_of_fourth_order() -> None:
    exact = mackey_glass(120, skip=0, sub_steps=80)
    coarse, fine = (
        (mackey_glass(120, skip=0, sub_steps=steps) - exact).abs().max().item() for steps in (2, 4)
    )
    assert 12 < coarse / fine < 20
    assert fine < 1e-4


def test_series_is_the_attractor() -> None:
    x = mackey_glass(3000)
    assert x.shape == (3000,) and x.dtype == torch.float64
    assert 0.4 < x.min() < 0.5 and 1.3 < x.max() < 1.35
    assert x.mean().item() == pytest.approx(0.93, abs=0.02)
    assert torch.equal(mackey_glass(2000, skip=2000), x[1000:])
    with pytest.raises(ThreefoldError, match="integer number of steps"):
        mackey_glass(10, delay=1.23)


def test_runs_free_for_84_units_of_time(tmp_path: Path) -> None:
    outcomes = [study(seed, MackeyGlassStudy(starts=20)) for seed in range(3)]
    assert statistics.median(outcome.ahead[-1] for outcome in outcomes) <= WANTED
    assert all(outcome.one_step < DOCUMENTED / 10 for outcome in outcomes)
    assert statistics.median(outcome.small for outcome in outcomes) <= DOCUMENTED
    draw(outcomes, tmp_path / "errors.png")
    assert (tmp_path / "errors.png").stat().st_size > 10_000
