"""What is measured of each kind of model while it is evaluated, batch by batch.

A measure looks at the outputs of every batch and returns JSON values at the end, in the words and
units of the user's data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.loaders import IGNORE, Batch
from threefold.data.preprocessing.decisions import Thresholds
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.tokenizers import ByteTokenizer
from threefold.models.model import Model
from threefold.tasks.pairs import Pairs
from threefold.training.evaluations.classification import ClassificationCounts
from threefold.training.evaluations.regression import (
    answers_by_size,
    largest_errors,
    mean_baseline,
    regression_errors,
)
from threefold.training.objectives import BatchLoss, Tally
from threefold.training.training_data import TrainingData

Array = NDArray[Any]
MOST_WORST = 10
MOST_CHARACTERS = 300  # of an input that is shown


class Measure(ABC):
    """Collects what one kind of model answers to the examples of a split."""

    def __init__(self, data: TrainingData, split: str, numbers: Array) -> None:
        self.data, self.split = data, split
        self.numbers = numbers  # of the examples, in the order in which they come
        self.seen = 0

    def __call__(self, rows: Any, batch_loss: BatchLoss, tally: Tally) -> None:
        """Add a batch; called by `training.evaluation.evaluate`."""
        count = len(rows.inputs)
        self.add(rows, batch_loss, tally, self.numbers[self.seen : self.seen + count])
        self.seen += count

    @abstractmethod
    def add(self, rows: Any, batch_loss: BatchLoss, tally: Any, numbers: Array) -> None:
        """Add the examples with these numbers."""

    @abstractmethod
    def values(self) -> dict[str, Any]:
        """The metrics as JSON values."""

    @contextmanager
    def watching(self, model: Model) -> Iterator[None]:
        """While the model is evaluated."""
        yield

    def show(self, number: int, position: int | None = None) -> dict[str, str]:
        """Where an example stands and what it is, for a list of the worst ones."""
        if self.data.task.raw is not None:
            place, value = self.data.task.raw(self.split, int(number))
            return {"place": place, "input": self._named(value) or shorten(value, position)}
        rows = self.data.task.rows(self.split, [int(number)])
        inputs = rows.source[0] if isinstance(rows, Pairs) else rows.inputs[0]
        return {"place": f"example {number + 1}", "input": shorten(inputs, position)}

    def _named(self, value: Any) -> str:
        """The numbers of one row of a table with their names; empty for other inputs."""
        preprocessing = self.data.preprocessing
        if preprocessing is None or preprocessing.form != "row":
            return ""
        numbers = zip(preprocessing.roles.features, np.ravel(value).tolist(), strict=True)
        return shorten(", ".join(f"{name} {number:g}" for name, number in numbers))


def shorten(value: Any, position: int | None = None) -> str:
    """An input as a short text; the element at `position` is marked."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, str):
        return value if len(value) <= MOST_CHARACTERS else value[: MOST_CHARACTERS - 1] + "…"
    if isinstance(value, (np.ndarray, Tensor)) and value.ndim > 2:
        return f"an image of {' × '.join(map(str, value.shape))} numbers"
    if isinstance(value, (np.ndarray, Tensor)) and value.ndim > 1:
        return f"{value.shape[0]:,} elements of {value.shape[1]} numbers"
    words = [f"[{x}]" if i == position else str(x) for i, x in enumerate(_items(value))]
    first = max(0, (position or 0) - 10)
    text = " ".join([*(["…"] if first else []), *words[first : first + 40]])
    return shorten(text if len(words) <= first + 40 else f"{text} …")


def _items(value: Any) -> list[Any]:
    return list(value.tolist() if isinstance(value, (np.ndarray, Tensor)) else value)


class ClassificationMeasure(Measure):
    """Labels of classifiers, and of every element of taggers."""

    def __init__(
        self,
        data: TrainingData,
        split: str,
        numbers: Array,
        classes: int,
        thresholds: Thresholds = (),
    ) -> None:
        super().__init__(data, split, numbers)
        labels = data.task.labels
        known = len(labels) == classes
        self.counts = ClassificationCounts(
            labels if known else list(map(str, range(classes))), thresholds=thresholds
        )
        self.tags = data.task.kind == "tagger"

    def add(self, rows: Batch, batch_loss: BatchLoss, tally: Any, numbers: Array) -> None:
        """Count the labels that are not ignored."""
        targets, logits = rows.targets, batch_loss.outputs
        counted = targets != IGNORE
        self.tags = self.tags or targets.dim() > 1
        places = counted.nonzero().numpy()  # [n, axes of targets]
        positions = places[:, 1] if places.shape[1] > 1 else None
        logits_array = logits[counted].float().cpu().numpy()
        labels = targets[counted].cpu().numpy()
        self.counts.add(logits_array, labels, numbers[places[:, 0]], positions)

    def values(self) -> dict[str, Any]:
        """Counts, per-class table, confusion matrix, calibration and the worst answers."""
        names = self.counts.names
        values = self.counts.values()
        worst = [
            {
                **self.show(wrong.example, wrong.position if self.tags else None),
                "label": names[wrong.label],
                "answer": names[wrong.answer],
                "probability": wrong.confidence,
            }
            for wrong in self.counts.worst
        ]
        return {"targets": int(self.counts.matrix.sum()), **values, "worst": worst}


