"""A task: numbered examples, a metric, a chance level, and a score that counts as solved.

Example i of a split depends on (seed, split, i) and on nothing else: any part of a task can be made
anywhere and in any order, and training can resume at any step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.fetch import MissingError
from threefold.data.loaders import IGNORE, Batch, Batches
from threefold.data.preprocessing import Preprocessing
from threefold.data.shuffling import Buckets, Shuffle
from threefold.data.tokenizers import Tokenizer, Tokens
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.table import SPLITS, Card, card

Numbers: TypeAlias = NDArray[np.int64]
Rows = TypeVar("Rows")  # the type of examples: Pairs for seq2seq, Batch for all other kinds
Draw: TypeAlias = Callable[
    [str, Numbers], Rows
]  # (split, numbers) → the examples with these numbers
# (logits [..., classes] or answers [...], targets [...]) → one score per target that counts; the
# result is their mean.
Metric: TypeAlias = Callable[[Tensor, Tensor], Tensor]
# (generated tokens with END, correct answers) → one score for all of them.
Compare: TypeAlias = Callable[[Sequence[Sequence[int]], Sequence[Any]], float]


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """1 where the most likely class is the target, 0 elsewhere."""
    counts = targets != IGNORE
    return (logits[counts].argmax(-1) == targets[counts]).float()


def exact(logits: Tensor, targets: Tensor) -> Tensor:
    """1 for a row in which every target that counts is predicted correctly, else 0."""
    return ((logits.argmax(-1) == targets) | (targets == IGNORE)).flatten(1).all(1).float()


def squared_error(answers: Tensor, targets: Tensor) -> Tensor:
    """(answer − target)²; NaN targets do not count."""
    counts = ~targets.isnan()
    return (answers[counts] - targets[counts]) ** 2


def absolute_error(answers: Tensor, targets: Tensor) -> Tensor:
    """|answer − target|; NaN targets do not count."""
    counts = ~targets.isnan()
    return (answers[counts] - targets[counts]).abs()


def bits(logits: Tensor, targets: Tensor) -> Tensor:
    """−log₂ of the probability of each target."""
    counts = targets != IGNORE
    return F.cross_entropy(logits[counts], targets[counts], reduction="none") / math.log(2)


class Corpus(NamedTuple):
    """The tokens of every split, and their tokenizer."""

    tokens: Mapping[str, Tokens]
    tokenizer: Tokenizer
    starts: Mapping[str, Numbers] | None = None  # where documents begin; None: one document


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "exact": exact,
    "squared_error": squared_error,
    "absolute_error": absolute_error,
    "bits": bits,
}


@dataclass(frozen=True, kw_only=True)
class Task(Card, Generic[Rows]):
    """A card and its examples."""

    draw: Draw[Rows]
    corpus: Callable[[], Corpus] | None = None  # of language models: all tokens of every split
    # Applied to the training batches of a corpus: (batches, seed) → batches.
    augment: Callable[[Batches, int], Batches] | None = None
    labels: tuple[str, ...] = ()  # names of the classes, if they have names
    chance_name: str = ""  # what gives the chance level, if it is not a constant of the task
    preprocessing: Callable[[], Preprocessing] | None = None  # saved with a trained model
    error_scale: float | tuple[float, ...] = ()  # errors of each output times this are in its units
    description: Any = None  # of a user's data: how they were understood
    # An example as the user has it: (split, number) → where it stands, and its input.
    raw: Callable[[str, int], tuple[str, Any]] | None = None
    windows: Any = None  # of a user's series: all rows, and where forecasts begin
    pretraining: Sequence[Any] = ()  # inputs to pretrain on, with and without a target
    skipped: tuple[str, ...] = ()  # examples that were left out, as they were asked to be
    compare: Callable[[], Compare] | None = (
        None  # of seq2seq: compares with `references`; None: exact
    )

    @property
    def measure(self) -> Metric:
        """The metric as a function."""
        if self.metric not in METRICS:
            raise ThreefoldError(
                f"{self.name}: {self.metric!r} is not a metric per token; "
                f"{nearest(self.metric, METRICS)}"
            )
        metric = METRICS[self.metric]
        scales = self.error_scale if isinstance(self.error_scale, tuple) else (self.error_scale,)
        if all(scale == 1.0 for scale in scales):
            return metric

        @wraps(metric)
        def scaled(answers: Tensor, targets: Tensor) -> Tensor:
            factors = torch.tensor(scales, device=targets.device)
            factors = factors if len(scales) > 1 else factors[0]
            return metric(answers * factors, targets * factors)

        return scaled

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any = None,
        *,
        name: str = "arrays",
        kind: str | None = None,
        splits: Mapping[str, tuple[Any, Any]] | None = None,
        labels: Sequence[str] = (),
        vocabulary: int = 0,
        horizon: int | None = None,
    ) -> Task[Any]:
        """A task of arrays in memory, for `train`, `compare` and `register_task`.

        x: sequences [n, length(, features)] or a list of any lengths; with a `vocabulary`, tokens;
        or texts.  y: n classes, numbers or rows of numbers, or a list of classes per element.
        splits: {"valid": (x, y), "test": (x, y)} of your own; else 10 per cent each of the shuffled
        examples.  labels: the names of the classes 0, 1, ….  Forecasts: one series [time(,
        channels)] with a `horizon`, or kind="forecaster" with windows x and their futures y.
        """
        from threefold.tasks.user_data import from_arrays

        return from_arrays(
            x,
            y,
            name=name,
            kind=kind,
            splits=splits or {},
            labels=labels,
            vocabulary=vocabulary,
            horizon=horizon,
        )

    def size(self, split: str) -> int:
        """The number of examples of a split."""
        if split not in SPLITS:
            raise ThreefoldError(f"{self.name}: unknown split {split!r}; {nearest(split, SPLITS)}")
        return self.sizes[SPLITS.index(split)]

    def rows(self, split: str, numbers: Sequence[int] | Numbers) -> Rows:
        """The examples with these numbers."""
        wanted, count = np.asarray(numbers, dtype=np.int64), self.size(split)
        if wanted.ndim != 1 or len(wanted) == 0 or wanted.min() < 0 or wanted.max() >= count:
            raise ThreefoldError(
                f"{self.name}: examples {wanted.tolist()[:8]} of {split!r}; expected at least one "
                f"number, from 0 to {count - 1}"
            )
        try:
            return self.draw(split, wanted)
        except MissingError as error:
            raise MissingError(error.wanted, self.name.removesuffix("-custom")) from error

    def examples(self, split: str) -> Rows:
        """All examples of a split."""
        return self.rows(split, np.arange(self.size(split)))

    def batch(self, split: str, index: int, size: int) -> Rows:
        """Batch `index` of a split in order; the last one may be smaller."""
        if size < 1 or not 0 <= index < -(-self.size(split) // size):
            raise ThreefoldError(
                f"{self.name}: batch {index} of {size} examples; {split!r} has {self.size(split)}"
            )
        return self.rows(split, np.arange(index * size, min(self.size(split), (index + 1) * size)))

    def ordered_batches(self, split: str, size: int) -> Iterator[Rows]:
        """All examples of a split in order, in batches of `size`, for evaluation."""
        for index in range(-(-self.size(split) // size)):
            yield self.batch(split, index, size)

    def batches(self, size: int, seed: int = 0, *, alike: bool = False) -> TaskBatches[Rows]:
        """Batches for training, addressed by step; every epoch in another order.

        `alike`: examples of similar lengths together, so that there is little padding.
        """
        if not 1 <= size <= self.sizes[0]:
            raise ThreefoldError(
                f"{self.name}: batches of {size} from {self.sizes[0]} examples; expected a batch "
                f"size from 1 to {self.sizes[0]}"
            )
        if alike:
            return TaskBatches(self, Buckets(_Lengths(self), size, seed))
        return TaskBatches(self, Shuffle(self.sizes[0], size, seed))


class TaskBatches(Generic[Rows]):
    """Batches of the training split; `numbers` chooses the examples of each step."""

    def __init__(self, task: Task[Rows], numbers: Shuffle | Buckets) -> None:
        self.task, self.numbers = task, numbers
        self.steps_per_epoch = numbers.steps_per_epoch

    def __call__(self, step: int) -> Rows:
        return self.task.rows("train", self.numbers(step))


class _Lengths:
    """The lengths of training examples, computed when they are first asked for."""

    def __init__(self, task: Task[Any]) -> None:
        self.task, self.known = task, np.full(task.sizes[0], -1)

    def __len__(self) -> int:
        return len(self.known)

    def __getitem__(self, numbers: Numbers) -> Numbers:
        new = numbers[self.known[numbers] < 0]
        if len(new):
            rows: Any = self.task.rows("train", new)
            if rows.lengths is None:
                self.known[new] = rows.inputs.shape[1]
            else:  # one per example, or those of its two sides
                self.known[new] = rows.lengths.reshape(len(new), -1).amax(1).numpy()
        return self.known[numbers]


def declare(name: str, draw: Draw[Rows], **changes: Any) -> Task[Rows]:
    """The task of a card; with other settings than the card's it is called NAME-custom."""
    declared = vars(card(name))
    changed = any(declared[field] != value for field, value in changes.items())
    renamed = {"name": f"{name}-custom"} if changed else {}
    return Task(**{**declared, **changes, **renamed}, draw=draw)


def declare_user_task(name: str, draw: Draw[Rows], **fields: Any) -> Task[Rows]:
    """A task of a user's own data: it has no card and no score that counts as solved."""
    return Task(
        name=name, make="user", title=name, solved=math.nan, where="user", draw=draw, **fields
    )


def make_batch(
    inputs: NDArray[Any],
    targets: NDArray[Any],
    lengths: NDArray[np.int64] | None = None,
    weights: NDArray[Any] | None = None,
) -> Batch:
    """Arrays as a batch: tokens as int64, numbers as float32; every row begins a sequence."""
    input_tensor, target_tensor = (
        torch.from_numpy(a.astype(np.float32 if a.dtype.kind == "f" else np.int64))
        for a in (inputs, targets)
    )
    starts = torch.ones(len(input_tensor), dtype=torch.bool)
    row_lengths = None if lengths is None else torch.from_numpy(lengths)
    row_weights = None if weights is None else torch.from_numpy(weights.astype(np.float32))
    return Batch(input_tensor, target_tensor, starts, row_lengths, row_weights)


def address(seed: int, split: str, *more: int) -> tuple[int, ...]:
    """The address of a split's random numbers."""
    return (seed, SPLITS.index(split), *more)
