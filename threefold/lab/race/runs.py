"""One run of a race: a model trained from one seed in a run folder, then evaluated like all others.

A finished run has a result.json and is not repeated; an interrupted one resumes from its newest
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from threefold.data.atomic_files import report_write_errors, write_file, write_json
from threefold.errors import ThreefoldError, option_name
from threefold.lab.race.planning import RacePlan
from threefold.lab.race.test_set import Examples, ExampleScores
from threefold.lab.report.report import CurvePoint, RaceRun
from threefold.models.model import Model
from threefold.training import experiment
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.experiment import TrainedRun, evaluate_split
from threefold.training.loop import Trainer
from threefold.training.preparation import PreparedRun, prepare
from threefold.training.reporters import Reporter
from threefold.training.training_data import TrainingData

RESULT, BATCHES, CURVE = "result.json", "batches.txt", "curve.jsonl"
EXAMPLES = "examples.npy"  # scores of each test example
LENGTH_FACTORS = (2, 4, 8)  # of the training length, for the evaluation at other lengths
INTERRUPTED = "interrupted; run the same command again to continue"

Progress = Callable[[float, float], None]  # (fraction of the run that is done, newest loss)


class StoppedError(ThreefoldError):
    """Interrupted by the user; the same command continues."""


@dataclass(frozen=True)
class FinishedRun:
    """The result of one run."""

    run: RaceRun
    other_lengths: tuple[tuple[int, float], ...]  # (length, test score)
    loss: float  # of the last validation
    examples: Examples | None = None  # scores of each test example; None: there is only a total


def train_run(
    plan: RacePlan,
    config: RunConfig,
    folder: Path | None,
    progress: Progress,
    cache: DataCache | None = None,
) -> FinishedRun:
    """Train and evaluate one run, or read its result if it is finished."""
    if folder is not None and (folder / RESULT).is_file():
        return read_result(folder)
    cache = cache or DataCache()
    prepared = prepare_run(plan, config, cache)
    scores = example_scores(prepared.data)
    batches, recorder = HashedBatches(prepared.batches, folder), CurveRecorder(folder, progress)
    watched = replace(
        prepared, batches=batches, on_test_batch=None if scores is None else scores.on_batch
    )
    trained = train_to_end(config, folder, watched, recorder)
    result, test = trained.result, trained.test
    assert test is not None  # the run has ended
    digest = batches.digest(plan.common_steps)
    effort = result.steps, result.tokens, result.seconds
    run = RaceRun(config.data.seed, test.metric, *effort, recorder.points, digest)
    lengths = score_other_lengths(cache, prepared.data, trained.model, plan.test_examples)
    examples = None if scores is None else scores.array
    finished = FinishedRun(run, lengths, result.scores.loss, examples)
    if folder is not None:
        write_result(folder, finished)
    return finished


def example_scores(data: TrainingData) -> ExampleScores | None:
    """What collects the score of each example; None if the metric is one of the whole split."""
    return None if data.task.kind == "seq2seq" else ExampleScores(data.task.measure)


def prepare_run(plan: RacePlan, config: RunConfig, cache: DataCache) -> PreparedRun:
    """Data and model of a run that is evaluated on as many examples as all others."""
    prepared = prepare(config, cache.open(config.data))
    return replace(prepared, valid_examples=plan.valid_examples, test_examples=plan.test_examples)


def train_to_end(
    config: RunConfig,
    folder: Path | None,
    prepared: PreparedRun,
    recorder: CurveRecorder,
    test: bool = True,
) -> TrainedRun:
    """Train; an interruption ends the race, which the same command continues."""
    trained = experiment.run(
        config, folder, prepared=prepared, reporters=[recorder], test=test, samples=False
    )
    if not trained.finished:
        raise StoppedError(INTERRUPTED)
    return trained


def write_result(folder: Path, finished: FinishedRun) -> None:
    """Write the result; result.json comes last, because it marks a finished run."""
    if finished.examples is not None:
        write_file(folder / EXAMPLES, partial(save_array, finished.examples))
    write_json(folder / RESULT, asdict(replace(finished, examples=None)))


def save_array(array: Examples, path: Path) -> None:
    """Write an array to a path as it is named."""
    with path.open("wb") as file:
        np.save(file, array)


def read_result(folder: Path) -> FinishedRun:
    """The result of a finished run."""
    values = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    run = values["run"]
    run["curve"] = tuple(CurvePoint(*point) for point in run["curve"])
    lengths = tuple((int(length), score) for length, score in values["other_lengths"])
    path = folder / EXAMPLES
    examples = np.load(path) if path.is_file() else None
    return FinishedRun(RaceRun(**run), lengths, values["loss"], examples)


def score_other_lengths(
    cache: DataCache, data: TrainingData, model: Model, examples: int
) -> tuple[tuple[int, float], ...]:
    """(length, test score) on longer sequences if the data have them, on fewer examples each."""
    length = data.task.length
    points = []
    for factor in (1, *LENGTH_FACTORS):
        settings = data.data.model_copy(update={"length": factor * length, **same_horizon(data)})
        try:
            longer = cache.open(settings) if factor > 1 else data
            if not compatible(data, longer):
                return ()
            fewer = max(min(4, examples), examples // factor)
            scores = evaluate_split(longer.limited(fewer), model, "test")
        except ThreefoldError:
            break  # the data have no such sequences, or the model has a maximum length
        points.append((factor * length, scores.metric))
    return tuple(points) if len(points) > 1 else ()


def same_horizon(data: TrainingData) -> dict[str, int]:
    """The horizon of a user's series, which would grow with the length by default."""
    steps = data.preprocessing
    return {} if steps is None or steps.horizon is None else {"horizon": steps.horizon}


