"""What helps few examples is compared on held-out ones, told, kept, and reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.surfaces.test_train_commands import command
from tests.training.test_defaults import waves
from threefold.training import few_examples
from threefold.training.config import RunConfig
from threefold.training.defaults import suit
from threefold.training.experiment import read_run
from threefold.training.few_examples import Comparison, Difference, candidates, choose, folds
from threefold.training.training_data import TrainingData, open_data

SMALL = {"mixers": "min_gru", "width": 16, "depth": 1}


def waves_of(count: int, **training: Any) -> tuple[RunConfig, TrainingData]:
    config = RunConfig.read(
        {"data": {"name": "waves", "batch_size": 8}, "model": SMALL, "training": training}
    )
    return config, open_data(config.data, source=waves(count))


def test_every_example_is_held_out_once_with_all_classes_in_every_fold() -> None:
    _, data = waves_of(60, steps=1)
    size = data.task.size("train")
    parts = list(folds(data.task))
    assert sorted(np.concatenate(parts).tolist()) == list(range(size))
    for fold in parts:
        targets = data.task.rows("train", fold).targets
        assert abs(int((targets == 0).sum()) - int((targets == 1).sum())) <= 1
    held = few_examples._held_out(data, parts[0])
    rest = torch.cat([data.task.rows("train", part).inputs for part in parts[1:]])
    kept = held.task.rows("train", np.arange(held.task.size("train"))).inputs
    assert held.task.size("valid") == len(parts[0])
    assert torch.equal(kept.sort(0).values, rest.sort(0).values)
    assert torch.equal(held.task.examples("valid").inputs, data.task.rows("train", parts[0]).inputs)


def test_augmentation_wins_only_beyond_chance() -> None:
    draw = np.random.default_rng(0)
    losses = draw.random(40)
    of = {(): losses, ("warp",): losses - 0.3 + 0.1 * draw.random(40), ("crop",): losses - 0.1}
    choice = choose(of.__getitem__, [("warp",), ("crop",)], "9 runs")
    assert choice.names == ("warp",)
    assert "instead of" in choice.reason and "crop" in choice.reason and "9 runs" in choice.reason
    of[("warp",)] = losses + draw.normal(0, 1, 40)
    of[("crop",)] = losses + 0.1
    choice = choose(of.__getitem__, [("warp",), ("crop",)], "9 runs")
    assert choice.names == () and choice.reason.startswith("none wins")
    assert Difference(1.0, 0.2, 0.09).wins and not Difference(1.0, 0.2, 0.11).wins


def test_what_is_compared_follows_the_data() -> None:
    assert ("mixup",) in candidates(waves_of(60, steps=1)[1])
    assert candidates(waves_of(600, steps=1)[1]) == ()  # not few
    rows = [f"{'good' if i % 2 else 'bad'} film {i}" for i in range(60)]
    texts = {"text": rows, "label": ["ab"[i % 2] for i in range(60)]}
    config = RunConfig.read({"data": {"name": "texts"}, "training": {"steps": 1}})
    found = candidates(open_data(config.data, source=texts))
    assert found and all(set(names) <= {"crop", "dropout"} for names in found)


def test_a_comparison_judges_examples_that_were_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, data = waves_of(60, steps=30, learning_rate=0.03)
    runs: list[int] = []
    compare = Comparison(config, data, None, 30, lambda: runs.append(1))
    random_state = torch.random.get_rng_state()
    losses = compare(())
    assert len(runs) == few_examples.FOLDS and (losses > 0).all()
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert np.array_equal(losses, compare(()))
    assert not np.array_equal(losses, compare(("noise", "scale")))


def chosen(monkeypatch: pytest.MonkeyPatch, **training: Any) -> tuple[RunConfig, Any]:
    """What is chosen where crops always win, and the comparison takes no time."""

    def losses(self: Comparison, names: tuple[str, ...]) -> Any:
        self.on_run()
        return np.linspace(0.5, 1.0, 30) - (0.2 if "crop" in names else 0.0)

    monkeypatch.setattr(Comparison, "__call__", losses)
    config, data = waves_of(60, **training)
    config, _, reasons = suit(config, data)
    return config, reasons


def test_the_choice_follows_the_budget_and_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    config, reasons = chosen(monkeypatch, steps=2400, learning_rate=1e-3)
    assert config.training.augment == ("crop",)
    assert "held-out loss 0.55 instead of 0.75" in reasons["training.augment"]
    assert "training.augment" not in chosen(monkeypatch, steps=200, learning_rate=1e-3)[1]
    given = chosen(monkeypatch, steps=2400, learning_rate=1e-3, augment=("noise",))
    assert given[0].training.augment == ("noise",) and "training.augment" not in given[1]
    config, data = waves_of(60, steps=2400, learning_rate=1e-3)
    reasons = dict(suit(config, data, dry=True)[2])
    assert reasons["training.augment"].startswith("compared when the run begins")


def test_the_plan_tells_the_choice_and_the_run_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(few_examples, "STEPS", (2, 2))
    rows = [f"{'good' if i % 2 else 'bad'} film {i},{'ab'[i % 2]}" for i in range(60)]
    Path("few.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    arguments = ["train", "few.csv", "--steps", "30", "--mixers", "min_gru", "--folder", "run"]
    assert command(*arguments) == 0
    shown = capsys.readouterr().out
    assert "training.augment=" in shown and "runs of 2 steps" in shown
    config = read_run(tmp_path / "run")
    assert "augment" in config.training.model_fields_set
    monkeypatch.delattr(Comparison, "__call__")  # it goes on with what was chosen
    assert command(*arguments) == 0
    assert read_run(tmp_path / "run") == config
