"""A torch Dataset, or (train, test) or (train, valid, test) of them, as a task.

item   (x, y), or {"x": …, "y": …}, read by its number whenever it is needed, used as it is
x      tokens [length] (whole numbers), or numbers [length] or [length, features]; any lengths
y      a whole number: classifier · one number or several: regressor · a whole number for each
       element: tagger · with kind="forecaster", the future [horizon] or [horizon, channels]

All items are read once beforehand, to learn their lengths, classes and scales.  An item must be the
same whenever it is read: a run that resumes, and models that are compared, need the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from threefold.data.loaders import IGNORE, Batch
from threefold.data.padding import pad_rows
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.preprocessing.text import Labels, TokenNumbers
from threefold.errors import ThreefoldError
from threefold.tasks.baselines import majority_score
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.arrays import refuse_missing_target
from threefold.tasks.user_data.description import DataDescription
from threefold.tasks.user_data.examples import FEWEST_EXAMPLES, output_names
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.splits import shuffled_split

INPUT_KEYS = ("x", "input", "inputs", "input_ids", "tokens")
TARGET_KEYS = ("y", "target", "targets", "label", "labels")
KINDS = ("classifier", "regressor", "tagger", "forecaster")


def is_dataset(source: Any) -> bool:
    """Whether data are a Dataset, a DataLoader, or a tuple of them."""
    parts = source if isinstance(source, tuple) else (source,)
    return bool(parts) and all(isinstance(part, (Dataset, DataLoader)) for part in parts)


def batch_size_of(source: Any) -> int | None:
    """The batch size of a DataLoader, of the first of several; None for others."""
    first = source[0] if isinstance(source, tuple) and source else source
    return first.batch_size if isinstance(first, DataLoader) else None


def dataset_task(source: Any, reading: Reading) -> Task[Batch]:
    """The task of one, two or three Datasets."""
    reading.settings.allow_only("a Dataset")
    datasets = [_dataset(part) for part in (source if isinstance(source, tuple) else (source,))]
    name = type(datasets[0]).__name__
    splits = _split(name, datasets, reading)
    facts = Facts(name, splits, reading)
    preprocessing = facts.preprocessing

    def draw(split: str, numbers: Numbers) -> Batch:
        rows, answers = zip(*(splits[split].read(number) for number in numbers), strict=True)
        inputs, lengths = pad_rows(rows)
        varied = None if len(set(lengths.tolist())) == 1 else lengths
        if facts.kind == "tagger":
            return make_batch(inputs, pad_rows(answers, IGNORE)[0], varied)
        return make_batch(inputs, facts.encode(np.stack(answers)), varied)

    tokens = splits["train"].read(0)[0].ndim == 1
    return declare_user_task(
        name,
        draw,
        kind=facts.kind,
        domain="text" if tokens else "series",
        length=facts.length,
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="accuracy" if facts.classes else "absolute_error",
        chance=facts.chance,
        vocabulary=facts.vocabulary,
        features=0 if tokens else splits["train"].read(0)[0].shape[1],
        classes=len(facts.labels),
        labels=facts.labels,
        error_scale=() if facts.scale is None else facts.scale.deviation,
        preprocessing=None if preprocessing is None else lambda: preprocessing,
        description=facts.description,
    )


@dataclass(frozen=True)
class Items:
    """Some items of a Dataset."""

    dataset: Any
    numbers: Sequence[int]
    where: str

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, index: int) -> str:
        """Where an item is."""
        return f"{self.where}, item {self.numbers[index]}"

    def read(self, index: int) -> tuple[Array, Array]:
        """Input and target of an item."""
        place = self.place(index)
        x, y = _pair(self.dataset[int(self.numbers[index])], place)
        row, answer = _array(x, place), _array(y, place)
        if row.dtype.kind not in "iub" and row.ndim == 1:
            row = row[:, None]
        whole = row.dtype.kind in "iub"
        if row.ndim != (1 if whole else 2) or not len(row):
            raise ThreefoldError(
                f"{place}: x is {row.dtype} of shape {row.shape}; expected tokens [length], or "
                "numbers [length] or [length, features], at least one element"
            )
        return row, answer


class Facts:
    """What all items together say about the task: each is read once."""

    def __init__(self, name: str, splits: Mapping[str, Items], reading: Reading) -> None:
        self.name, self.splits, self.known = name, splits, reading.preprocessing
        self.length, self.vocabulary = 0, 0
        self.targets: dict[str, list[Array]] = {split: [] for split in splits}
        self.last: list[Array] = []  # elements of the test split, what a forecast repeats
        shapes, aligned = set(), True
        chosen = reading.settings.kind or (None if self.known is None else self.known.kind)
        for split, items in splits.items():
            for index in range(len(items)):
                row, answer = items.read(index)
                _refuse_missing(row, answer, items.place(index), forecast=chosen == "forecaster")
                self.length = max(self.length, len(row))
                if row.ndim == 1:
                    self.vocabulary = max(self.vocabulary, int(row.max()) + 1)
                shapes.add((row.shape[1:], row.dtype.kind == "f", answer.ndim))
                aligned = aligned and answer.shape == row.shape[:1]
                self.targets[split].append(answer)
                if split == "test":
                    self.last.append(row[-1])
        if len(shapes) > 1:
            raise ThreefoldError(
                f"{name}: items have different forms (features, numbers or tokens, dimensions of "
                f"y): {sorted(map(str, shapes))}; expected the same for all"
            )
        self.kind = self._kind(chosen, aligned)
        if self.known is not None and (step := self.known.inputs.find(TokenNumbers)) is not None:
            self.vocabulary = step.vocabulary

    def _kind(self, kind: str | None, aligned: bool) -> str:
        answer = self.targets["train"][0]
        whole = answer.dtype.kind in "iub"
        guess = None
        if answer.ndim == 0:
            guess = "classifier" if whole else "regressor"
        elif answer.ndim == 1:
            guess = ("tagger" if aligned else None) if whole else "regressor"
        kind = kind or guess
        fits = {
            "classifier": whole and answer.ndim == 0,
            "regressor": answer.ndim <= 1,
            "tagger": whole and aligned,
            "forecaster": answer.ndim in (1, 2) and not self.vocabulary,
        }
        shapes = {part.shape for parts in self.targets.values() for part in parts}
        if kind not in KINDS or not fits[kind] or (kind != "tagger" and len(shapes) > 1):
            raise ThreefoldError(
                f"{self.name}: y is {answer.dtype} of shapes {sorted(shapes)[:3]}"
                f"{f' with kind {kind}' if kind else ''}; expected a whole number (classifier), "
                "numbers of one shape (regressor), a whole number per element (tagger), or "
                'kind="forecaster" with the future of numbers'
            )
        return kind

    @property
    def classes(self) -> bool:
        """Whether the targets are classes."""
        return self.kind in ("classifier", "tagger")

    @cached_property
    def every(self) -> Array:
        """All targets as one array."""
        rows = [row for rows in self.targets.values() for row in rows]
        return np.concatenate([np.ravel(row) for row in rows])

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes: those of the Dataset, or their numbers."""
        if not self.classes or self.known is not None:
            return () if self.known is None else self.known.labels
        count = int(self.every.max()) + 1
        if self.every.min() < 0:
            raise ThreefoldError(f"{self.name}: the class {self.every.min()}; expected 0 or more")
        names = getattr(self.splits["train"].dataset, "classes", None)
        if isinstance(names, Sequence) and len(names) >= max(count, 2):
            return tuple(map(str, names))
        missing = sorted(set(range(count)) - set(self.every.tolist()))
        if missing:
            raise ThreefoldError(
                f"{self.name}: the classes go up to {count - 1:,}, but {len(missing):,} of them, "
                f"such as {missing[0]}, do not occur; number them 0, 1, … without gaps, or give "
                "the Dataset an attribute `classes` with the names of all"
            )
        return tuple(map(str, range(max(count, 2))))

    @cached_property
    def scale(self) -> Standardise | None:
        """Mean and deviation of the numbers of a regressor in the training split."""
        if self.kind != "regressor":
            return None
        if self.known is not None:
            return self.known.outputs.find(Standardise)  # type: ignore[no-any-return]
        numbers = np.stack(self.targets["train"]).reshape(len(self.targets["train"]), -1)
        scale = Standardise.fit([numbers.astype(np.float64)], output_names(numbers.shape[1]))
        for name, count in scale.absurd_counts([self.every]).items():
            raise ThreefoldError(
                f"{self.name}: {count:,} of the targets ({name}) are more than 10,000 deviations "
                "from the others; correct them, or leave these items out"
            )
        return scale

    @property
    def preprocessing(self) -> Preprocessing | None:
        """What a trained model needs to answer such items; None for forecasts of windows."""
        if self.kind == "forecaster" or self.known is not None:
            return self.known
        step = Labels(self.labels) if self.scale is None else self.scale
        form = "tokens" if self.vocabulary else "series"
        inputs = Chain((TokenNumbers(self.vocabulary),)) if self.vocabulary else Chain()
        return Preprocessing(self.kind, form, inputs, Chain((step,)))

    def encode(self, answers: Array) -> Array:
        """Targets [n, …] as a model is trained with them."""
        if self.classes:
            return answers.astype(np.int64)
        if self.scale is None:
            numbers = answers.astype(np.float64)
            return numbers[..., 0] if numbers.ndim == 3 and numbers.shape[2] == 1 else numbers
        scaled = self.scale.apply(answers.reshape(len(answers), -1))
        return scaled[:, 0] if answers.ndim == 1 else scaled

    @cached_property
    def chance(self) -> float:
        """The score on the test split of the commonest class, the mean, or the last value."""
        test = self.targets["test"]
        if self.classes:
            flat = [np.concatenate(list(map(np.ravel, self.targets[s]))) for s in ("train", "test")]
            return majority_score(flat[0], flat[1])
        if self.scale is not None:
            numbers = np.stack(test).reshape(len(test), -1)
            return float(np.abs(numbers - np.array(self.scale.mean)).mean())
        futures = np.stack([row.reshape(len(row), -1) for row in test])
        last = np.stack(self.last)[:, None, : futures.shape[2]]
        return float(np.nanmean(np.abs(futures - last)))

    @property
    def description(self) -> DataDescription:
        """What was found."""
        sizes = " / ".join(f"{len(self.splits[split]):,}" for split in SPLITS)
        what = f"tokens, vocabulary of {self.vocabulary:,}" if self.vocabulary else "numbers"
        facts = [("items", f"{sizes} (train / validation / test)"), ("inputs", what)]
        if self.classes:
            facts.append(("classes", f"{len(self.labels):,}"))
        return DataDescription(self.name, self.kind, tuple(facts), otherwise="kind=")


