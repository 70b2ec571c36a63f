"""Settings that are not given: chosen from the data and the budget, told, kept, reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.surfaces.test_train_commands import command
from threefold.errors import ThreefoldError
from threefold.models.saving import unique_tensors
from threefold.training import defaults
from threefold.training.config import RunConfig
from threefold.training.defaults import Suiting, is_given, suit, with_setting
from threefold.training.experiment import read_run
from threefold.training.range_test import RangeTest, range_test
from threefold.training.training_data import TrainingData, open_data


def waves(count: int, length: int = 24) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    labels = np.arange(count) % 2
    phase = 2 * np.pi * random.random((count, 1))
    speed = np.where(labels, 3.0, 1.0)[:, None]
    values = np.sin(phase + speed * np.arange(length) / 4)
    return values.astype(np.float32)[..., None], labels


def chosen(count: int, training: dict[str, Any], **sections: Any) -> tuple[RunConfig, Any]:
    config = RunConfig.read({"data": {"name": "waves"}, "training": training, **sections})
    data = open_data(config.data, source=waves(count))
    config, _, reasons = suit(config, data)
    return config, reasons


def test_few_examples_get_small_batches_a_small_model_and_dropout() -> None:
    config, reasons = chosen(60, {"steps": 300})
    assert config.data.batch_size == 8  # 48 for training
    assert config.model.size == "tiny"
    assert config.model.options == {"dropout": 0.2}
    assert config.training.keep_best is False  # six examples for validation are too few
    assert set(reasons) == {"data.batch_size", "model.size", "model.options.dropout"}
    assert "48 training examples" in reasons["data.batch_size"]


def test_many_examples_and_steps_get_a_larger_model() -> None:
    config, reasons = chosen(4_000, {"steps": 700, "learning_rate": 1e-3})
    assert (config.model.size, config.data.batch_size) == ("small", 64)
    config, reasons = chosen(4_000, {"steps": 500, "learning_rate": 1e-3})
    assert config.model.size == "tiny"
    assert "small from 600 steps, but it makes 500" in reasons["model.size"]


def test_a_time_limit_counts_the_steps_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {None: 0.1, "tiny": 0.1, "small": 1.0}
    monkeypatch.setattr(Suiting, "_step_seconds", lambda self, size: seconds[size])
    config, reasons = chosen(4_000, {"time": 100})
    assert config.model.size == "tiny" and config.training.steps is None
    assert "it makes 80 in 1 min 40 s" in reasons["model.size"]
    seconds.update({"small": 0.1})
    assert chosen(4_000, {"time": 100})[0].model.size == "small"
    config, reasons = chosen(4_000, {"time": 10})
    assert config.data.batch_size == 8 and "steps in 10 s" in reasons["data.batch_size"]
    config, reasons = chosen(60, {"time": 3600, "augment": ()})
    assert config.training.steps == 1200  # 200 passes over 48 examples in batches of 8
    assert "memorize" in reasons["training.steps"]


def test_what_is_given_is_never_changed() -> None:
    given = {
        "data": {"name": "waves", "batch_size": 16},
        "model": {"width": 16, "depth": 1, "options": {"dropout": 0.5}},
    }
    training = {"steps": 600, "learning_rate": 1e-3, "keep_best": True, "augment": ("noise",)}
    config, reasons = chosen(60, training, **given)
    assert reasons == {} and config == RunConfig.read({**given, "training": training})


def test_the_same_steps_give_the_same_settings_and_leave_random_numbers() -> None:
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one = chosen(200, {"steps": 620}, model={"mixers": "min_gru", "width": 16, "depth": 1})
    assert torch.equal(before, torch.random.get_rng_state())
    other = chosen(200, {"steps": 620}, model={"mixers": "min_gru", "width": 16, "depth": 1})
    assert one == other and "training.learning_rate" in one[1]
    assert 1e-3 <= one[0].training.learning_rate <= 1e-2
    assert "training.learning_rate" not in chosen(200, {"steps": 300})[1]  # a tenth is too much


def test_a_range_test_restores_the_model_and_finds_where_the_loss_rises() -> None:
    config = RunConfig.read(
        {
            "data": {"name": "waves"},
            "model": {"mixers": "min_gru", "width": 16, "depth": 1},
            "training": {"steps": 10},
        }
    )
    data = open_data(config.data, source=waves(200))
    model = threefold.build(data.spec(config.model)).eval()
    before = {name: tensor.clone() for name, tensor in unique_tensors(model).items()}
    objective, held = data.objective(config.training), [data.task.rows("valid", np.arange(16))]
    found = range_test(model, data.batches(), held, objective, config.training)
    assert not model.training
    assert all(torch.equal(before[n], tensor) for n, tensor in unique_tensors(model).items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(set(found.losses)) > 10  # it did train
    rates = tuple(10.0**power for power in (-4, -3.5, -3, -2.5, -2, -1.5, -1))
    falls = RangeTest(rates, (1.0, 0.9, 0.7, 0.5, 0.4, 0.8, 9.0))
    assert falls.rate_of_lowest == 1e-2 and falls.peak == 3e-3  # a quarter of it, one digit
    assert RangeTest(rates, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)).peak == 1e-3
    assert RangeTest(rates, (7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0)).peak == 1e-2


def test_a_run_keeps_what_was_chosen_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{'good' if i % 2 else 'bad'} film {i},{'ab'[i % 2]}" for i in range(100)]
    Path("few.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    arguments = ("train", "few.csv", "--steps", "20", "--mixers", "min_gru", "--folder", "run")
    assert command(*arguments) == 0
    out = capsys.readouterr().out
    assert "chosen" in out and "model.size=tiny (80 training examples" in out
    config = read_run(tmp_path / "run")
    assert (config.model.size, config.training.keep_best) == ("tiny", True)
    assert "few" not in (tmp_path / "run" / "config.toml").read_text().split("[chosen]")[1]
    # The same command again, on a machine that would choose otherwise.
    monkeypatch.setattr(defaults, "LEAST_EXAMPLES", {"small": 1, "medium": 1})
    monkeypatch.setattr(defaults, "LEAST_STEPS", {"small": 1, "medium": 10**9})
    assert command(*arguments) == 0
    assert read_run(tmp_path / "run") == config
    with pytest.raises(ThreefoldError, match=r"model.size was 'tiny' and is now 'medium'"):
        threefold.train("few.csv", mixers="min_gru", steps=20, folder="run", size="medium")


def test_the_best_weights_are_kept_on_request() -> None:
    settings = {"data.batch_size": 8, "model.width": 16, "model.depth": 1}
    settings |= {"training.keep_best": True, "training.learning_rate": 0.05}
    run = threefold.train(waves(100), mixers="min_gru", steps=40, settings=settings)
    losses = {steps: scores.loss for steps, scores in run.result.validation}
    assert len(losses) == 10
    assert run.result.kept_step == min(losses, key=losses.__getitem__)
    assert run.summary["valid"]["loss"] == min(losses.values())


def test_settings_by_name() -> None:
    config = RunConfig.read({"data": {"name": "waves"}, "training": {"steps": 1}})
    assert not is_given(config, "model.options.dropout")
    config = with_setting(config, "model.options.dropout", 0.1)
    assert is_given(config, "model.options.dropout") and config.model.options == {"dropout": 0.1}
    data = open_data(config.data, source=waves(40))
    assert isinstance(data.with_settings(config.data), TrainingData)
