"""One schema: Python, TOML and --set say the same, and whatever is wrong is said in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from threefold.errors import ThreefoldError
from threefold.training.config import RunConfig, read_toml
from threefold.training.settings import TrainingSettings

DATA = {"data": {"name": "copying"}}


def test_toml_reads_back_to_the_same() -> None:
    given = {
        "data": {"name": 'a "quoted" \\ name', "options": {"length": 3, "pairs": [1, 2]}},
        "model": {
            "mixers": ["gla", ["attention", {"heads": 2}]],
            "channel": ["mlp", {"hidden": 8}],
        },
        "training": {"steps": 7, "learning_rate": 1e-4, "carry": True, "seconds": 2.5},
        "threads": 1,
    }
    config = RunConfig.read(given)
    assert RunConfig.read(tomllib.loads(config.to_toml())) == config
    assert config.model.mixers == ("gla", ("attention", {"heads": 2}))


def test_set_changes_any_key() -> None:
    changes = ["training.steps=5", "model.mixers=gla, lstm", "data.batch = 3"]
    config = RunConfig.read(DATA, [*changes, "training.carry=true"])
    assert config.training.steps == 5 and config.training.carry and config.data.batch == 3
    assert config.model.mixers == ("gla", "lstm")
    assert config.model.sizes == (128, 4)
    assert RunConfig.read(DATA).training.seconds == 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.stepz=3", r"unknown key 'training.stepz'; did you mean 'steps'\?"),
        ("trainig.steps=3", "did you mean 'training'"),
        ("learning_rate=3", "did you mean 'training.learning_rate'"),
        ("training.steps=many", r"training\.steps is 'many', expected a valid integer"),
        ("data.batch=0", r"data\.batch is 0, expected greater than or equal to 1"),
        ("model.size=huge", "model.size is 'huge', expected 'tiny'"),
        ("training.optimiser=adan", "training.optimiser is 'adan', expected 'sgd'"),
        ("training.steps=0", "expected more than 0"),
        ("nonsense", "expected key=value"),
        ("data.name.x=3", "name is 'copying', and has no keys inside"),
        ("training.seconds=nan", "training.seconds is nan, expected a finite number"),
        ("training.learning_rate=inf", "expected a finite number"),
        ("model.seed=9223372036854775808", "model.seed is 9223372036854775808, expected less"),
        ("threads=100000", "threads is 100000, expected less than or equal to 1024"),
        ("training.steps=2020-01-01", "expected a valid integer"),
    ],
)
def test_what_is_wrong_is_said(change: str, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        RunConfig.read(DATA, [change])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 3, "patience": 2}, "give every="),
        ({"steps": 3, "learning_rat": 2}, "did you mean 'learning_rate'"),
        ({"steps": 3, "average": 1.0}, "average is 1.0, expected less than 1"),
    ],
)
def test_settings_refuse_in_python_too(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        TrainingSettings(**options)


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ThreefoldError, match=r"run\.toml: cannot be read"):
        read_toml(path)
    path.write_text("[data\n")
    with pytest.raises(ThreefoldError, match=r"run\.toml: not TOML"):
        read_toml(path)
    with pytest.raises(ThreefoldError, match="data is missing"):
        RunConfig.read({})
