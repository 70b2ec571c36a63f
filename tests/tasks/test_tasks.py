"""Tasks that generators of ours make: what is declared is so, and the same bytes on every run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from threefold import ThreefoldError
from threefold.data.loaders import IGNORE
from threefold.data.random_by_address import by_row, hashed
from threefold.tasks import TASKS, Card, card
from threefold.tasks.table import GENERATED, MODEL_KINDS, task
from threefold.tasks.task import METRICS, Task

# sha256 of the first 16 examples of train, valid and test (4 of very long ones).
HASHES = {
    "copying": "0e28bc17c9af9378",
    "selective_copying": "26123f6aab498799",
    "selective_copying-mini": "5dd1ab325cc47701",
    "induction_heads": "1773014ff0fd023d",
    "recall": "f57b928f12d812e0",
    "adding": "c907f2d39bbc103a",
    "delay": "b754a79c40a1ef9b",
    "parity": "d2ec1a6e2c83129a",
    "modular_arithmetic": "165bf86d025d42cd",
    "listops": "b6a29777d11f87eb",
    "listops-mini": "86d7b1cfba72ba97",
    "pathfinder": "67e6bfc870c40fb7",
    "pathfinder16": "c8a7429ddb541cec",
    "pathfinder128": "097d744d19be004c",
    "reversal": "2d4b32d714bfa18b",
    "number_to_words": "78c70682b0aa1228",
    "shapes": "b0aa2e2e215a78f3",
}
MADE_HERE = list(HASHES)


def tensors(rows: Any) -> dict[str, Tensor]:
    """What examples consist of."""
    found = rows._asdict() if hasattr(rows, "_asdict") else vars(rows)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def digest(made: Task[Any]) -> str:
    sha, count = hashlib.sha256(), 16 if made.length < 4000 else 4
    for split in ("train", "valid", "test"):
        for name, value in sorted(tensors(made.batch(split, 0, count)).items()):
            sha.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            sha.update(value.numpy().tobytes())
    return sha.hexdigest()[:16]


def test_the_table_needs_no_torch() -> None:
    code = "import sys, threefold.tasks; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", MADE_HERE)
def test_a_task_is_what_its_card_says(name: str) -> None:
    made, declared = task(name), card(name)
    for field in fields(Card):
        assert getattr(made, field.name) == getattr(declared, field.name), field.name
    assert (
        declared.kind in MODEL_KINDS and declared.metric in METRICS and declared.where == GENERATED
    )
    assert declared.reached(declared.solved) and not declared.reached(declared.chance)
    assert all(0 <= figure <= 1 for figure in declared.published.values())
    rows = made.batch("test", 0, 16)
    if declared.kind == "captioner":
        channels, *sides = rows.source.shape[1:]
        assert channels == declared.features and sides[0] * sides[1] == declared.length
        assert rows.vocabulary == declared.classes > int(rows.target.max())
        return
    if declared.kind == "seq2seq":
        assert rows.source.shape[1] <= declared.length
        assert rows.source_vocabulary == declared.vocabulary
        assert rows.vocabulary == declared.classes > int(rows.target.max())
        return
    assert rows.inputs.shape[1] <= declared.length
    if declared.vocabulary:
        assert rows.inputs.dtype == torch.int64 and rows.inputs.dim() == 2
        assert 0 <= int(rows.inputs.min()) <= int(rows.inputs.max()) < declared.vocabulary
    else:
        assert rows.inputs.dtype == torch.float32 and rows.inputs.shape[2] == declared.features
    if declared.classes:
        counted = rows.targets[rows.targets != IGNORE]
        assert 0 <= int(counted.min()) <= int(counted.max()) < declared.classes
    else:
        assert rows.targets.dtype == torch.float32
    assert (rows.targets.dim() == 1) == (declared.kind in ("classifier", "regressor"))


@pytest.mark.parametrize("name", MADE_HERE)
def test_the_same_bytes_on_every_run(name: str) -> None:
    assert digest(task(name)) == HASHES[name]


@pytest.mark.parametrize("name", MADE_HERE)
def test_an_example_depends_on_its_number_alone(name: str) -> None:
    made = task(name)
    together, alone = made.rows("train", [11, 3, 4]), made.rows("train", [3])
    for field, value in tensors(alone).items():
        other = tensors(together)[field][1:2]
        if value.dim() == 2 and value.dtype == torch.int64:
            # Padding reaches to the longest row that is asked for.
            assert (other[:, value.shape[1] :] == 0).all()
            other = other[:, : value.shape[1]]
        assert torch.equal(other.nan_to_num(9), value.nan_to_num(9)), field
    first = [tensors(task(name, seed=seed).rows("train", [0, 1, 2])) for seed in (0, 1)]
    assert any(not same(*pair) for pair in zip(first[0].values(), first[1].values(), strict=True))
    splits = [tensors(made.rows(split, [0, 1, 2])) for split in ("train", "valid")]
    assert any(not same(*pair) for pair in zip(splits[0].values(), splits[1].values(), strict=True))


def same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(9), other.nan_to_num(9))


@pytest.mark.parametrize("name", [n for n in MADE_HERE if TASKS[n].metric == "accuracy"])
def test_chance_is_the_most_frequent_answer_and_shuffled_labels_give_no_more(name: str) -> None:
    made = task(name)
    # Images are balanced in every two, so a few show it.
    count = 40 if made.domain == "vision" else 200 if made.length > 1000 else 2000
    train, test = made.batch("train", 0, count), made.batch("test", 0, min(count, made.sizes[2]))
    known, asked = (rows.targets[rows.targets != IGNORE] for rows in (train, test))
    frequent = torch.bincount(known, minlength=made.classes).argmax()
    majority = (asked == frequent).float().mean().item()
    noise = 3 * (made.chance * (1 - made.chance) / len(asked)) ** 0.5
    if name != "recall":  # whose chance is to know the row's values, and not which is asked for
        assert majority == pytest.approx(made.chance, abs=noise + 0.01)
    shuffled = asked[torch.from_numpy(np.argsort(by_row((1,), np.arange(1), len(asked))[0]))]
    control = (shuffled == asked).float().mean().item()
    assert control < made.chance + noise


def test_batches_go_on_at_any_step_and_cover_the_split() -> None:
    made = replace(task("copying"), sizes=(50, 10, 10))
    whole = [made.batches(16, seed=3)(step).inputs for step in range(9)]
    for step in (8, 2, 5):
        assert torch.equal(made.batches(16, seed=3)(step).inputs, whole[step])
    one_pass = torch.cat(whole[:3])
    every = made.examples("train").inputs
    assert len({tuple(row) for row in one_pass.tolist()} & {tuple(r) for r in every.tolist()}) == 48
    assert not torch.equal(whole[0], whole[3])
    assert [len(piece.inputs) for piece in made.ordered_batches("valid", 4)] == [4, 4, 2]


def test_what_is_not_there_is_refused() -> None:
    made = task("copying")
    for call, message in (
        (lambda: task("coping"), "copying"),
        (lambda: made.batch("dev", 0, 4), "unknown split"),
        (lambda: made.batch("valid", 1000, 4), "valid' has 1000"),
        (lambda: made.rows("valid", [1000]), "from 0 to 999"),
        (lambda: made.rows("valid", []), "at least one"),
        (lambda: made.batches(0), "batches of 0"),
        (lambda: task("copying", silence=0), "silence of 0"),
        (lambda: task("selective_copying", length=20), "length 20"),
        (lambda: task("induction_heads", length=2), "length 2"),
        (lambda: task("delay", delay=256), "delay of 256"),
        (lambda: task("parity", trained=(3, 2)), "smaller first"),
        (lambda: task("listops", depth=1), "depth 1"),
        (lambda: task("listops", lengths=(500, 600), depth=2), "no expression"),
        (lambda: task("pathfinder", size=8), "size is 8 pixels"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            call().batch("train", 0, 1)
    assert task("copying", silence=7).name == "copying-custom"
    assert not task("selective_copying", length=512).published


def test_draws_by_row_are_even_and_unlike() -> None:
    drawn = by_row((5, 1), np.arange(2000), 50)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=3 / (12 * drawn.size) ** 0.5)
    counts = np.bincount((drawn * 16).astype(int).ravel(), minlength=16) / drawn.size
    assert abs(counts - 1 / 16).max() < 0.003
    for other in (by_row((5, 2), np.arange(2000), 50), np.roll(drawn, 1, 0), np.roll(drawn, 1, 1)):
        assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 0.01
    assert hashed((1,), np.array([0, 1])).tolist() == [0.8730127069240139, 0.6708558408942956]