def _refuse_missing(row: Array, answer: Array, place: str, *, forecast: bool) -> None:
    """Refuse numbers that are not finite: items are used as they are.  A future may have gaps."""
    if not np.isfinite(row).all():
        raise ThreefoldError(
            f"{place}: x contains NaN or infinite numbers, and a Dataset is used as it is; fill "
            "them, or give (x, y) as arrays, in which NaN is filled and marked"
        )
    if not forecast:
        refuse_missing_target(answer, place)


def _dataset(part: Any) -> Any:
    """A map-style Dataset, or that of a DataLoader."""
    if isinstance(part, DataLoader) and not isinstance(part.dataset, IterableDataset):
        usual = isinstance(part.sampler, (SequentialSampler, RandomSampler))
        if not usual or part.collate_fn is not default_collate:
            what = "collate_fn" if usual else type(part.sampler).__name__
            raise ThreefoldError(
                f"the DataLoader has a {what} of its own, which is not used, because batches are "
                "shuffled and padded here so that runs can resume; give its dataset instead"
            )
    part = part.dataset if isinstance(part, DataLoader) else part
    if isinstance(part, IterableDataset) or not hasattr(part, "__len__"):
        raise ThreefoldError(
            f"{type(part).__name__} cannot be read by number; expected a map-style Dataset with "
            "__len__ and __getitem__"
        )
    return part


