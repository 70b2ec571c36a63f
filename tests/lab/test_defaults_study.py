"""`threefold lab defaults`: equal work on a busy machine, in sittings that follow each other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from threefold.errors import ThreefoldError
from threefold.lab.studies import default_settings
from threefold.lab.studies.default_settings import TRAININGS, DefaultsSearch, Tried, compare, lines
from threefold.training import clock

STUDY = DefaultsSearch(configurations=1, time=1.0)


def waves(study: DefaultsSearch, folder: Path) -> Any:
    values = np.sin(np.arange(400) / 5)
    return {"y": values}, {"data.target": "y", "data.horizon": 1, "data.length": 8}


def test_a_study_resumes_and_measures_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, clocks = [], []

    def train(*arguments: Any, **named: Any) -> Any:
        trained.append(named["settings"])
        clocks.append(clock.now() - time.process_time())
        return real(*arguments, **named)

    real = default_settings.train
    monkeypatch.setattr(default_settings, "SOURCES", {"waves": waves})
    monkeypatch.setattr(default_settings, "train", train)
    first = list(lines(["waves"], STUDY, tmp_path))
    assert len(trained) == 2 and max(map(abs, clocks)) < 0.05
    assert first[0].startswith("waves default: validation")
    assert "with the best of 1 by validation (number 1)" in first[-1]
    assert abs(clock.now() - time.monotonic()) < 0.05  # the wall clock again
    assert list(lines([], STUDY, tmp_path)) == first
    assert len(trained) == 2  # nothing was trained again
    file = tmp_path / TRAININGS
    file.write_text(file.read_text() + '{"kind": "waves"}\n')
    with pytest.raises(ThreefoldError, match="expected a finished training in each line"):
        list(lines([], STUDY, tmp_path))


@pytest.mark.parametrize(
    ("lower", "expected"), [(True, "20.0 % worse with"), (False, "16.7 % better with")]
)
def test_the_search_chooses_by_validation(lower: bool, expected: str) -> None:
    def tried(number: int, valid: float, test: float) -> Tried:
        return Tried("waves", number, 0, 1.0, {}, {}, "score", lower, valid, test)

    low, high = (1.0, 2.0) if lower else (2.0, 1.0)
    text = compare([tried(0, 5.0, 1.2), tried(1, high, 0.1), tried(2, low, 1.0)])
    assert "1.2 with the default, 1 with the best of 2 by validation (number 2)" in text
    assert expected in text


def test_a_mistyped_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ThreefoldError, match="unknown kind 'serie'; did you mean 'series'"):
        list(lines(["serie"], STUDY, tmp_path))