class RegressionMeasure(Measure):
    """Numbers: one or several for each example."""

    def __init__(self, data: TrainingData, split: str, numbers: Array) -> None:
        super().__init__(data, split, numbers)
        self.answers: list[Array] = []
        self.targets: list[Array] = []
        self.examples: list[Array] = []

    def add(self, rows: Batch, batch_loss: BatchLoss, tally: Any, numbers: Array) -> None:
        """Collect answers and targets."""
        count = len(rows.targets)
        width = 1 if self._outputs is None else len(self._outputs.columns)
        for stored, tensor in ((self.answers, batch_loss.outputs), (self.targets, rows.targets)):
            stored.append(tensor.double().cpu().numpy().reshape(-1, width))
        self.examples.append(np.repeat(numbers, len(self.targets[-1]) // count))

    @property
    def _outputs(self) -> Standardise | None:
        step: Standardise | None = self.data.output_step(Standardise)
        return step

    def values(self) -> dict[str, Any]:
        """Errors of each output in original units, beside those of the mean."""
        scale = self._outputs
        answers, targets = np.concatenate(self.answers), np.concatenate(self.targets)
        if scale is not None:
            answers, targets = scale.invert(answers), scale.invert(targets)
        outputs = {
            name: self._errors(answers[:, i], targets[:, i], None if scale is None else i)
            for i, name in enumerate(["value"] if scale is None else scale.columns)
        }
        first = next(iter(outputs.values())) if len(outputs) == 1 else {}
        worst = self._worst(answers, targets, list(outputs))
        return {"targets": targets.size, **first, "outputs": outputs, "worst": worst}

    def _errors(self, answers: Array, targets: Array, column: int | None) -> dict[str, Any]:
        if column is None or self._outputs is None:
            baseline = mean_baseline(targets, float(np.nanmean(targets)))
            baseline["name"] = "mean of these targets"
        else:
            baseline = mean_baseline(targets, self._outputs.mean[column])
        return {
            **regression_errors(answers, targets),
            "baseline": baseline,
            "by_size": answers_by_size(answers, targets),
        }

    def _worst(self, answers: Array, targets: Array, names: list[str]) -> list[dict[str, Any]]:
        """The largest errors, relative to the deviation of their output."""
        spread = np.nanstd(targets, 0) + 1e-30
        rows = np.concatenate(self.examples)
        flat = largest_errors((answers / spread).ravel(), (targets / spread).ravel(), MOST_WORST)
        worst = []
        for row, column in (divmod(place, len(names)) for place in flat):
            pair = {"target": float(targets[row, column]), "answer": float(answers[row, column])}
            name = {"output": names[column]} if len(names) > 1 else {}
            worst.append({**self.show(rows[row]), **name, **pair})
        return worst


class LanguageMeasure(Measure):
    """The probability of every next token."""

    def __init__(self, data: TrainingData, split: str, numbers: Array) -> None:
        super().__init__(data, split, numbers)
        self.nats, self.tokens, self.bytes = 0.0, 0, 0
        self.counts: Counter[int] = Counter()  # of each token
        self.rows: list[tuple[float, int, str]] = []  # mean nats, number and text of a window

    def add(self, rows: Batch, batch_loss: BatchLoss, tally: Any, numbers: Array) -> None:
        """Add the nats, tokens and bytes of windows."""
        counted = rows.targets != IGNORE
        losses = F.cross_entropy(
            batch_loss.outputs.float().transpose(1, -1), rows.targets, reduction="none",
            ignore_index=IGNORE,
        )  # fmt: skip
        self.nats += float(losses.double().sum())
        self.tokens += int(counted.sum())
        self.counts.update(rows.targets[counted].tolist())
        means = losses.double().sum(1) / counted.sum(1).clamp(min=1)
        for row, number in enumerate(range(self.seen, self.seen + len(rows.targets))):
            text = self._text(rows.targets[row][counted[row]])
            self.rows.append((float(means[row]), number, text))
        self.rows = sorted(self.rows, key=lambda row: (-row[0], row[1]))[:MOST_WORST]

    def _text(self, tokens: Tensor) -> str:
        """The text of tokens, whose bytes are counted."""
        tokenizer = self.data.tokenizer
        if tokenizer is None:
            return " ".join(map(str, tokens.tolist()))
        text: str = tokenizer.decode(tokens.tolist())
        is_bytes = isinstance(tokenizer, ByteTokenizer)
        self.bytes += len(tokens) if is_bytes else len(text.encode())
        return text

    def values(self) -> dict[str, Any]:
        """Bits per byte and perplexity, beside the entropy of single tokens."""
        nats = self.nats / self.tokens
        bits = nats / np.log(2)
        per_token = self.bytes / self.tokens if self.bytes else None
        values: dict[str, Any] = {
            "tokens": self.tokens,
            "bytes": self.bytes or None,
            "nats_per_token": nats,
            "bits_per_token": bits,
            "bits_per_byte": None if per_token is None else bits / per_token,
            "perplexity": float(np.exp(min(nats, 700.0))),
        }
        shares = np.array(list(self.counts.values())) / self.tokens
        unigram = float(-(shares * np.log2(shares)).sum())
        values["baseline"] = {
            "name": "unigram entropy of these tokens",
            "bits_per_token": unigram,
            "bits_per_byte": None if per_token is None else unigram / per_token,
            "perplexity": 2.0**unigram,
        }
        values["worst"] = [
            {"place": f"window {n + 1}", "input": shorten(text), "bits_per_token": x / np.log(2)}
            for x, n, text in self.rows
        ]
        return values
