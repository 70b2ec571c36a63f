"""The data of a run: batches, evaluation splits, objective, and the model they need."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.documents import Documents
from threefold.data.loaders import IGNORE, Batches, TokenStream, Windows
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.text import Tokenize
from threefold.data.readers import not_found
from threefold.data.shuffling import shuffled
from threefold.errors import ThreefoldError, nearest
from threefold.models.spec import Spec
from threefold.tasks.pairs import Pairs
from threefold.tasks.table import GENERATED, IMAGE_KINDS, TASKS
from threefold.tasks.table import task as make_task
from threefold.tasks.task import Metric, Task, accuracy
from threefold.tasks.user_data import files_of, user_task
from threefold.tasks.user_data.settings import FIELDS, read_settings
from threefold.training.config import DataSettings, ModelSettings
from threefold.training.linear_starts import FittedStart, fit_start
from threefold.training.needed_models import NEEDED_MODELS
from threefold.training.objectives import Objective, ObjectiveOptions, objective_of
from threefold.training.settings import TrainingSettings

DECIDERS = ("classifier", "hierarchical", *IMAGE_KINDS)
# Settings of some kinds of models only.
KIND_SETTINGS = {
    "scheduled_sampling": ("seq2seq", "captioner"),
    "class_weights": ("classifier", "hierarchical", "tagger"),
    "decide": DECIDERS,
    "thresholds": DECIDERS,
}
WRITERS = ("seq2seq", "captioner")  # kinds of tasks whose answers are generated texts
DEFAULT_RESETS = 64  # batches that a state of a series is carried
EVAL_LANES = 8  # batch size of an evaluation that carries its state


@dataclass(frozen=True)
class TrainingData:
    """A task and how it is divided into batches."""

    task: Task[Any]
    data: DataSettings

    @property
    def from_user(self) -> bool:
        """Whether the data are a user's file or folder."""
        return self.task.make == "user"

    @property
    def metric(self) -> str:
        """Name of the evaluation metric."""
        return self.task.metric

    def limited(self, examples: int | None) -> TrainingData:
        """The same data, evaluated on at most `examples` examples; None: on all."""
        return TrainingData(self.task, self.data.model_copy(update={"eval_examples": examples}))

    def with_settings(self, data: DataSettings) -> TrainingData:
        """The same task with other settings, such as the batch size; fitted starts are kept."""
        changed = TrainingData(self.task, data)
        changed.__dict__["_starts"] = self._starts
        return changed

    def batches(self, carry: bool = False, reset_every: int | None = None) -> Callable[[int], Any]:
        """The training batches, as a function of the step.

        carry: their states are carried, and start anew after `reset_every` batches.
        """
        order = self._order(carry)
        if order == "stretches":
            size, seed = self.data.batch_size, self.data.seed
            batches: Batches = self.task.windows.stretches(
                size, reset_every or DEFAULT_RESETS, seed
            )
            return batches
        if order in ("examples", "buckets"):
            by_length = order == "buckets"
            return self.task.batches(self.data.batch_size, self.data.seed, alike=by_length)
        sizes = self.data.batch_size, self.task.length, self.data.seed
        batches = _lanes(self.task, "train", order, *sizes, reset_every)
        return batches if self.task.augment is None else self.task.augment(batches, self.data.seed)

    def pieces(self, split: str, carry: bool = False) -> EvaluationBatches:
        """The batches of a split, for evaluation; may be iterated repeatedly.

        Forecasts are evaluated from windows, however the state was carried in training.
        """
        return EvaluationBatches(self, split, carry and self.task.corpus is not None)

    def _order(self, carry: bool) -> str:
        order, is_text = self.data.batching, self.task.corpus is not None
        if carry and order == "auto" and self.task.windows is not None:
            return "stretches"
        if order == "auto" and is_text:
            order = "documents" if _starts(self.task) else "stream" if carry else "windows"
        elif order == "auto":  # the lengths of real sentences vary much
            real_sentences = self.task.kind == "seq2seq" and self.task.where != GENERATED
            order = "buckets" if real_sentences else "examples"
        if order in ("windows", "stream", "documents") and not is_text:
            raise ThreefoldError(
                f"data.batching is {order!r}, but {self.task.name} is not text; set it to auto"
            )
        if order == "documents" and not _starts(self.task):
            raise ThreefoldError(
                f"data.batching is 'documents', but {self.task.name} is one text; set it to auto, "
                "or separate the documents with `threefold data tokenize`"
            )
        if carry and (order not in ("stream", "documents") or self.task.kind == "masked"):
            how = "with masked tokens" if self.task.kind == "masked" else f"as {order}"
            raise ThreefoldError(
                f"training.carry_state needs a stream of text or the rows of a series, but "
                f"{self.task.name} is read {how}; set it to false"
            )
        return order

    def objective(self, settings: TrainingSettings, metric: Metric | None = None) -> Objective:
        """The loss and the metric; metric: another one than that of the task."""
        task, smoothing = self.task, settings.label_smoothing
        self._refuse_unused(settings)
        measure = accuracy if task.kind in WRITERS else metric or task.measure
        weights = self.balanced_weights if settings.class_weights else None
        options = ObjectiveOptions(
            measure, smoothing, settings.scheduled_sampling, lower=task.lower, class_weights=weights
        )
        if task.compare is not None:
            options = options._replace(compare=task.compare())
        return objective_of(task.kind, options)

    def _refuse_unused(self, settings: TrainingSettings) -> None:
        """Refuse settings that the task's kind of model does not use."""
        for name, kinds in KIND_SETTINGS.items():
            if (value := getattr(settings, name)) and self.task.kind not in kinds:
                shown = " and ".join((", ".join(kinds[:-1]), kinds[-1]))
                raise ThreefoldError(
                    f"training.{name} is {value}, but only {shown} models use it and "
                    f"{self.task.name} needs a {self.task.kind} model; remove it"
                )

    @cached_property
    def balanced_weights(self) -> Tensor:
        """The weight of each class, so that all count the same; 1 on average over the targets."""
        counts = torch.zeros(self.task.classes)
        for rows in EvaluationBatches(self.limited(None), "train"):
            known = rows.targets[rows.targets != IGNORE]
            counts += known.bincount(minlength=len(counts))
        present = int((counts > 0).sum())
        return torch.where(counts > 0, counts.sum() / (present * counts.clamp(min=1)), 0.0)

    @cached_property
    def first(self) -> Any:
        """The first training example."""
        return self.task.rows("train", [0])

    def spec(self, model: ModelSettings) -> Spec:
        """The spec of a model for these data, with the given settings."""
        needed = NEEDED_MODELS[self.task.kind](self, model)
        width, depth = model.sizes_of(needed.kind)
        return Spec(
            needed.kind,
            width,
            depth,
            model.mixers_of(needed.kind),
            max(needed.vocabulary, 1),
            channel=model.channel,
            block=model.block,
            options={**needed.options, **self.task.model_options, **model.options},
        )

    def needed_options(self, model: ModelSettings) -> dict[str, Any]:
        """The options of a model that only the data decide."""
        return NEEDED_MODELS[self.task.kind](self, model).options

    def linear_start(self, model: ModelSettings) -> FittedStart | None:
        """Where a forecaster starts; None for other kinds, and if its options say so (lags = 0)."""
        lags = model.options.get("lags")
        chosen = lags is None or (isinstance(lags, int) and lags > 0)
        if self.task.kind != "forecaster" or not chosen:
            return None
        if lags not in self._starts:
            current = 0 if self.preprocessing is None else self.preprocessing.current_size
            self._starts[lags] = fit_start(self.task, current=current, lags=lags)
        return self._starts[lags]

    @cached_property
    def _starts(self) -> dict[int | None, FittedStart]:
        """Fitted starts by the number of lags that was asked for."""
        return {}

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a model that reads text; None for other data."""
        if self.task.corpus is not None:
            return self.task.corpus().tokenizer
        step = None if self.preprocessing is None else self.preprocessing.inputs.find(Tokenize)
        return (
            None
            if step is None or step.offset or self.task.kind == "hierarchical"
            else step.tokenizer
        )

    @cached_property
    def preprocessing(self) -> Preprocessing | None:
        """What a model trained on these data needs to read others; None if that is unknown."""
        return None if self.task.preprocessing is None else self.task.preprocessing()

    def output_step(self, kind: type[Any]) -> Any:
        """The step of this class that turned outputs into targets; None if there is none."""
        return None if self.preprocessing is None else self.preprocessing.outputs.find(kind)

    def identity(self) -> dict[str, Any]:
        """Hashes of the data, which must be unchanged when a run resumes."""
        if self.from_user and Path(self.data.name).exists():
            digests = files_of(Path(self.data.name))
            return {f"data file {name}": digest for name, digest in digests.items()}
        digest = hashlib.sha256()
        for split in ("train", "valid"):
            for tensor in _tensors(self.task.batch(split, 0, min(4, self.task.size(split)))):
                digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return {f"data {self.task.name}": digest.hexdigest()}


@dataclass(frozen=True)
class EvaluationBatches:
    """The batches of a split, in order; may be iterated repeatedly.

    is_late: asked before every batch but the first; True ends the evaluation.  Examples then come
    in a random order, so that those that were in time are a fair sample.
    """

    data: TrainingData
    split: str
    carry: bool = False
    is_late: Callable[[], bool] | None = None

    def __len__(self) -> int:
        if self.carry:
            return int(self._stream().steps_per_epoch)
        size, limit = self.data.task.size(self.split), self.data.data.eval_examples
        return -(-min(size, limit or size) // self.data.data.batch_size)

    def _stream(self) -> Any:
        task = self.data.task
        lanes = max(1, min(EVAL_LANES, task.size(self.split)))
        order = "documents" if _starts(task) else "stream"
        return _lanes(task, self.split, order, lanes, task.length)

    def __iter__(self) -> Iterator[Any]:
        task, data = self.data.task, self.data.data
        if self.carry:
            stream = self._stream()
            batches = stream if task.augment is None else task.augment(stream, data.seed)
            yield from self._in_time(map(batches, range(stream.steps_per_epoch)))
            return
        indices = sample(task.size(self.split), data.eval_examples)
        if self.is_late is not None:
            indices = indices[shuffled((0, len(indices)), len(indices), range(len(indices)))]
        firsts = range(0, len(indices), data.batch_size)
        yield from self._in_time(
            task.rows(self.split, indices[first : first + data.batch_size]) for first in firsts
        )

    def _in_time(self, batches: Iterator[Any]) -> Iterator[Any]:
        for rows in batches:
            yield rows
            if self.is_late is not None and self.is_late():
                return


def _starts(task: Task[Any]) -> Mapping[str, NDArray[np.int64]] | None:
    """Where the documents of a text begin, by split; None: it is one."""
    return None if task.corpus is None else task.corpus().starts


def _lanes(
    task: Task[Any],
    split: str,
    order: str,
    batch_size: int,
    length: int,
    seed: int = 0,
    reset_every: int | None = None,
) -> Batches:
    """The batches of a text."""
    assert task.corpus is not None
    tokens, starts = task.corpus().tokens[split], _starts(task)
    if order == "documents" and starts is not None:
        return Documents(tokens, starts[split], batch_size, length, seed)
    if order == "stream":
        return TokenStream(tokens, batch_size, length, seed, reset_every)
    return Windows(tokens, batch_size, length, seed)


def sample(size: int, limit: int | None) -> NDArray[np.int64]:
    """All indices below `size`, or a fixed random sample of `limit` (many files are sorted)."""
    if not limit or limit >= size:
        return np.arange(size)
    return np.sort(shuffled((0, size), size, range(limit)))


def _refuse_absent(name: str) -> None:
    """Refuse a name that is neither a task nor a path that exists."""
    if not name:  # Path("") would be the current folder
        raise ThreefoldError(
            "DATA is empty; expected a task's name, or the path of a file or folder"
        )
    if Path(name).exists():
        return
    if "." in name or "/" in name or Path(name).is_symlink():
        raise not_found(Path(name))
    raise ThreefoldError(f"{name}: neither a file nor a task has this name; {nearest(name, TASKS)}")


def open_data(
    data: DataSettings | str,
    *,
    source: Any = None,
    preprocessing: Preprocessing | None = None,
    start: Preprocessing | None = None,
    split: bool = True,
    **options: Any,
) -> TrainingData:
    """Open a task or a user's file, given `DataSettings` or a name and keyword arguments.

    source: data in memory or a task, which the name only describes.  preprocessing: that of a
    trained model.  start: that of a model that training starts from.  split=False: all of a user's
    examples in every split.
    """
    settings = data if isinstance(data, DataSettings) else DataSettings(name=data, **options)
    name = settings.name
    if isinstance(source, Task):
        read, what = read_settings(settings.model_dump()), f"{source.name}, a task in memory,"
        read.allow_only(what)
        read.check_kind(what, source.kind)
        return TrainingData(source, settings)
    if source is not None:
        read = read_settings(settings.model_dump())
        task = user_task(source, read, preprocessing=preprocessing, split=split, start=start)
        return TrainingData(task, settings)
    if name in TASKS:
        return TrainingData(make_task(name, **_task_options(settings)), settings)
    _refuse_absent(name)
    if settings.options:
        raise ThreefoldError(
            f"data.options is {settings.options!r}, but only tasks have options and {name} is a "
            "file; remove it"
        )
    read = read_settings(settings.model_dump())
    task = user_task(Path(name), read, preprocessing=preprocessing, split=split, start=start)
    return TrainingData(task, settings)


def _task_options(data: DataSettings) -> dict[str, Any]:
    """Keyword arguments of a task: its own options, and the settings that it accepts."""
    maker = TASKS[data.name].maker
    known = inspect.signature(maker).parameters
    options = dict(data.options)
    for name in options:
        if name not in known:
            raise ThreefoldError(
                f"the task {data.name} has no option {name!r}; its options: "
                f"{', '.join(known) or 'none'}"
            )
    for name in sorted(FIELDS):
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
