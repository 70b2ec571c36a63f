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
from threefold.tasks.user_data import files_of, user_task
from threefold.training.config import DataSettings, ModelSettings
from threefold.training.objectives import Answers, ForecastObjective, Objective, Translations, exact
from threefold.training.settings import TrainingSettings

LANES = 8  # rows of an evaluation that carries its state
# Settings that a user's own file is read with.
USER_DATA_KEYS = {
    "kind",
    "tokenizer",
    "vocabulary",
    "length",
    "target",
    "horizon",
    "sampling_rate",
}


@dataclass(frozen=True)
class TrainingData:
    """A task and how it is cut into batches."""

    task: Task[Any]
    data: DataSettings

    @property
    def from_user(self) -> bool:
        """Whether it is a user's file."""
        return self.task.make == "user"

    @property
    def metric(self) -> str:
        """What is judged by."""
        return self.task.metric

    def limited(self, examples: int | None) -> TrainingData:
        """The same data, evaluated on that many examples; None: on all."""
        return TrainingData(self.task, self.data.model_copy(update={"eval_examples": examples}))

    def batches(self, carry: bool = False) -> Callable[[int], Any]:
        """Training's batches by step."""
        order = self._order(carry)
        if order in ("examples", "buckets"):
            alike = order == "buckets"
            return self.task.batches(self.data.batch_size, self.data.seed, alike=alike)
        assert self.task.corpus is not None
        tokens = self.task.corpus().tokens["train"]
        kind = TokenStream if order == "stream" else Windows
        return kind(tokens, self.data.batch_size, self.task.length, self.data.seed)

    def pieces(self, split: str, carry: bool = False) -> Pieces:
        """A split for evaluation, as often as one likes."""
        return Pieces(self, split, carry)

    def _order(self, carry: bool) -> str:
        order, whole = self.data.batching, self.task.corpus is not None
        if order == "auto" and whole:
            order = "stream" if carry else "windows"
        elif order == "auto":  # sentences that are found, not made, have lengths of all kinds
            found = self.task.kind == "seq2seq" and self.task.where != MADE
            order = "buckets" if found else "examples"
        if order in ("windows", "stream") and not whole:
            raise ThreefoldError(
                f"data.batching is {order!r}, but {self.task.name} is not text; leave it at auto"
            )
        if carry and order != "stream":
            raise ThreefoldError(
                f"training.carry_state needs a stream of text; {self.task.name} comes in {order}"
            )
        return order

    def objective(self, settings: TrainingSettings) -> Objective:
        """How to learn and to be judged."""
        task, smoothing = self.task, settings.label_smoothing
        if task.kind == "seq2seq":
            compare = exact if task.compare is None else task.compare()
            lower = task.metric in LOWER
            return Translations(compare, smoothing, settings.scheduled_sampling, lower=lower)
        if settings.scheduled_sampling:
            raise ThreefoldError(
                f"training.scheduled_sampling is {settings.scheduled_sampling:g}, but only "
                f"seq2seq models have it and {task.name} needs a {task.kind}; remove it"
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
        if self.from_user:
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
        numbers = sample(task.size(self.split), data.eval_examples)
        for first in range(0, len(numbers), data.batch_size):
            yield task.rows(self.split, numbers[first : first + data.batch_size])


def sample(size: int, limit: int | None) -> NDArray[np.int64]:
    """All numbers below `size`, or `limit` of them, always the same: many files are sorted."""
    if not limit or limit >= size:
        return np.arange(size)
    return np.sort(shuffled((0, size), size, range(limit)))


def open_data(data: DataSettings | str, **options: Any) -> TrainingData:
    """The problem of a task or of a user's file, by `DataSettings` or by its name and keywords."""
    settings = data if isinstance(data, DataSettings) else DataSettings(name=data, **options)
    name = settings.name
    if name in TASKS:
        return TrainingData(make_task(name, **_task_options(settings)), settings)
    if not Path(name).exists():
        if "." in name or "/" in name:
            raise ThreefoldError(f"{name}: there is no such file or folder")
        raise ThreefoldError(
            f"{name}: there is no such file and no such task; {nearest(name, TASKS)}"
        )
    if settings.options:
        raise ThreefoldError(
            f"data.options is {settings.options!r}, but only tasks have options and {name} is a "
            "file; remove it"
        )
    keywords = settings.model_dump(include=USER_DATA_KEYS)
    return TrainingData(user_task(Path(name), **keywords), settings)


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
    for name in ("length", "tokenizer", "vocabulary"):
        value = getattr(data, name)
        if value is not None:
            if name not in known:
                raise ThreefoldError(
                    f"data.{name} is {value!r}, but the task {data.name} has no such option"
                )
            options[name] = value
    return options


def _tensors(rows: Any) -> list[Tensor]:
    fields = vars(rows).values() if isinstance(rows, Pairs) else rows
    return [value for value in fields if isinstance(value, Tensor)]
