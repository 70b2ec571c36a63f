"""Augmentations change training batches at random, the same at the same step, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from threefold.data.augmentation import AUGMENTATIONS, FOR_TOKENS, augmented
from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError

LENGTHS = torch.tensor([12, 7, 1, 10])


def series(_: int = 0) -> Batch:
    inputs = torch.arange(4 * 12 * 2, dtype=torch.float32).reshape(4, 12, 2)
    return Batch(inputs, torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.bool), LENGTHS)


def tokens(_: int = 0) -> Batch:
    inputs = torch.arange(4 * 12).reshape(4, 12)
    return Batch(inputs, torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.bool), LENGTHS)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_an_augmentation_depends_on_seed_and_step_only(name: str) -> None:
    one, again, later = (augmented(series, [name], 3)(step) for step in (5, 5, 6))
    assert torch.equal(one.inputs, again.inputs)
    assert one.inputs.shape != later.inputs.shape or not torch.equal(one.inputs, later.inputs)
    assert one.inputs.isfinite().all() and one.lengths is not None and (one.lengths >= 1).all()


@pytest.mark.parametrize("name", FOR_TOKENS)
def test_tokens_are_left_out_in_order(name: str) -> None:
    before, rows = tokens(), augmented(tokens, [name], 0)(1)
    assert rows.lengths is not None and (rows.lengths <= LENGTHS).all()
    assert int(rows.lengths.sum()) < int(LENGTHS.sum())
    for row, length, original, whole in zip(
        rows.inputs, rows.lengths, before.inputs, LENGTHS, strict=True
    ):
        kept = row[:length].tolist()
        assert kept == sorted(kept) and set(kept) <= set(original[:whole].tolist())
        if name == "crop":
            assert kept == list(range(kept[0], kept[0] + len(kept)))


def test_a_warp_keeps_order_ends_and_range() -> None:
    ramp = torch.arange(12.0).reshape(1, 12, 1)
    batch = Batch(ramp, torch.tensor([0]), torch.ones(1, dtype=torch.bool))
    warped = augmented(lambda _: batch, ["warp"], 0)(0).inputs[0, :, 0]
    assert (warped.diff() > 0).all() and not torch.equal(warped, ramp[0, :, 0])
    assert warped[0] == 0 and warped[-1] == pytest.approx(11, abs=1e-4)


def test_mixup_counts_each_target_by_its_share() -> None:
    before, rows = series(), augmented(series, ["mixup"], 0)(0)
    assert rows.weights is not None and len(rows.inputs) == 8
    pairs = rows.weights.reshape(2, 4)
    torch.testing.assert_close(pairs.sum(0), torch.full((4,), 2.0))
    other = [int(target) for target in rows.targets[4:]]
    assert sorted(other) == sorted(before.targets.tolist())
    share = pairs[0] / 2
    assert ((share >= 0) & (share <= 1)).all() and share.std() > 0


def test_training_uses_augmentations_only_where_they_fit(tmp_path: Path) -> None:
    draw = random.Random(0)
    inputs = [[draw.random() + number % 2 for _ in range(8)] for number in range(40)]
    labels = [("a", "b")[number % 2] for number in range(40)]
    settings: dict[str, Any] = {"data.batch_size": 8, "model.width": 16, "model.depth": 1}
    options: Any = {"mixers": "min_gru", "steps": 2}
    every = {**settings, "training.augment": list(AUGMENTATIONS)}
    plain = threefold.train((inputs, labels), settings=settings, **options)
    changed = threefold.train((inputs, labels), settings=every, **options)
    assert plain.history[0]["loss"] != changed.history[0]["loss"]
    texts = (["good film", "bad plot"] * 20, labels)
    with pytest.raises(ThreefoldError, match=r"noise changes numbers, but arrays has tokens"):
        threefold.train(texts, settings=every, **options)
    (tmp_path / "n.txt").write_text("so much depends " * 60, encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"only classifiers and regressors"):
        threefold.train(tmp_path / "n.txt", settings=every, **options)
