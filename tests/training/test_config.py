"""One schema for Python, TOML and --set; every invalid setting is one readable line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from threefold.errors import ThreefoldError, command_line
from threefold.training.config import ModelSettings, RunConfig, read_toml
from threefold.training.durations import Duration, parse_duration
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import open_data

DATA = {"data": {"name": "copying"}}


def test_toml_round_trip() -> None:
    values = {
        "data": {"name": 'a "quoted" \\ name', "options": {"length": 3, "pairs": [1, 2]}},
        "model": {
            "mixers": ["gla", ["attention", {"heads": 2}]],
            "channel": ["mlp", {"hidden": 8}],
        },
        "training": {"steps": 7, "learning_rate": 1e-4, "carry_state": True, "time": 2.5},
        "threads": 1,
    }
    config = RunConfig.read(values)
    assert RunConfig.read(tomllib.loads(config.to_toml())) == config
    assert config.model.mixers == ("gla", ("attention", {"heads": 2}))


def test_set_changes_any_key() -> None:
    changes = ["training.steps=5", "model.mixers=gla + lstm", "data.batch_size = 3"]
    config = RunConfig.read(DATA, [*changes, "training.carry_state=true"])
    assert (
        config.training.steps == 5 and config.training.carry_state and config.data.batch_size == 3
    )
    assert config.model.mixers == ("gla", "lstm")
    assert config.model.sizes_of("language") == (128, 4)
    assert RunConfig.read(DATA).training.time == 600


def test_kinds_without_mixers_have_none() -> None:
    data = {"name": "digits8-images", "kind": "swin"}
    config = RunConfig.read({"data": data})
    assert config.model.mixers == () and config.model.sizes_of("swin") == (64, 2)
    assert RunConfig.read(tomllib.loads(config.to_toml())) == config
    opened = open_data("digits8-images", kind="swin")
    assert opened.spec(config.model).mixers == opened.spec(ModelSettings()).mixers == ()
    with pytest.raises(ThreefoldError, match="a swin model is not made of mixers; leave out mixer"):
        opened.spec(RunConfig.read({"data": data, "model": {"mixers": "gla"}}).model)
    with pytest.raises(ThreefoldError, match="mixers is empty"):
        open_data("digits8-images").spec(config.model)
    with pytest.raises(ThreefoldError, match="a tagger model does not read images"):
        open_data("digits8-images", kind="tagger")


def test_set_reaches_the_options_of_a_mixer() -> None:
    changes = ["model.mixers.mamba.state_size=64", "model.mixers=mamba+gla", "training.time=1.5m"]
    config = RunConfig.read(DATA, [*changes, "model.mixers.mamba.expand=1"])
    assert config.model.mixers == (("mamba", {"state_size": 64, "expand": 1}), "gla")
    assert config.training.time == 90
    assert RunConfig.read(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("text", "steps", "seconds"),
    [("10m", None, 600), ("90s", None, 90), ("1.5h", None, 5400), ("500steps", 500, None)],
)
def test_durations(text: str, steps: int | None, seconds: float | None) -> None:
    assert parse_duration(text) == Duration(steps, seconds)


@pytest.mark.parametrize("text", ["10", "m", "-3s", "0s", "1.5steps", "10 parsecs", ""])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ThreefoldError, match=r"^time is .*, expected a"):
        parse_duration(text)
    with command_line(), pytest.raises(ThreefoldError, match=r"^--time is .*, expected a"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.stepz=3", r"unknown key 'training.stepz'; did you mean 'training.steps'\?"),
        ("trainig.steps=3", "did you mean 'training'"),
        ("learning_rate=3", "did you mean 'training.learning_rate'"),
        ("training.steps=many", r"training\.steps is 'many', expected a whole number"),
        ("data.batch_size=0", r"data\.batch_size is 0, expected greater than or equal to 1"),
        ("model.size=huge", "model.size is 'huge', expected 'tiny'"),
        ("training.optimizer=adan", "training.optimizer is 'adan', expected 'sgd'"),
        ("training.steps=0", "expected at least 1"),
        ("nonsense", "expected key=value"),
        ("data.name.x=3", "name is 'copying' and has no keys"),
        ("training.time=nan", "training.time is nan, expected a finite number"),
        ("training.learning_rate=inf", "expected a finite number"),
        ("model.seed=9223372036854775808", "model.seed is 9223372036854775808, expected less"),
        ("threads=100000", "threads is 100000, expected less than or equal to 1024"),
        ("training.steps=2020-01-01", "expected a whole number"),
        ("training.lr=3", "did you mean 'training.learning_rate'"),
        ("model.mixers=gla,lstm", r"two models.*gla\+lstm for a hybrid.*--mixers gla,lstm"),
        ("model.mixers.mamba.stat_size=8", "did you mean 'state_size'"),
        ("model.mixers.mamba=8", r"expected model\.mixers\.mamba\.OPTION=value"),
        ("model.mixers.gla.heads=8", "the model has no mixer 'gla'; it has mamba"),
        ("model.mixers.glaa.heads=8", "did you mean 'gla'"),
    ],
)
def test_invalid_settings_are_explained(change: str, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        RunConfig.read(DATA, [change])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 3, "patience": 2}, "set training.eval_every"),
        ({"steps": 3, "final_lr": 1.0}, "final_lr is 1, expected at most the peak"),
        ({"time": "200steps"}, "expected a time such as 10m; set training.steps instead"),
        ({"time": "10"}, "expected a duration such as 10m"),
        ({"steps": 3, "learning_rat": 2}, "did you mean 'learning_rate'"),
        ({"steps": 3, "ema": 1.0}, "ema is 1.0, expected less than 1"),
    ],
)
def test_settings_refuse_in_python_too(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        TrainingSettings(**options)


def test_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ThreefoldError, match=r"run\.toml: file not found"):
        read_toml(path)
    path.write_text("[data\n")
    with pytest.raises(ThreefoldError, match=r"run\.toml: not TOML"):
        read_toml(path)
    with pytest.raises(ThreefoldError, match="data is missing"):
        RunConfig.read({})
