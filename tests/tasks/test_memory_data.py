"""Arrays and torch Datasets as tasks: what they predict is inferred, splits are the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import threefold
from threefold import Task, ThreefoldError
from threefold.tasks.task import SPLITS
from threefold.tasks.user_data import user_task
from threefold.tasks.user_data.settings import ReadSettings

RANDOM = np.random.default_rng(0)
LONG = [int(n) for n in RANDOM.integers(3, 9, 40)]  # lengths of 40 sequences
TOKENS = [RANDOM.integers(0, 7, n) for n in LONG]
CLASSES = [int(row.max() > 5) for row in TOKENS]


class Items(Dataset[Any]):
    """Items in a list, read one by one."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.read = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        self.read += 1
        return self.items[number]


def items(x: Any, y: Any) -> Items:
    pairs = zip(x, y, strict=True)
    return Items([(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs])


def made(x: Any, y: Any = None, **settings: Any) -> Task[Any]:
    source = x if y is None else items(x, y)
    return user_task(source, ReadSettings(**settings))


NUMBERS = [torch.randn(n, 2, generator=torch.Generator().manual_seed(n)) for n in LONG]


@pytest.mark.parametrize(
    ("x", "y", "kind", "expected"),
    [
        (TOKENS, CLASSES, None, ("classifier", "accuracy", 7, 0, 2)),
        (NUMBERS, CLASSES, None, ("classifier", "accuracy", 0, 2, 2)),
        (
            TOKENS,
            [float(len(row)) for row in TOKENS],
            None,
            ("regressor", "absolute_error", 7, 0, 0),
        ),
        (NUMBERS, [row.sum(0) for row in NUMBERS], None, ("regressor", "absolute_error", 0, 2, 0)),
        (TOKENS, CLASSES, "regressor", ("regressor", "absolute_error", 7, 0, 0)),
        (TOKENS, [row % 3 for row in TOKENS], None, ("tagger", "accuracy", 7, 0, 3)),
        (
            torch.randn(40, 12),
            torch.randn(40, 3),
            "forecaster",
            ("forecaster", "absolute_error", 0, 1, 0),
        ),
    ],
)
def test_what_a_dataset_predicts(x: Any, y: Any, kind: str | None, expected: Any) -> None:
    task = made(x, y, kind=kind)
    assert (task.kind, task.metric, task.vocabulary, task.features, task.classes) == expected
    assert task.sizes == (32, 4, 4) and np.isfinite(task.chance)
    seen = [tuple(np.asarray(task.rows(s, [n]).inputs).ravel()) for s in SPLITS
            for n in range(task.size(s))]  # fmt: skip
    assert len(seen) == 40  # every item is in one split
    batch = task.rows("train", [0, 1, 2])
    assert batch.inputs.is_floating_point() == (task.vocabulary == 0)
    run = threefold.train(items(x, y), kind=kind, mixers="gru", size="tiny", steps=2)
    assert run.model.kind == task.kind and np.isfinite(run.history[-1]["loss"])


def test_rows_are_padded_and_items_read_when_needed() -> None:
    dataset = items(TOKENS, CLASSES)
    task = user_task((dataset, dataset, dataset))
    assert task.sizes == (40, 40, 40)
    dataset.read = 0
    batch = task.rows("test", [4, 7])
    assert dataset.read == 2
    assert batch.lengths.tolist() == [LONG[4], LONG[7]]
    for row, number in enumerate((4, 7)):
        assert batch.inputs[row, : LONG[number]].tolist() == TOKENS[number].tolist()
        assert (batch.inputs[row, LONG[number] :] == 0).all()
    assert batch.targets.tolist() == [CLASSES[4], CLASSES[7]]
    tags = made(TOKENS, [row % 3 for row in TOKENS]).rows("train", range(20))
    assert (tags.targets != -100).sum() == tags.lengths.sum()


def test_dicts_loaders_and_given_splits() -> None:
    pairs = [
        {"input_ids": torch.as_tensor(x), "label": y} for x, y in zip(TOKENS, CLASSES, strict=True)
    ]
    task = made((Items(pairs[:30]), Items(pairs[30:])))
    assert task.sizes == (27, 3, 10)
    last = task.rows("test", [9])
    assert last.inputs[0].tolist() == TOKENS[-1].tolist() and last.targets[0] == CLASSES[-1]
    table = TensorDataset(torch.randn(40, 6, 2), torch.arange(40) % 2)
    loader = DataLoader(table, batch_size=5, shuffle=True)
    run = threefold.train(loader, mixers="gru", size="tiny", steps=2)
    assert len(run.model.predict(table.tensors[0][:3])) == 3
    assert run.result.tokens == 2 * 5 * 6  # its batch size
    report = threefold.compare(loader, "gru,rnn", time="2steps", seeds=1, width=16, depth=1)
    assert {c.name for c in report.contenders} == {"gru", "rnn"}
    assert "DataLoader" in report.subject.command and report.subject.kind == "classifier"


def test_a_model_answers_items_in_a_fresh_load(tmp_path: Path) -> None:
    """Tokens whose numbers add up; targets far from 0 are scaled and scaled back."""
    x = RANDOM.integers(0, 5, (400, 6))
    dataset = items(x, 1000.0 + 100.0 * x.sum(1))
    run = threefold.train(dataset, mixers="gru", size="tiny", steps=150, folder=tmp_path / "run")
    assert run.test is not None and run.test.metric < run.summary["chance"] / 3
    model = threefold.load(tmp_path / "run")
    answers = model.predict(x[:5])
    assert [a["value"] for a in answers] == pytest.approx(
        (1000 + 100 * x[:5].sum(1)).tolist(), abs=300
    )
    assert model.predict(x[0].tolist())[0]["value"] == pytest.approx(answers[0]["value"], rel=1e-5)
    with pytest.raises(ThreefoldError, match=r"from 0 to 9; expected 0 to 4"):
        model.predict([[0, 9]])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ()


def collate(rows: Any) -> Any:
    return rows


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Endless(), "Endless cannot be read by number"),
        (DataLoader(items(TOKENS, CLASSES), collate_fn=collate), "has a collate_fn of its own"),
        (Items([(1, 2, 3)] * 12), r"is tuple, expected \(x, y\)"),
        (Items([{"x": [1], "y": 0, "mask": [1]}] * 12), "has the keys x, y, mask"),
        (items(TOKENS[:5], CLASSES[:5]), "5 items; expected at least 10"),
        (items(TOKENS, [row[:2] for row in TOKENS]), "a whole number per element"),
        (items([np.zeros((2, 2, 2))] * 12, [0] * 12), r"shape \(2, 2, 2\)"),
        (items([TOKENS[0]] * 6 + [NUMBERS[0]] * 6, [0] * 12), "different forms"),
        (DataLoader(Endless()), "Endless cannot be read by number"),
        (items(TOKENS, [0, 1000] * 20), "up to 1,000, but 999 of them, such as 1, do not occur"),
        (TensorDataset(torch.randn(12, 4), torch.tensor([0.5, np.nan] * 6)),
         "TensorDataset, item [0-9]+: the target is nan; expected finite"),
        (TensorDataset(torch.tensor([[0.5, np.inf]] * 12), torch.arange(12) % 2),
         "TensorDataset, item [0-9]+: x contains NaN or infinite"),
        ((np.zeros((12, 4)), np.array([0.5] * 11 + [np.nan])), "example 12: the target is nan"),
    ],
)  # fmt: skip
def test_other_datasets_are_refused(source: Any, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        user_task(source)


def test_a_random_dataset_cannot_be_raced() -> None:
    class Noisy(Items):
        def __getitem__(self, number: int) -> Any:
            return torch.randn(5, 1), number % 2

    with pytest.raises(ThreefoldError, match="different batches"):
        threefold.compare(Noisy([0] * 40), "gru,rnn", time="2steps", seeds=1, width=16, depth=1)


def test_arrays_with_names_splits_and_tokens() -> None:
    x, y = RANDOM.integers(0, 5, (20, 4)), RANDOM.integers(0, 2, 20)
    task = Task.from_arrays(
        x, y, name="mine", labels=("no", "yes"), vocabulary=5, splits={"test": (x[:3], y[:3])}
    )
    assert (task.name, task.labels, task.vocabulary) == ("mine", ("no", "yes"), 5)
    assert task.sizes == (18, 2, 3)
    rows = task.examples("test")
    assert rows.inputs.tolist() == x[:3].tolist() and rows.targets.tolist() == y[:3].tolist()
    run = threefold.train(task, mixers="gru", size="tiny", steps=2)
    assert set(run.model.predict(x[:2])[0]["probabilities"]) == {"no", "yes"}
    numbers = Task.from_arrays(RANDOM.normal(size=(20, 4)), RANDOM.normal(size=(20, 2)))
    assert numbers.kind == "regressor" and numbers.rows("train", [0]).targets.shape == (1, 2)
    tags = Task.from_arrays([[0.5, 1.5], [2.5]] * 10, [["a", "b"], ["a"]] * 10)
    assert tags.kind == "tagger" and tags.labels == ("a", "b")


def test_arrays_of_forecasts() -> None:
    series = np.sin(np.arange(300) / 5)
    task = Task.from_arrays(series, horizon=4, name="wave")
    assert task.kind == "forecaster" and task.rows("train", [0]).targets.shape == (1, 4)
    x = np.stack([series[i : i + 20] for i in range(200)])
    y = np.stack([series[i + 20 : i + 23] for i in range(200)])
    windows = Task.from_arrays(x, y, kind="forecaster")
    assert windows.sizes == (160, 20, 20) and windows.length == 20
    assert windows.rows("test", [19]).targets[0].tolist() == pytest.approx(y[-1].tolist())
    assert windows.chance == pytest.approx(np.abs(y[180:] - x[180:, -1:]).mean())
    run = threefold.train(windows, mixers="gru", size="tiny", steps=2)
    assert run.model.spec.option("horizon") == 3


def windows(context: Any = 0, future: Any = 0) -> dict[str, Any]:
    """Contexts and futures of which one number is another."""
    x, y = RANDOM.normal(size=(20, 6)), RANDOM.normal(size=(20, 2))
    x[2, 3] += context
    y[4] += future
    return {"x": x, "y": y, "kind": "forecaster"}


def test_a_future_of_which_some_values_are_not_known() -> None:
    data = windows(future=(0, np.nan))
    task = Task.from_arrays(**data)
    assert task.chance is not None and np.isfinite(task.chance)
    run = threefold.train(task, mixers="gru", size="tiny", steps=2)
    assert all(np.isfinite(p.numpy()).all() for p in run.model.state_dict().values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [[1.0]] * 3, "y": [0, 1]}, "3 inputs and 2 targets"),
        ({"x": [[1.0]] * 12, "y": [0, 2] * 6, "labels": ("a", "b")}, "labels has 2 names"),
        ({"x": [[1.0]] * 12, "y": [0, 1] * 6, "labels": ("a",)}, "labels has 1 names, 'a'"),
        ({"x": [[1.0]] * 12, "y": [0, -1] * 6, "labels": ("a", "b")}, "labels has 2 names"),
        ({"x": [[1.0]] * 12, "y": [0, 1] * 6, "kind": "foo"}, "unknown kind 'foo'"),
        ({"x": [[1.0]] * 12, "y": [0, 1] * 6, "kind": "language"}, "kind is 'language', but"),
        ({"x": [[1.0]] * 12, "y": [0, 1] * 6, "kind": "tagger"}, "example 1: the target is 0"),
        ({"x": [[1.0]] * 12, "y": [0.5, np.nan] * 6}, "example 2: the target is nan"),
        ({"x": [[9]] * 12, "y": [0, 1] * 6, "vocabulary": 5}, "expected 0 to 4"),
        ({"x": [[1.0]] * 12, "y": [0, 1] * 6, "splits": {"dev": ()}}, r"\['dev'\]; expected"),
        ({"x": np.zeros((9, 5)), "y": np.zeros((8, 2)), "kind": "forecaster"}, r"\(9, 5, 1\)"),
        ({"x": [1.0, 2.0]}, "one series x and a horizon"),
        (windows(context=np.nan), r"context 3 contains NaN .*\(1 of 20 contexts do\).*a horizon"),
        (windows(context=np.inf), "context 3 contains NaN or infinite numbers"),
        (windows(future=np.inf), "future 5 contains infinite numbers"),
        (windows(future=(np.nan, np.nan)), "future 5 has no known value"),
    ],
)  # fmt: skip
def test_bad_arrays_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        Task.from_arrays(**arguments)


def test_a_task_trains_its_own_kind_of_model() -> None:
    task = Task.from_arrays(RANDOM.normal(size=(20, 4)), [0, 1] * 10)
    with pytest.raises(ThreefoldError, match="kind is regressor, but arrays, a task in memory"):
        threefold.train(task, kind="regressor", mixers="gru", size="tiny", steps=1)


def test_missing_inputs_are_filled_and_told() -> None:
    x = RANDOM.normal(size=(20, 4))
    x[3, 2] = np.nan
    task = Task.from_arrays(x, [0, 1] * 10)
    assert all(task.examples(split).inputs.isfinite().all() for split in SPLITS)
    assert "1 of 80 numbers of the inputs are NaN (first: example 4)" in str(task.description)


def test_what_is_no_task_is_not_registered() -> None:
    with pytest.raises(ThreefoldError, match="task 'q': its function returned None"):
        threefold.register_task("q", lambda: None)  # type: ignore[arg-type, return-value]
