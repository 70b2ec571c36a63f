"""What a configuration's data ask of a model: batches, evaluations, a spec, a way to be judged."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import TokenStream, Windows
from threefold.data.shuffling import shuffled
from threefold.errors import ThreefoldError, nearest
from threefold.models.spec import Spec
from threefold.tasks.pairs import Pairs
from threefold.tasks.table import LOWER, MADE, TASKS
from threefold.tasks.table import task as make_task
from threefold.tasks.task import Task
from threefold.tasks.user_data import files_of, own
from threefold.training.config import DataSettings, ModelSettings
from threefold.training.objectives import Answers, ForecastObjective, Objective, Translations, exact
from threefold.training.settings import TrainingSettings

LANES = 8  # of an evaluation that carries its state


@dataclass(frozen=True)
class TrainingData:
    """A task and how it is cut into batches."""

    task: Task[Any]
    data: DataSettings

    @property
    def own(self) -> bool:
        """Whether it is a user's file."""
        return self.task.make == "own"

    @property
    def metric(self) -> str:
        """What is judged by."""
        return self.task.metric

    def limited(self, examples: int) -> TrainingData:
        """The same, judged on so many examples; 0: on all."""
        return TrainingData(self.task, self.data.model_copy(update={"limit": examples}))

    def batches(self, carry: bool = False) -> Callable[[int], Any]:
        """Training's batches by step."""
        order = self._order(carry)
        if order in ("examples", "buckets"):
            alike = order == "buckets"
            return self.task.batches(self.data.batch, self.data.seed, alike=alike)
        assert self.task.corpus is not None
        tokens = self.task.corpus().tokens["train"]
        kind = TokenStream if order == "stream" else Windows
        return kind(tokens, self.data.batch, self.task.length, self.data.seed)

    def pieces(self, split: str, carry: bool = False) -> Pieces:
        """A split for evaluation, as often as one likes."""
        return Pieces(self, split, carry)

    def _order(self, carry: bool) -> str:
        order, whole = self.data.order, self.task.corpus is not None
        if order == "auto" and whole:
            order = "stream" if carry else "windows"
        elif order == "auto":  # sentences that are found, not made, have lengths of all kinds
            found = self.task.kind == "seq2seq" and self.task.where != MADE
            order = "buckets" if found else "examples"
        if order in ("windows", "stream") and not whole:
            raise ThreefoldError(
                f"data.order is {order!r}, and {self.task.name} is no text but examples; leave it"
            )
        if carry and order != "stream":
            raise ThreefoldError(
                f"training.carry needs a stream of text; {self.task.name} comes in {order}"
            )
        return order

    def objective(self, settings: TrainingSettings) -> Objective:
        """How to learn and to be judged."""
        task, smoothing = self.task, settings.label_smoothing
        if task.kind == "seq2seq":
            compare = exact if task.compare is None else task.compare()
            lower = task.metric in LOWER
            return Translations(compare, smoothing, settings.own, lower=lower)
        if settings.own:
            raise ThreefoldError(
                f"training.own is {settings.own:g}: own tokens are read by translators only, and "
                f"{task.name} is for a {task.kind}; leave it out"
            )
        if self._forecasts:
            return ForecastObjective(task.measure)
        return Answers(task.measure, smoothing)

    @cached_property
    def first(self) -> Any:
        """One example, to see what it looks like."""
        return self.task.rows("train", [0])

    @property
    def _forecasts(self) -> bool:
        return self.task.kind == "forecaster" and self.first.targets.dim() == 2

    def spec(self, model: ModelSettings) -> Spec:
        """The model that this needs, of the given size."""
        width, depth = model.sizes
        kind, vocabulary, options = self._needs(model)
        return Spec(
            kind,
            width,
            depth,
            tuple(model.mixers),
            vocabulary,
            channel=model.channel,
            block=model.block,
            options={**options, **model.options},
        )

    def _needs(self, model: ModelSettings) -> tuple[str, int, dict[str, Any]]:
        """Kind, vocabulary and the kind's options."""
        task = self.task
        if task.kind == "seq2seq":
            kind = model.kind or "seq2seq"
            options: dict[str, Any] = {"source_vocabulary": task.vocabulary}
            if kind == "transformer":
                options["share_embeddings"] = task.vocabulary == task.classes
            return kind, task.classes, options
        if task.kind == "language":
            return "language", task.vocabulary, {}
        vocabulary, numbers = max(task.vocabulary, 1), {"input_size": task.features}
        if self._forecasts:
            ahead = {"horizon": self.first.targets.shape[1], "exogenous": task.features - 1}
            return "forecaster", vocabulary, ahead
        if task.kind == "tagger":
            return "tagger", vocabulary, {"classes": max(task.classes, 1), **numbers}
        pair = self.first.inputs.dim() - (task.features > 0) == 3
        pooling = {} if task.classes else {"pooling": "last"}
        options = {"classes": max(task.classes, 1), "pair": pair, **pooling, **numbers}
        return "classifier", vocabulary, options

    @property
    def tokenizer(self) -> Any:
        """What made the tokens of a text; None of anything else."""
        return None if self.task.corpus is None else self.task.corpus().tokenizer

    def identity(self) -> dict[str, Any]:
        """Hashes of what must not change while a run goes on."""
        if self.own:
            found = files_of(Path(self.data.name))
            return {f"data file {name}": digest for name, digest in found.items()}
        digest = hashlib.sha256()
        for split in ("train", "valid"):
            for tensor in _tensors(self.task.batch(split, 0, min(4, self.task.size(split)))):
                digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return {f"data {self.task.name}": digest.hexdigest()}


