"""Pretraining on the inputs of a user's own table, labelled or not."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.test_train_commands import command
from tests.training.runs import die_after
from tests.training.test_fine_tuning import sentence, weights
from threefold.errors import ThreefoldError
from threefold.training import pretraining
from threefold.training.config import RunConfig
from threefold.training.pretraining import pretraining_task
from threefold.training.training_data import open_data

SMALL = {"data.batch_size": 8, "model.width": 16, "model.depth": 1, "training.save_every": 2}


def write_texts(path: Path) -> Path:
    rows = [f"{sentence(i % 2 == 1, i)},{('bad', 'good', '')[min(i % 6, 2)]}" for i in range(120)]
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


def write_series(path: Path) -> Path:
    draw, rows = random.Random(0), ["id,a,b,label"]
    for number in range(60):
        label = "" if number >= 24 else ("fast", "slow")[number % 2]
        for time in range(8):
            value = math.sin(time * (1 + number % 2))
            rows.append(f"{number},{value:.4f},{draw.random():.4f},{label}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_rows_without_a_label_are_pretrained_on_and_nothing_else(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.csv")
    with pytest.raises(ThreefoldError, match=r"label is missing; pretrain= learns from rows"):
        open_data(str(path))
    data = open_data(str(path), pretrain=True)
    assert sum(data.task.sizes) == 40
    assert len(data.task.pretraining) == 80 + data.task.sizes[0]
    task = pretraining_task(data.task)
    assert task.kind == "language" and sum(task.sizes[:2]) == len(data.task.pretraining)
    rows = task.rows("train", [0, 1, 2])
    for inputs, targets, length in zip(rows.inputs, rows.targets, rows.lengths, strict=True):
        assert torch.equal(inputs[1:length], targets[: length - 1])
        assert (targets[length:] == -100).all()


def test_words_start_from_the_documents_that_they_share_if_these_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, used = write_texts(tmp_path / "a.csv"), []

    def start(name: str) -> Any:
        original = getattr(pretraining, name)

        def record(model: Any, inputs: Any, *rest: Any) -> int:
            before = model.embedding.weight.detach().clone()
            found = int(original(model, inputs, *rest))
            changed = (model.embedding.weight != before).any(1)
            used.append((name, len(inputs), found, int(changed.sum())))
            return found

        return record

    for name in ("start_from_documents", "start_from_neighbours"):
        monkeypatch.setattr(pretraining, name, start(name))
    for fewest in (50, 200):
        monkeypatch.setattr(pretraining, "FEWEST_DOCUMENTS", fewest)
        threefold.train(path, mixers="min_gru", pretrain=True, steps=1, settings=SMALL)
    names, inputs, found, changed = zip(*used, strict=True)
    assert names == ("start_from_documents", "start_from_neighbours")
    assert inputs[0] == inputs[1] >= 80
    assert found == changed and min(found) > 5


@pytest.mark.parametrize("kind", ["text", "series"])
def test_a_pretrained_run_starts_from_what_was_learnt_and_resumes_bit_for_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    (write_texts if kind == "text" else write_series)(path)
    columns: Any = {} if kind == "text" else {"group_column": "id", "kind": "classifier"}
    options: Any = {"mixers": "min_gru", "steps": 4, "pretrain": True, "target": "label", **columns}
    options["settings"] = {**SMALL, "training.pretrain_steps": 3}
    whole = threefold.train(path, folder=tmp_path / "whole", **options)
    assert len((tmp_path / "whole" / "pretraining" / "log.jsonl").read_text().splitlines()) == 3
    for steps in (2, 3):  # in the midst of pretraining, then of training
        die_after(steps, monkeypatch)
        with pytest.raises(SystemExit):
            threefold.train(path, folder=tmp_path / "part", **options)
    monkeypatch.undo()
    assert command("resume", str(tmp_path / "part")) == 0
    resumed = weights(threefold.load(tmp_path / "part"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in weights(whole.model).items())
    alone = threefold.train(
        path, **{**options, "settings": {**options["settings"], "training.pretrain_steps": 1}}
    )
    learnt = weights(alone.model)
    assert not any(torch.equal(learnt[name], resumed[name]) for name in resumed if "mixer" in name)
    assert threefold.evaluate(tmp_path / "whole")["n"] == whole.data.task.size("test")


def test_what_cannot_be_pretrained_is_refused(tmp_path: Path) -> None:
    path = write_texts(tmp_path / "a.csv")
    options: Any = {"mixers": "min_gru", "steps": 1, "pretrain": True}
    both = {**SMALL, "model.options": {"bidirectional": True}}
    with pytest.raises(ThreefoldError, match=r"predict the next element, which this classifier"):
        threefold.train(path, settings=both, **options)
    full = tmp_path / "full.csv"
    full.write_text(path.read_text().replace(",\n", ",bad\n"), encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"full.csv has no rows without a label"):
        threefold.train(full, settings=SMALL, **options)
    (tmp_path / "n.txt").write_text("so much depends " * 60, encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"data.pretrain is True, but it does not apply"):
        threefold.train(tmp_path / "n.txt", settings=SMALL, **options)
    RunConfig.read({"data": {"name": "a", "pretrain": True}})
