"""Accuracy, balanced accuracy and macro F1 of a confusion matrix [label, answer].

Balanced accuracy is the mean recall of the classes that occur; macro F1 the mean F1 of the classes
that occur or were answered, as in scikit-learn.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def label_scores(matrix: NDArray[Any]) -> dict[str, float]:
    """The three scores by name."""
    hits, support, answered = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    occurs, counts = support > 0, support + answered > 0
    return {
        "accuracy": float(hits.sum() / matrix.sum()),
        "balanced_accuracy": float((hits[occurs] / support[occurs]).mean()),
        "macro_f1": float((2 * hits[counts] / (support + answered)[counts]).mean()),
    }
