"""Right and wrong answers of a classifier or tagger, and whether its confidence is earned.

    precision  TP / (TP + FP)     recall  TP / (TP + FN)     F1  2 TP / (2 TP + FP + FN)
    expected calibration error    Σ_b n_b / n · |accuracy_b − confidence_b|   (bins of confidence)

What is 0 / 0 is not a number and is None.
Guo et al. 2017, "On Calibration of Modern Neural Networks".
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from threefold.data.preprocessing.decisions import Thresholds, decide
from threefold.training.label_scores import label_scores

Array = NDArray[Any]

BINS = 10  # of confidence, from 0 to 1
MOST_WORST = 10
MOST_CONFUSED = 10
LARGEST_MATRIX = 100  # classes; a larger matrix is not part of the result


class WrongAnswer(NamedTuple):
    """A wrong answer; the most confident ones are the worst."""

    confidence: float
    example: int
    position: int  # within the example
    label: int
    answer: int


class ConfidenceBins:
    """How often answers of a confidence are right, batch by batch."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins = np.zeros((bins, 3))  # number, sum of confidence, number of right answers

    def add(self, confidence: Array, right: Array) -> None:
        """Add the confidence of answers [n], and which of them are right."""
        bins = np.minimum((confidence * len(self.bins)).astype(np.int64), len(self.bins) - 1)
        np.add.at(self.bins, bins, np.stack([np.ones(len(right)), confidence, right], 1))

    @property
    def calibration_error(self) -> float:
        """The mean distance between confidence and accuracy, weighted by the size of a bin."""
        _, confidence, right = self.bins.T
        return float(np.abs(right - confidence).sum() / self.bins[:, 0].sum())

    def values(self) -> list[dict[str, Any]]:
        """The bins that are not empty: their range, and what happened in them."""
        return [
            {
                "from": number / len(self.bins),
                "to": (number + 1) / len(self.bins),
                "n": int(count),
                "confidence": confidence / count,
                "accuracy": right / count,
            }
            for number, (count, confidence, right) in enumerate(self.bins.tolist())
            if count
        ]


class ClassificationCounts:
    """Confusion matrix, bins of confidence and the worst answers, batch by batch."""

    def __init__(
        self, names: Sequence[str], bins: int = BINS, *, thresholds: Thresholds = ()
    ) -> None:
        self.names, self.thresholds = tuple(names), thresholds
        self.matrix = np.zeros((len(names), len(names)), np.int64)  # [label, answer]
        self.bins = ConfidenceBins(bins)
        self._worst: list[tuple[float, int, int, WrongAnswer]] = []

    def add(
        self, logits: Array, labels: Array, examples: Array, positions: Array | None = None
    ) -> None:
        """Add logits [n, classes] and labels [n]; `examples` says where each of them stands.

        The confidence is the probability of the answer, which thresholds may make a small one.
        """
        shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
        weights = np.exp(shifted)
        probabilities = weights / weights.sum(1, keepdims=True)
        answers = decide(probabilities, self.thresholds)
        confidence = probabilities[np.arange(len(answers)), answers]
        np.add.at(self.matrix, (labels, answers), 1)
        right = answers == labels
        self.bins.add(confidence, right)
        places = np.zeros_like(examples) if positions is None else positions
        for row in np.flatnonzero(~right).tolist():
            values = (int(column[row]) for column in (examples, places, labels, answers))
            self._keep(WrongAnswer(float(confidence[row]), *values))

    def _keep(self, wrong: WrongAnswer) -> None:
        entry = (wrong.confidence, -wrong.example, -wrong.position, wrong)
        if len(self._worst) < MOST_WORST:
            heapq.heappush(self._worst, entry)
        elif entry > self._worst[0]:
            heapq.heapreplace(self._worst, entry)

    @property
    def worst(self) -> list[WrongAnswer]:
        """Wrong answers, the most confident first."""
        return [entry[-1] for entry in sorted(self._worst, reverse=True)]

    def values(self) -> dict[str, Any]:
        """All metrics as JSON values."""
        support = self.matrix.sum(1)
        rows = [self._class(number) for number in range(len(self.names))]
        total, commonest = int(support.sum()), int(support.argmax())
        values = {
            **label_scores(self.matrix),
            "correct": int(np.trace(self.matrix)),
            "calibration_error": self.bins.calibration_error,
            "baseline": {
                "name": f"always {self.names[commonest]}",
                "accuracy": int(support[commonest]) / total,
            },
            "classes": rows,
            "calibration": self.bins.values(),
            "most_confused": self._most_confused(),
        }
        if len(self.names) <= LARGEST_MATRIX:
            values["confusion"] = self.matrix.tolist()
        return values

    def _class(self, number: int) -> dict[str, Any]:
        hits = int(self.matrix[number, number])
        support, answered = int(self.matrix[number].sum()), int(self.matrix[:, number].sum())
        return {
            "label": self.names[number],
            "precision": _ratio(hits, answered),
            "recall": _ratio(hits, support),
            "f1": _ratio(2 * hits, support + answered),
            "support": support,
            "answered": answered,
        }

    def _most_confused(self) -> list[dict[str, Any]]:
        """The commonest mistakes."""
        wrong = self.matrix.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSED]
        pairs = [divmod(int(flat), len(self.names)) for flat in order]
        return [
            {"label": self.names[a], "answer": self.names[b], "n": int(wrong[a, b])}
            for a, b in pairs
            if wrong[a, b]
        ]


def _ratio(part: int, total: int) -> float | None:
    return part / total if total else None
