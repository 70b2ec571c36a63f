"""How much is measured besides the score, and how a model or a baseline is asked for it.

The number of examples follows from what the race trains with, not from the clock, so a race that
was interrupted ends with the same numbers; only what would take too long is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.lab.race import influence as influences
from threefold.lab.race import robustness as damages
from threefold.lab.race.calibration import batches_of, calibration, confidence, count_answers
from threefold.lab.race.influence import Outputs
from threefold.lab.race.robustness import Score
from threefold.models.model import Model
from threefold.tasks.task import Task
from threefold.training.evaluation import evaluate
from threefold.training.evaluations.classification import ConfidenceBins
from threefold.training.evaluations.measures import Array
from threefold.training.objectives import BatchLoss
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData, sample

# Runs of full length that measuring one model is planned to take.  An estimate: of runs of three to
# five seconds it took 0.08 to 0.33, of runs of one second up to 0.5.
PROBE_COST = 0.2
MOST_ELEMENTS = 200_000  # of one model, all passes together
FEWEST_EXAMPLES = 8
SECONDS = 8.0  # of one model or baseline; curves that would end later are left out
NUMBER_BYTES = 8
CALIBRATION, ROBUSTNESS, INFLUENCE = 0.25, 0.5, 0.25  # shares of the elements


@dataclass(frozen=True)
class ProbeSizes:
    """How many test examples are used for each measurement."""

    calibration: int
    robustness: int
    influence: int


def probe_sizes(task: Task[Any], elements: int) -> ProbeSizes:
    """The sizes with which about that many elements are read in all passes together."""
    total = min(MOST_ELEMENTS, elements)
    passes = ((CALIBRATION, 1), (ROBUSTNESS, damages.PASSES), (INFLUENCE, influences.PASSES))
    most = task.size("test")
    counts = [share * total / number / max(1, task.length) for share, number in passes]
    return ProbeSizes(*(min(most, max(FEWEST_EXAMPLES, int(count))) for count in counts))


@dataclass
class Stopwatch:
    """Says whether there is time left for so many passes over so many examples."""

    seconds: float = SECONDS
    start: float = field(default_factory=time.perf_counter)
    example_seconds: float = 0.0

    def time(self, score: Score, rows: Sequence[Any]) -> None:
        """Measure how long an example takes."""
        start = time.perf_counter()
        score(rows)
        self.example_seconds = (time.perf_counter() - start) / sum(len(r.inputs) for r in rows)

    def allows(self, examples: int, passes: int) -> bool:
        """Whether the passes would end in time."""
        spent = time.perf_counter() - self.start
        return spent + self.example_seconds * examples * passes <= self.seconds


def probe_model(data: TrainingData, model: Model, sizes: ProbeSizes) -> dict[str, Any]:
    """Calibration, robustness and influence of a trained model, as JSON values."""
    found: dict[str, Any] = {"weight_bytes": weight_bytes(model)}
    objective = data.objective(TrainingSettings(steps=1))

    def score(rows: Sequence[Any]) -> float:
        return evaluate(model, rows, objective=objective).metric

    first = _rows(data, min(data.data.batch_size, sizes.robustness))
    score(first)  # the first call also imports and prepares
    watch = Stopwatch()
    watch.time(score, first)
    numbers = sample(data.task.size("test"), sizes.calibration)
    if (values := calibration(data, model, numbers)) is not None:
        found["calibration"] = values
    return found | curves(data, score, model_outputs(data, model), sizes, watch)


def curves(
    data: TrainingData, score: Score, outputs: Outputs, sizes: ProbeSizes, watch: Stopwatch
) -> dict[str, Any]:
    """Robustness and influence, as far as time allows."""
    found: dict[str, Any] = {}
    rows = _rows(data, sizes.robustness)
    kinds = damages.damage_kinds(data.task, rows)
    if kinds and watch.allows(sizes.robustness, damages.PASSES):
        found["robustness"] = damages.robustness(score, rows, kinds)
        found["robustness_of"] = sizes.robustness
    if influences.has_past(data.task, rows[0]) and watch.allows(sizes.influence, influences.PASSES):
        found["influence"] = influences.influence(outputs, _rows(data, sizes.influence))
    return found


def _rows(data: TrainingData, examples: int) -> list[Any]:
    numbers: Array = sample(data.task.size("test"), examples)
    return batches_of(data, numbers)


def weight_bytes(model: Model) -> int:
    """Bytes of all parameters and buffers."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def model_outputs(data: TrainingData, model: Model) -> Outputs:
    """Answers of a model after the last element."""
    objective, task = data.objective(TrainingSettings(steps=1)), data.task

    def outputs(batch: Batch) -> Tensor:
        caught: list[Tensor] = []

        def catch(_: Any, batch_loss: BatchLoss, __: Any) -> None:
            caught.append(batch_loss.outputs.detach().float().cpu())

        evaluate(model, [batch], objective=objective, on_batch=catch)
        return answers_at_end(task, caught[0], batch)

    return outputs


