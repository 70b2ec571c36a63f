"""Baselines without a sequence model: they ignore the input, or its order.

    majority          the commonest answer of the training split
    mean              the mean of the training split, for numbers
    bag               tokens without order (naive Bayes), or means and deviations (nearest class)
    commonest tag     of each word by itself
    unigram           the frequencies of tokens
    last value · seasonal naive · linear      for forecasts
    shuffled labels   the same task with the answers of other examples: nothing can be learnt

A model that is not better than these has learnt nothing about the order of its input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import IGNORE, Batch
from threefold.data.shuffling import shuffled
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import unigram_bits
from threefold.tasks.task import Numbers, Task

Array = NDArray[Any]
MOST_EXAMPLES = 2000  # of a split that a baseline reads
RIDGE_PENALTY = 1e-3


def baselines(task: Task[Batch], most: int = MOST_EXAMPLES) -> dict[str, float]:
    """The baselines that fit a task, in its metric, on its test split."""
    if task.kind == "classifier":
        return {"majority": majority(task, most), "bag": bag(task, most)}
    if task.kind == "tagger":
        return {"majority": majority(task, most), "commonest tag": commonest_tag(task, most)}
    if task.kind == "regressor":
        return {"mean": mean(task, most)}
    if task.kind == "language" and task.metric == "bits":
        return {"unigram": unigram(task, most)}
    if task.kind == "forecaster" and task.metric == "absolute_error":
        return {"last value": last_value(task, most), "linear": linear(task, most)}
    raise ThreefoldError(
        f"{task.name}: there is no baseline for a {task.kind} with the metric {task.metric}"
    )


def shuffled_labels(task: Task[Batch], seed: int = 0) -> Task[Batch]:
    """A control: the task with the answers of other examples of the same split."""

    def draw(split: str, numbers: Numbers) -> Batch:
        others = shuffled((seed, 7), task.size(split), numbers)
        batch, labels = task.draw(split, numbers), task.draw(split, others).targets
        if labels.ndim != 1:
            raise ThreefoldError(
                f"{task.name}: answers of shape {tuple(labels.shape)}; expected one per row"
            )
        return batch._replace(targets=labels)

    return replace(task, name=f"{task.name}, labels shuffled", draw=draw)


def sample_rows(task: Task[Batch], split: str, most: int) -> Batch:
    """At most `most` examples, spread over the split."""
    size = task.size(split)
    return task.rows(split, np.unique(np.linspace(0, size - 1, min(size, most)).astype(np.int64)))


def commonest_answer(answers: Array) -> int:
    """The commonest class among answers; the first of several."""
    return int(np.bincount(answers[answers != IGNORE]).argmax())


def majority_score(train: Array, test: Array) -> float:
    """Accuracy on test answers of always giving the commonest answer of the training split."""
    return float((test[test != IGNORE] == commonest_answer(train)).mean())


def majority(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """`majority_score` of a task."""
    train, test = (sample_rows(task, split, most).targets.numpy() for split in ("train", "test"))
    return majority_score(train, test)


def mean(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """The metric of always answering the mean of the training split."""
    train, test = (sample_rows(task, split, most).targets for split in ("train", "test"))
    answers = train.nanmean(0).expand_as(test)
    return float(task.measure(answers, test).mean())


def bag(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """Accuracy of naive Bayes on token counts, or of the nearest class by mean and deviation."""
    train, test = sample_rows(task, "train", most), sample_rows(task, "test", most)
    answers = train.targets.numpy()
    classes = int(answers.max()) + 1
    if task.vocabulary:
        counts, asked = (_counts(batch, task.vocabulary) for batch in (train, test))
        sums = np.stack([counts[answers == c].sum(0) + 1 for c in range(classes)])
        prior = np.bincount(answers, minlength=classes) + 1
        scores = asked @ np.log(sums / sums.sum(1, keepdims=True)).T + np.log(prior / prior.sum())
    else:
        known, asked = (_moments(batch) for batch in (train, test))
        spread = known.std(0) + 1e-8
        centres = np.stack([known[answers == c].mean(0) for c in range(classes)])
        scores = -(((asked[:, None] - centres) / spread) ** 2).sum(-1)
    return float((scores.argmax(1) == test.targets.numpy()).mean())


def _counts(batch: Batch, vocabulary: int) -> Array:
    inputs = batch.inputs.numpy()
    mask = batch.mask
    real = np.ones(inputs.shape, bool) if mask is None else mask.numpy()
    rows = [row[not_padding] for row, not_padding in zip(inputs, real, strict=True)]
    return np.stack([np.bincount(row.ravel(), minlength=vocabulary) for row in rows])


def _moments(batch: Batch) -> Array:
    inputs, lengths = batch.inputs.numpy().astype(np.float64), batch.lengths
    sizes = [inputs.shape[1]] * len(inputs) if lengths is None else lengths.tolist()
    rows = [row[:n] for row, n in zip(inputs, sizes, strict=True)]
    return np.stack([np.concatenate([row.mean(0), row.std(0)]) for row in rows])


def commonest_tag(task: Task[Batch], most: int = 1 << 30) -> float:
    """Accuracy of giving each token's commonest answer in the training split."""
    train, test = sample_rows(task, "train", most), sample_rows(task, "test", most)
    tags = int(train.targets.max()) + 1
    table = np.zeros((task.vocabulary, tags), np.int32)
    inputs, answers = train.inputs.numpy(), train.targets.numpy()
    np.add.at(table, (inputs[answers != IGNORE], answers[answers != IGNORE]), 1)
    table[table.sum(1) == 0] = table.sum(0)  # unseen words
    right = test.targets.numpy()
    known = table.argmax(1)[test.inputs.numpy()]
    return float((known == right)[right != IGNORE].mean())


def unigram(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """Bits per token of the test split under the training split's frequencies plus one."""
    train, test = (
        sample_rows(task, split, most).targets.numpy().ravel() for split in ("train", "test")
    )
    return unigram_bits(train, test, task.vocabulary)


def last_value(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """Mean absolute error of repeating the last value."""
    test = sample_rows(task, "test", most)
    return float((test.inputs[:, -1:, 0] - test.targets).abs().mean())


def seasonal_naive(task: Task[Batch], season: int, most: int = MOST_EXAMPLES) -> float:
    """Mean absolute error of repeating the last season."""
    test = sample_rows(task, "test", most)
    if not 1 <= season <= test.inputs.shape[1]:
        raise ThreefoldError(
            f"{task.name}: a season of {season}; expected 1 to {task.length}, the context"
        )
    horizon = test.targets.shape[1]
    newest = test.inputs[:, -season:, 0]
    forecast = newest.repeat(1, -(-horizon // season))[:, :horizon]
    return float((forecast - test.targets).abs().mean())


def linear(task: Task[Batch], most: int = MOST_EXAMPLES) -> float:
    """Mean absolute error of a linear map from context to horizon, fitted by ridge regression."""
    train, test = (sample_rows(task, split, most) for split in ("train", "test"))
    known, asked = (np.pad(b.inputs.numpy().reshape(len(b.inputs), -1), ((0, 0), (0, 1)),
                           constant_values=1.0) for b in (train, test))  # fmt: skip
    known, asked = known.astype(np.float64), asked.astype(np.float64)
    square = known.T @ known + RIDGE_PENALTY * len(known) * np.eye(known.shape[1])
    weights = np.linalg.solve(square, known.T @ train.targets.numpy())
    return float(np.abs(asked @ weights - test.targets.numpy()).mean())
