"""summary.json: scores, cost and baselines of a run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from threefold.models.model import Model
from threefold.training.config import RunConfig
from threefold.training.evaluation import Scores
from threefold.training.regular_evaluations import EVALUATIONS
from threefold.training.result import Result
from threefold.training.training_data import TrainingData

RECENT_STEPS = 10  # whose mean loss is that of training
MOST_RATIO, LEAST_GAP = 2.0, 0.2  # of validation loss and training loss, unless a model overfits


def title_of(config: RunConfig) -> str:
    """The title of a run, e.g. `mamba on notes.txt`."""
    names = [entry if isinstance(entry, str) else entry[0] for entry in config.model.mixers]
    network = config.model.options.get("network") or config.data.kind
    return f"{'+'.join(dict.fromkeys(names)) or network} on {Path(config.data.name).name}"


def summarize(
    config: RunConfig, data: TrainingData, model: Model, result: Result, test: Scores | None
) -> dict[str, Any]:
    """The content of summary.json: scores, cost and baselines of a run."""
    task = data.task
    values: dict[str, Any] = {
        "title": title_of(config),
        "task": task.name,
        "metric": data.metric,
        "lower_is_better": task.lower,
        "chance": task.chance,
        "chance_name": task.chance_name,
        "parameters": model.parameter_count,
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second, 1),
        "stopped": result.stopped,
        "loss": _number(result.losses[-1] if result.losses else math.nan),
        "valid": _scores(result.kept_scores),
        "test": None if test is None else _scores(test),
        "published": dict(task.published),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if result.start is not None:
        values["kept_step"] = result.kept_step
        values["valid_start"] = _scores(result.start)
    if note := overfitting_note(result):
        values["overfitting"] = note
    if task.labels:
        values["labels"] = list(task.labels)
    return values


def overfitting_note(result: Result) -> str:
    """What to do if the last weights were kept, but fit the training examples only; else empty."""
    newest, valid = result.losses[-RECENT_STEPS:], result.scores.loss
    train = sum(newest) / max(len(newest), 1)
    overfits = train >= 0 and valid > MOST_RATIO * train and valid > train + LEAST_GAP
    if result.kept_step is not None or not overfits:
        return ""
    every = max(1, result.steps // EVALUATIONS)
    return (
        f"validation loss {valid:.2f}, training loss {train:.2f}: the model has memorized training "
        f"examples; to keep the best weights, set training.eval_every={every} and "
        "training.patience=3; also try dropout (model.options), fewer steps, or starting from a "
        "trained model (model.from_model)"
    )


def _scores(scores: Scores) -> dict[str, float | None]:
    return {"loss": _number(scores.loss), "metric": _number(scores.metric)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