def _split(name: str, datasets: Sequence[Any], reading: Reading) -> dict[str, Items]:
    if len(datasets) > 3:
        raise ThreefoldError(
            f"{len(datasets)} Datasets; expected one, (train, test) or (train, valid, test)"
        )
    own = {1: (), 2: ("test",), 3: ("valid", "test")}[len(datasets)]
    given = {
        split: Items(part, range(len(part)), f"{name}, {split}")
        for split, part in zip(own, datasets[1:], strict=True)
    }
    count = len(datasets[0])
    if not reading.split:
        return dict.fromkeys(SPLITS, Items(datasets[0], range(count), name))
    if count < FEWEST_EXAMPLES and len(given) < 2:
        raise ThreefoldError(
            f"{name}: {count} items; expected at least {FEWEST_EXAMPLES} for training, validation "
            "and test"
        )
    parts = shuffled_split(count, given).items()
    return {split: Items(datasets[0], rows.tolist(), name) for split, rows in parts} | given


def _pair(item: Any, place: str) -> tuple[Any, Any]:
    """Input and target of an item."""
    if isinstance(item, Mapping):
        inputs, targets = ([k for k in item if k in keys] for keys in (INPUT_KEYS, TARGET_KEYS))
        if len(inputs) == len(targets) == 1 and len(item) == 2:
            return item[inputs[0]], item[targets[0]]
        raise ThreefoldError(
            f"{place}: has the keys {', '.join(map(str, item))}; expected two, such as x and y or "
            "input_ids and label (rows are padded here, so they need no mask)"
        )
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return item[0], item[1]
    raise ThreefoldError(f"{place}: is {type(item).__name__}, expected (x, y) or a dict of both")


def _array(value: Any, place: str) -> Array:
    array: Array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    if array.dtype.kind not in "iubf":
        raise ThreefoldError(f"{place}: contains {array.dtype}; expected numbers")
    return array