@dataclass(frozen=True)
class Pieces:
    """The batches of a split in order; may be gone through again and again."""

    data: TrainingData
    split: str
    carry: bool = False

    def __iter__(self) -> Iterator[Any]:
        task, data = self.data.task, self.data.data
        if self.carry:
            assert task.corpus is not None
            tokens = task.corpus().tokens[self.split]
            lanes = max(1, min(LANES, (len(tokens) - 1) // task.length))
            stream = TokenStream(tokens, lanes, task.length)
            yield from map(stream, range(stream.pieces))
            return
        numbers = sample(task.size(self.split), data.limit)
        for first in range(0, len(numbers), data.batch):
            yield task.rows(self.split, numbers[first : first + data.batch])


def sample(size: int, limit: int) -> NDArray[np.int64]:
    """All numbers below `size`, or `limit` of them, always the same: many files are sorted."""
    if not limit or limit >= size:
        return np.arange(size)
    return np.sort(shuffled((0, size), size, range(limit)))


def open_data(data: DataSettings | str, **options: Any) -> TrainingData:
    """The problem of a task or of a user's file, by `DataSettings` or by its name and keywords."""
    given = data if isinstance(data, DataSettings) else DataSettings(name=data, **options)
    if given.name in TASKS:
        return TrainingData(make_task(given.name, **_task_options(given)), given)
    if not Path(given.name).exists():
        raise ThreefoldError(
            f"{given.name}: neither a file nor a task; {nearest(given.name, TASKS)}"
        )
    if given.options:
        raise ThreefoldError(
            f"data.options is {given.options!r}: they are of tasks, and {given.name} is a file; "
            "leave them out"
        )
    return TrainingData(
        own(
            Path(given.name),
            kind=given.kind,
            level=given.level,
            vocabulary=given.vocabulary,
            length=given.length,
            column=given.column,
            horizon=given.horizon,
            rate=given.rate,
        ),
        given,
    )


def _task_options(data: DataSettings) -> dict[str, Any]:
    """Keywords of a task: its own options, and those of the section that it knows."""
    maker = TASKS[data.name].maker
    known = inspect.signature(maker).parameters
    options = dict(data.options)
    for name in options:
        if name not in known:
            raise ThreefoldError(
                f"{data.name} has no option {name!r}; it has {', '.join(known) or 'none'}"
            )
    for name, unset in (("length", 0), ("level", ""), ("vocabulary", 4096)):
        value = getattr(data, name)
        if value != unset:
            if name not in known:
                raise ThreefoldError(
                    f"data.{name} is {value!r}, and {data.name} has none to choose"
                )
            options[name] = value
    return options


def _tensors(rows: Any) -> list[Tensor]:
    fields = vars(rows).values() if isinstance(rows, Pairs) else rows
    return [value for value in fields if isinstance(value, Tensor)]