def compatible(one: TrainingData, other: TrainingData) -> bool:
    """Whether a model for one data set fits the other."""
    fields = ("kind", "vocabulary", "features", "classes", "metric")
    if not all(getattr(one.task, name) == getattr(other.task, name) for name in fields):
        return False
    forecasts = one.task.kind == "forecaster"
    return not forecasts or one.first.targets.shape == other.first.targets.shape


class CurveRecorder(Reporter):
    """Records each evaluation with its time, and reports the progress of the run."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self.path, self.progress = None if folder is None else folder / CURVE, progress
        self.by_step: dict[int, CurvePoint] = {}

    def open(self) -> None:  # the folder is locked only now
        for line in complete_lines(self.path):
            self._add(CurvePoint(*json.loads(line)))

    def _add(self, point: CurvePoint) -> None:
        # A step that is repeated after a kill gives the same point, except for its time.
        self.by_step[point.steps] = point

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        return tuple(self.by_step[steps] for steps in sorted(self.by_step))

    def on_step(self, trainer: Trainer) -> None:
        self.progress(trainer.progress, trainer.result.losses[-1])

    def on_evaluate(self, trainer: Trainer) -> None:
        result = trainer.result
        point = CurvePoint(result.steps, result.tokens, result.seconds, result.scores.metric)
        self._add(point)
        append_line(self.path, json.dumps(point))


class HashedBatches:
    """Batches by step, with a hash of each one that was used."""

    def __init__(self, batches: Callable[[int], Any], folder: Path | None) -> None:
        self.batches, self.path = batches, None if folder is None else folder / BATCHES

    @cached_property
    def hashes(self) -> dict[int, str]:
        """Hashes by step, first read when a step needs them: then the folder is locked."""
        lines = (line.split() for line in complete_lines(self.path))
        return {int(step): digest for step, digest in lines}

    def __call__(self, step: int) -> Any:
        batch = self.batches(step)
        digest = hash_batch(batch)
        before = self.hashes.get(step)
        if before is None:
            self.hashes[step] = digest
            append_line(self.path, f"{step} {digest}")
        elif before != digest:
            raise ThreefoldError(
                f"the batch of step {step} differs from the one before the interruption: the data "
                f"have changed; start again in another {option_name('folder')}"
            )
        return batch

    def digest(self, steps: int) -> str:
        """SHA-256 over the first `steps` batches, in order."""
        sha = hashlib.sha256()
        for step in range(steps):
            sha.update(f"{step} {self.hashes[step]}\n".encode())
        return sha.hexdigest()


def hash_batch(batch: Any) -> str:
    """SHA-256 of all tensors of a batch."""
    fields = batch._asdict() if hasattr(batch, "_asdict") else vars(batch)
    sha = hashlib.sha256()
    for name, value in fields.items():
        if isinstance(value, Tensor):
            sha.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            sha.update(value.contiguous().numpy().tobytes())
    return sha.hexdigest()


def complete_lines(path: Path | None) -> list[str]:
    """The complete lines of a file; an incomplete last one, left by a kill, is removed."""
    if path is None or not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    if complete != text:
        path.write_text(complete, encoding="utf-8")
    return complete.splitlines()


def append_line(path: Path | None, line: str) -> None:
    if path is not None:
        with report_write_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
