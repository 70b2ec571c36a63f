"""loss(s ⊙ C) − loss(W): what storing the weights of a model in fewer bits costs in quality."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from typing import Any

from threefold.runtime.quantisation import quantize
from threefold.training.evaluations.evaluation import Evaluation, Progress, evaluate_subject
from threefold.training.evaluations.subject import open_subject


def evaluate_narrow(
    model: str | PathLike[str],
    weights: str,
    data: Any = None,
    split: str | None = None,
    *,
    settings: Any = (),
    on_progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate a model with narrow weights; under "weights" is how its loss has changed.

    options: stride and season, as in `evaluate`.
    """
    unknown = options.pop("unknown", "refuse")
    subject = open_subject(model, data, split, settings=settings, skip_unknown=unknown == "skip")
    stored = replace(subject, model=quantize(subject.model, weights))
    before = evaluate_subject(subject, on_progress=on_progress, **options)
    after = evaluate_subject(stored, on_progress=on_progress, **options)
    change = after["loss"] / before["loss"] - 1
    after["weights"] = {"stored_in": weights, "loss_as_trained": before["loss"], "change": change}
    after["notes"] = [
        f"weights in {weights}: the loss is {after['loss']:.5g}, with the weights as trained "
        f"{before['loss']:.5g} ({100 * change:+.2f} %)",
        *after["notes"],
    ]
    return after
