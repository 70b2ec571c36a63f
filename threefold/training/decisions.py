"""Which label a classifier answers: thresholds of probabilities, given or chosen on validation.

    training.thresholds   {spam: 0.2}: spam is answered from a probability of 0.2 on
    training.decide       the thresholds of the best accuracy, balanced accuracy or macro F1

The best thresholds are sought one class at a time: w_c = 1 / t_c moves across the places where the
answer to an example changes, and stays where the metric is best, until no class improves it.
Losses and probabilities do not change; the answers of `predict`, `evaluate` and `stream` do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.preprocessing.decisions import check_thresholds, decide
from threefold.data.preprocessing.text import Labels
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.tasks.task import Metric, accuracy
from threefold.training.evaluation import evaluate
from threefold.training.label_scores import label_scores
from threefold.training.objectives import Objective
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import DECIDERS, TrainingData

Array: TypeAlias = NDArray[Any]
MOST_PLACES = {"two": 1_000, "more": 100}  # that are tried for one of so many classes at a time
SWEEPS = 5  # over the classes
SMALLEST = 1e-6  # probability that counts
FEW = 10  # validation examples of a class, below which its threshold is mostly chance


@dataclass(frozen=True)
class Decision:
    """Thresholds by label, and what they do to the examples of the validation."""

    thresholds: dict[str, float]
    metric: str  # that they are for; empty: they were given
    without: float
    score: float
    fewest: int  # validation examples of the rarest class

    @property
    def sentence(self) -> str:
        """One line for the end of a run."""
        shown = list(self.thresholds.items())
        if self.metric and len(shown) == 2:  # the other one follows
            shown = shown[1:]
        text = ", ".join(f"{name} from {threshold:.3g}" for name, threshold in shown)
        if not self.metric:
            return f"{text}, as given"
        text += f": validation {self.metric} {self.score:.4f} instead of {self.without:.4f}"
        few = f"; with {self.fewest} examples of the rarest class, mostly chance"
        return text + (few if self.fewest < FEW else "")

    def values(self) -> dict[str, Any]:
        """For summary.json."""
        if not self.metric:
            return {"thresholds": self.thresholds}
        chosen = {"metric": self.metric, "valid_without": self.without, "valid": self.score}
        return {"thresholds": self.thresholds, **chosen}


def decides(settings: TrainingSettings) -> bool:
    """Whether labels are answered by thresholds."""
    return bool(settings.thresholds) or settings.decide is not None


def check_decision(data: TrainingData, settings: TrainingSettings) -> None:
    """Refuse thresholds that this model cannot have, before it is trained."""
    given, metric = settings.thresholds or {}, settings.decide
    if not decides(settings) or data.task.kind not in DECIDERS:  # other kinds are refused anyway
        return
    name = "training.thresholds" if given else "training.decide"
    if given and metric is not None:
        raise ThreefoldError(
            f"training.thresholds are given and training.decide is {metric}, which would choose "
            "others; leave one of them out"
        )
    labels: Labels | None = data.output_step(Labels)
    if labels is None:
        raise ThreefoldError(
            f"{name}: {data.task.name} has no labels with names; expected a table, a file or a "
            "folder of your own with labels"
        )
    for label in given:
        if label not in labels.numbers:
            raise ThreefoldError(f"{name}: unknown label {label!r}; {_known(labels)}")
    try:
        check_thresholds(tuple(given.values()), len(given))
    except ThreefoldError as error:
        raise ThreefoldError(f"{name}: {error}") from error
    if metric is not None:
        _check_classes(data, labels, metric)


def _known(labels: Labels) -> str:
    return f"expected some of {', '.join(map(repr, labels.names[:12]))}"


def _check_classes(data: TrainingData, labels: Labels, metric: str) -> None:
    counts = np.zeros(len(labels.names), np.int64)
    for rows in data.limited(None).pieces("valid"):
        counts += np.bincount(rows.targets.numpy(), minlength=len(counts))
    if missing := [name for name, count in zip(labels.names, counts, strict=True) if not count]:
        raise ThreefoldError(
            f"training.decide is {metric}, but the {int(counts.sum()):,} validation examples have "
            f"none of {missing[0]!r}; add examples of it, or give training.thresholds"
        )


def choose_decision(
    model: Model, data: TrainingData, settings: TrainingSettings, valid: Iterable[Any]
) -> Decision | None:
    """Give a trained classifier its thresholds; None if there shall be none."""
    if not decides(settings):
        return None
    assert model.preprocessing is not None
    labels: Labels = model.preprocessing.outputs.find(Labels)
    probabilities, targets = _answers(model, data.objective(settings), valid)
    metric = settings.decide
    given = settings.thresholds or dict(
        zip(labels.names, best_thresholds(probabilities, targets, str(metric)), strict=True)
    )
    model.preprocessing = model.preprocessing.with_thresholds(given)
    chosen: Labels = model.preprocessing.outputs.find(Labels)
    scored, classes = metric or "accuracy", len(labels.names)
    return Decision(
        given,
        metric or "",
        _score(probabilities.argmax(1), targets, classes, scored),
        _score(chosen.decide(probabilities), targets, classes, scored),
        int(np.bincount(targets, minlength=classes).min()),
    )


def _answers(model: Model, objective: Objective, batches: Iterable[Any]) -> tuple[Array, Array]:
    """The probabilities [n, classes] and the numbers of the labels [n]."""
    probabilities, targets = [], []

    def on_batch(rows: Any, loss: Any, tally: Any) -> None:
        probabilities.append(loss.outputs.double().softmax(-1).cpu().numpy())
        targets.append(rows.targets.cpu().numpy())

    evaluate(model, batches, objective=objective, on_batch=on_batch)
    return np.concatenate(probabilities), np.concatenate(targets)


def best_thresholds(probabilities: Array, targets: Array, metric: str) -> list[float]:
    """The thresholds of all classes, which sum to 1, that are best for a metric."""
    logs = np.log(np.maximum(probabilities, SMALLEST))
    count = logs.shape[1]
    weights = np.zeros(count)  # logarithms of 1 / t_c
    best = _score((logs + weights).argmax(1), targets, count, metric)
    for _ in range(SWEEPS):
        before = best
        for number in range(count):
            for place in _places(logs + weights, number) + weights[number]:
                tried = np.where(np.arange(count) == number, place, weights)
                score = _score((logs + tried).argmax(1), targets, count, metric)
                if score > best:
                    best, weights = score, tried
        if best == before:
            break
    thresholds = np.exp(-(weights - weights.min()))
    return [float(t) for t in thresholds / thresholds.sum()]


def _places(scores: Array, number: int) -> Array:
    """What to add to the scores of a class, so that other examples are answered with it."""
    others = np.delete(scores, number, 1).max(1)
    cuts = np.unique(others - scores[:, number])
    middles = (cuts[1:] + cuts[:-1]) / 2
    most = MOST_PLACES["two" if scores.shape[1] == 2 else "more"]
    if len(middles) > most:
        middles = middles[np.linspace(0, len(middles) - 1, most).astype(np.int64)]
    nearest_first: Array = middles[np.argsort(np.abs(middles), kind="stable")]
    return nearest_first


def _score(answers: Array, targets: Array, classes: int, metric: str) -> float:
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (targets, answers), 1)
    return label_scores(matrix)[metric]


def deciding(metric: Metric, model: Model) -> Metric:
    """A metric of the answers of a model with thresholds instead of the likeliest classes."""
    labels = None if model.preprocessing is None else model.preprocessing.outputs.find(Labels)
    if labels is None or not labels.thresholds or metric is not accuracy:
        return metric

    def of_answers(logits: Tensor, targets: Tensor) -> Tensor:
        probabilities = logits.double().softmax(-1).cpu().numpy()
        answers = decide(probabilities, labels.thresholds)
        return (targets.cpu() == targets.new_tensor(answers).cpu()).float()

    return of_answers
