"""`threefold.evaluate`: the metrics of a model on data, in one call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np

from threefold.data.atomic_files import write_text
from threefold.data.preprocessing.text import Labels
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.runtime.interrupts import Interrupts
from threefold.tasks.table import TEXT_KINDS
from threefold.tasks.task import make_batch
from threefold.training.evaluation import Scores
from threefold.training.evaluation import evaluate as evaluate_batches
from threefold.training.evaluations.forecast_measure import ForecastMeasure, origins_of
from threefold.training.evaluations.measures import (
    Array,
    ClassificationMeasure,
    LanguageMeasure,
    Measure,
    RegressionMeasure,
)
from threefold.training.evaluations.page import evaluation_page
from threefold.training.evaluations.subject import EvaluationSubject, open_subject
from threefold.training.evaluations.tables import facts, tables
from threefold.training.evaluations.translation import TranslationMeasure
from threefold.training.experiment import TrainedRun
from threefold.training.settings import TrainingSettings
from threefold.training.stream_errors import stream_errors
from threefold.training.training_data import WRITERS

Progress = Callable[[int, int], None]
UNKNOWN = ("refuse", "skip")


class Evaluation(dict[str, Any]):
    """The metrics as JSON values: "n", "loss", "accuracy", … and the "baseline" beside them."""

    def page(self, path: str | PathLike[str] | None = None) -> str:
        """One HTML page that needs nothing else, also written to `path` if given."""
        text = evaluation_page(self)
        if path is not None:
            write_text(checked_path("path", path), text)
        return text

    def __repr__(self) -> str:
        lines = [f"{name:<28}{value}" for name, value in facts(self)]
        for table in tables(self):
            lines += ["", table.title, "  ".join(table.header)]
            lines += ["  ".join(row) for row in table.rows]
        return "\n".join(lines)


def evaluate(
    model: Model | TrainedRun | str | PathLike[str],
    data: Any = None,
    split: str | None = None,
    *,
    unknown: str = "refuse",
    stride: int = 1,
    season: int | None = None,
    by_position: bool = False,
    settings: Sequence[str] = (),
    on_progress: Progress | None = None,
) -> Evaluation:
    """Evaluate a model, the folder of a model or of a run, or what `threefold.train` returned.

    data: a path, a task's name, a data frame, arrays, or a list of texts; default: the data of the
    run.  split: train, valid or test; default: all of new data, the test split of the run's own.
    unknown: "skip" leaves out examples whose label the model does not know.  stride: forecasts
    begin every that many rows.  season: rows of a season, for the naive forecasts.  by_position:
    also the errors along one stream, with the state carried all the way.  settings: e.g.
    ["data.batch_size=64"].  on_progress: called with the numbers of examples done and in total.
    """
    if unknown not in UNKNOWN:
        raise ThreefoldError(f"unknown is {unknown!r}, expected 'refuse' or 'skip'")
    if season is not None and season < 1:
        raise ThreefoldError(f"season is {season}, expected at least 1")
    subject = open_subject(model, data, split, settings=settings, skip_unknown=unknown == "skip")
    options: dict[str, Any] = {"stride": stride, "season": season, "by_position": by_position}
    return evaluate_subject(subject, on_progress=on_progress, **options)


def evaluate_subject(
    subject: EvaluationSubject,
    *,
    stride: int = 1,
    season: int | None = None,
    by_position: bool = False,
    on_progress: Progress | None = None,
) -> Evaluation:
    """Run the model over all examples; Ctrl-C ends it after a batch."""
    task, split = subject.data.task, subject.split
    if stride != 1 and task.kind != "forecaster":
        raise ThreefoldError(f"stride is {stride}, but this is a {task.kind} model")
    numbers = origins_of(task.windows, split, task.size(split), stride)
    measure = _measure(subject, numbers, season)
    start = time.monotonic()
    with Interrupts() as interrupts, measure.watching(subject.model):

        def on_batch(*batch: Any) -> None:
            measure(*batch)
            if on_progress is not None:
                on_progress(min(measure.seen, len(numbers)), len(numbers))
            done = f"{measure.seen:,} of {len(numbers):,} examples"
            interrupts.check(f"after {done}; nothing was written")

        scores = evaluate_batches(
            subject.model,
            _batches(subject, numbers),
            carry=subject.carry,
            objective=subject.data.objective(TrainingSettings(steps=1)),
            on_batch=on_batch,
        )
    seconds = round(time.monotonic() - start, 3)
    measured = measure.values()
    if by_position:
        with Interrupts() as interrupts:
            measured["by_position"] = _along_stream(subject, interrupts, on_progress)
    return _collect(subject, scores, {"n": len(numbers), "seconds": seconds}, measured)


def _along_stream(
    subject: EvaluationSubject, interrupts: Interrupts, on_progress: Progress | None
) -> dict[str, Any]:
    """The errors along one stream, as JSON values."""

    def show(done: int, total: int) -> None:
        if on_progress is not None:
            on_progress(done, total)
        interrupts.check(f"after {done:,} of {total:,} elements; nothing was written")

    return stream_errors(subject.model, subject.data.task, subject.split, show).values()


def _collect(
    subject: EvaluationSubject, scores: Scores, cost: dict[str, Any], measured: dict[str, Any]
) -> Evaluation:
    """What was evaluated, loss and metric of training, and what was measured besides."""
    data = subject.data
    notes = [*subject.notes, *measured.pop("notes", [])]
    return Evaluation(
        {
            "model": subject.name,
            "data": data.data.name,
            "split": "all" if subject.whole else subject.split,
            "kind": data.task.kind,
            **cost,
            "loss": _finite(scores.loss),
            "metric": data.metric,
            data.metric: _finite(scores.metric),
            "chance": data.task.chance,
            "notes": notes,
            **measured,
        }
    )


def _measure(subject: EvaluationSubject, numbers: Array, season: int | None) -> Measure:
    """What is measured of this kind of model."""
    data, split = subject.data, subject.split
    if data.task.kind in WRITERS:
        return TranslationMeasure(data, split, numbers)
    targets = data.task.rows(split, [0]).targets
    if subject.model.kind == "forecaster":
        return ForecastMeasure(data, split, numbers, season)
    if season is not None:
        raise ThreefoldError(f"season is {season}, but this is a {data.task.kind} model")
    if targets.is_floating_point():
        return RegressionMeasure(data, split, numbers)
    if subject.model.kind in TEXT_KINDS:
        return LanguageMeasure(data, split, numbers)
    known = subject.model.preprocessing
    labels = None if known is None else known.outputs.find(Labels)
    thresholds = () if labels is None else labels.thresholds
    classes = int(subject.model.spec.option("classes"))
    return ClassificationMeasure(data, split, numbers, classes, thresholds)


def _batches(subject: EvaluationSubject, numbers: Array) -> Iterator[Any]:
    """The examples in order; the last window of a whole text may be shorter."""
    data, task = subject.data, subject.data.task
    if subject.carry:
        yield from data.pieces(subject.split, carry=True)
        return
    size = data.data.batch_size
    for first in range(0, len(numbers), size):
        yield task.rows(subject.split, numbers[first : first + size])
    if subject.whole and task.corpus is not None:
        tokens = task.corpus().tokens[subject.split]
        rest = np.asarray(tokens[len(numbers) * task.length :], np.int64)
        if len(rest) > 1 + (task.augment is not None):  # an order needs two tokens
            batch = make_batch(rest[None, :-1], rest[None, 1:])
            drawn = task.augment and task.augment(lambda _: batch, data.data.seed)(len(numbers))
            yield drawn or batch


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