def answers_at_end(task: Task[Any], answers: Tensor, batch: Batch) -> Tensor:
    """Numbers as they are, classes as probabilities; of answers per element those of the last."""
    if batch.targets.is_floating_point():
        return answers.reshape(len(batch.inputs), -1)
    if batch.targets.shape == batch.inputs.shape[:2]:
        count = batch.inputs.shape[1]
        last = torch.full((len(answers),), count) if batch.lengths is None else batch.lengths
        rows = torch.arange(len(answers))
        answers, targets = answers[rows, last - 1], batch.targets[rows, last - 1]
        if task.metric == "bits":
            return task.measure(answers, targets)[:, None]
    return answers.softmax(-1)


# --------------------------------------------------------------------------------------- baselines


@dataclass(frozen=True)
class FittedBaseline:
    """A fitted baseline: how it answers and is scored, and what it holds likely, if it says so."""

    answer: Callable[[Batch], Tensor]
    score: Score
    scores: Callable[[Batch], tuple[Tensor, Tensor]] | None  # log-odds of classes, and the targets
    example_seconds: float


def probe_baseline(data: TrainingData, fitted: FittedBaseline, sizes: ProbeSizes) -> dict[str, Any]:
    """Memory, calibration, robustness and influence of a baseline, as JSON values."""
    found: dict[str, Any] = {"memory_bytes": held_bytes(fitted.answer)}
    if fitted.scores is not None:
        bins = ConfidenceBins()
        for batch in _rows(data, sizes.calibration):
            count_answers(bins, *fitted.scores(batch))
        found["calibration"] = confidence(bins)

    def outputs(batch: Batch) -> Tensor:
        answers = fitted.answer(batch)
        if data.task.metric == "bits":
            return answers.reshape(len(batch.inputs), -1)[:, -1:]
        return answers.reshape(len(batch.inputs), -1)

    watch = Stopwatch(example_seconds=fitted.example_seconds)
    return found | curves(data, fitted.score, outputs, sizes, watch)


def held_bytes(answer: Callable[..., Any]) -> int:
    """Bytes of all numbers that a fitted function refers to, without the task itself."""
    return sum(_sizes(answer, set()))


def _sizes(value: Any, seen: set[int]) -> Iterator[int]:
    """The bytes of numbers and arrays inside closures, objects and containers."""
    if isinstance(value, (int, float)):
        yield NUMBER_BYTES
        return
    if id(value) in seen or isinstance(value, (Task, type, str, bytes)):
        return
    seen.add(id(value))
    if isinstance(value, (Tensor, np.ndarray)):
        yield value.nbytes
        return
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif closure := getattr(value, "__closure__", None):
        parts = [cell.cell_contents for cell in closure]
    elif is_dataclass(value) or hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    for part in parts:
        yield from _sizes(part, seen)
