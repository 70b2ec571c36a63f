"""The default context of a forecaster holds the season that its series show."""

from __future__ import annotations

import csv
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from threefold.data.time_stamps import TimeAxis
from threefold.tasks.user_data import ReadSettings, user_task
from threefold.tasks.user_data.contexts import default_context, shown_seasons
from threefold.tasks.user_data.seasons import Stretches

HOURS = TimeAxis("t", "iso", 0.0, 3600.0)
TENTHS = TimeAxis("t", "iso", 0.0, 600.0)


def load(rows: int, day: int, weekend: float) -> np.ndarray:
    """A daily cycle, smaller on two days of seven, with noise."""
    time = np.arange(rows)
    factor = np.where(time // day % 7 >= 5, weekend, 1.0)
    noise = np.random.default_rng(0).normal(0, 0.05, rows)
    return (factor * (2 + np.sin(2 * np.pi * time / day)) + noise)[:, None]


def test_a_week_of_hours_is_read_if_the_series_shows_it() -> None:
    weekly, daily = ([Stretches(load(1050, 24, factor))] for factor in (0.3, 1.0))
    assert shown_seasons(weekly, HOURS) == [24, 168]
    assert shown_seasons(daily, HOURS) == [24]
    choice = default_context(1500, HOURS, weekly)
    assert choice.length == 224 and "168 rows (a week)" in choice.reason and not choice.note
    assert default_context(1500, HOURS, daily).length == 75


def test_a_season_is_found_without_time_stamps() -> None:
    train = [Stretches(load(1400, 100, 1.0))]
    assert shown_seasons(train, None) == [100]
    assert default_context(2000, None, train).length == 133
    noise = [Stretches(np.random.default_rng(1).normal(size=(1400, 1)))]
    assert not shown_seasons(noise, None)
    assert default_context(2000, None, noise).length == 100


def test_a_season_that_does_not_fit_is_named() -> None:
    choice = default_context(6000, TENTHS, [Stretches(load(4200, 144, 0.1))])
    assert choice.length == 384 and "1,008 rows (a week)" in choice.note
    assert "1152" in choice.note and "data.length" in choice.note


def test_the_reading_names_the_reason_and_the_setting(tmp_path: Path) -> None:
    start, values = datetime(2024, 1, 1), load(1500, 24, 0.3)[:, 0]
    path = tmp_path / "load.csv"
    with path.open("w", newline="") as file:
        rows = [(start + timedelta(hours=i), f"{v:.4f}") for i, v in enumerate(values.tolist())]
        csv.writer(file).writerows([("time", "load"), *rows])
    task = user_task(path, ReadSettings(horizon=24))
    assert task.length == 224 and task.description is not None
    lines = dict(task.description.lines())
    assert "repeats every 168 rows (a week)" in lines["context"]
    assert "data.length" in lines["to change"]


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_short_series_have_a_context(rows: int) -> None:
    train = [Stretches(np.arange(float(rows))[:, None])]
    assert default_context(rows, None, train).length >= 1
