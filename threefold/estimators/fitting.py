"""From examples to a trained model: the one training loop, with the settings of an estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import MissingNumberError, Standardise
from threefold.data.preprocessing.text import Labels
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.runtime.prediction import pooled_outputs
from threefold.tasks.task import Task
from threefold.tasks.user_data.arrays import fit_inputs
from threefold.tasks.user_data.examples import (
    ExampleData,
    RawExamples,
    examples_task,
    output_names,
    refuse_absurd_targets,
)
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.durations import parse_duration
from threefold.training.experiment import TrainedRun, run
from threefold.training.preparation import PreparedRun, prepare
from threefold.training.reporters import LineReporter, Reporter
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData

Array = NDArray[Any]
STEPS = 400  # of a fit that is given neither steps nor a time
EVALUATIONS = 20  # of a run with validation examples, of which the best weights are kept
BATCH_SIZE = 256  # of predictions


@dataclass(frozen=True)
class TrainingExamples:
    """Sequences or texts, what they are to be answered with, and how much each counts."""

    rows: Sequence[Any]
    targets: Array  # classes [N], or numbers [N, outputs]
    weights: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, numbers: Array) -> TrainingExamples:
        """The examples with these numbers."""
        weights = None if self.weights is None else self.weights[numbers]
        return TrainingExamples([self.rows[n] for n in numbers], self.targets[numbers], weights)

    def counted(self) -> TrainingExamples:
        """Without those of weight 0; the others count 1 on average."""
        if self.weights is None:
            return self
        kept = self.pick(np.flatnonzero(self.weights > 0))
        assert kept.weights is not None
        if not len(kept):
            raise ThreefoldError("sample_weight is 0 everywhere; expected a number above 0")
        return replace(kept, weights=kept.weights / kept.weights.mean())


@dataclass(frozen=True)
class FitSettings:
    """What an estimator was told about its model and training, checked when it is fitted."""

    mixers: Any = "gru"
    width: int = 64
    layers: int = 2
    steps: int | None = None
    time: str | float | None = None
    learning_rate: float = 3e-3
    batch_size: int = 32
    dropout: float = 0.1
    seed: int = 0
    verbose: int = 0

    def limits(self) -> dict[str, Any]:
        """The settings that end a run."""
        if self.time is None:
            return {"steps": STEPS if self.steps is None else self.steps}
        seconds = self.time
        if isinstance(self.time, str):
            duration = parse_duration(self.time, "time")
            if duration.seconds is None:
                raise ThreefoldError(f"time is {self.time!r}; give steps={duration.steps} instead")
            seconds = duration.seconds
        return {"steps": self.steps, "time": seconds}

    def reporters(self, title: str) -> list[Reporter]:
        """Lines of progress, if they were asked for."""
        return [LineReporter(Console(), title)] if self.verbose else []

    def config(self, examples: int, kind: str, **training: Any) -> RunConfig:
        """The configuration of a run."""
        if self.mixers is None:
            raise ThreefoldError('mixers is None; expected the name of a mixer, e.g. "gru"')
        data: dict[str, Any] = {
            "name": kind,
            "batch_size": min(self.batch_size, examples),
            "seed": self.seed,
        }
        options = {"dropout": self.dropout}
        model = {"mixers": self.mixers, "width": self.width, "depth": self.layers}
        return RunConfig(
            data=DataSettings(**data),
            model=ModelSettings(**model, options=options, seed=self.seed),
            training=TrainingSettings(
                **{"learning_rate": self.learning_rate, "seed": self.seed}
                | self.limits()
                | training
            ),
        )


def fit_preprocessing(
    kind: str, form: str, examples: TrainingExamples, settings: ReadSettings, names: Sequence[str]
) -> Preprocessing:
    """Scaling, filling or tokens of the inputs; names of the classes, or the scale of the targets.

    names: of the classes; none for numbers.
    """
    inputs = fit_inputs(form, Reading(settings))(examples.rows)
    if settings.missing == "refuse":
        encode_rows(Preprocessing(kind, form, inputs), examples.rows)
    if kind == "classifier":
        return Preprocessing(kind, form, inputs, Chain((Labels(tuple(names)),)))
    scale = Standardise.fit([examples.targets], output_names(examples.targets.shape[1]))
    refuse_absurd_targets(scale, _raw(examples))
    return Preprocessing(kind, form, inputs, Chain((scale,)))


def encode_rows(preprocessing: Preprocessing, rows: Sequence[Any]) -> list[Array]:
    """Each sequence or text as a model reads it; an error names the row."""
    encoded = []
    for number, row in enumerate(rows):
        try:
            encoded.append(preprocessing.inputs.apply(row))
        except MissingNumberError as error:
            raise ThreefoldError(
                f"X[{number}], element {error.row}, channel {error.column!r}: more than 10,000 "
                'deviations from the others; correct it, or say missing="carry" or "mask"'
            ) from error
        except ThreefoldError as error:
            raise ThreefoldError(f"X[{number}]: {error}") from error
        if not len(encoded[-1]):
            raise ThreefoldError(f"X[{number}] is empty; expected at least one element")
    return encoded


def train_model(
    examples: TrainingExamples,
    preprocessing: Preprocessing,
    settings: FitSettings,
    *,
    valid: TrainingExamples | None = None,
    once: bool = False,
    model: Model | None = None,
) -> TrainedRun:
    """Train on all examples, or keep the weights that are best on `valid`.

    once: a single time through the examples, with a constant learning rate.  model: one to train
    further, instead of a new one.
    """
    schedule: dict[str, Any] = {}
    if once:
        passes = -(-len(examples) // min(settings.batch_size, len(examples)))
        schedule = {"steps": passes, "time": None, "schedule": "constant", "warmup_fraction": 0.0}
    elif valid is not None:
        steps = settings.limits()["steps"] or STEPS
        schedule = {"eval_every": max(1, steps // EVALUATIONS), "patience": 10**6}
    config = settings.config(len(examples), preprocessing.kind, **schedule)
    if valid is None:  # the loop evaluates the last step; nothing depends on it
        config = config.model_copy(
            update={"data": config.data.model_copy(update={"eval_examples": 1})}
        )
    task = _task(examples, preprocessing, valid)
    prepared = prepare(config, TrainingData(task, config.data))
    if model is not None:
        prepared = replace(prepared, model=model)
    return finish_run(config, prepared, settings)


def finish_run(config: RunConfig, prepared: PreparedRun, settings: FitSettings) -> TrainedRun:
    """Run the training; the model then computes in float64, so that rows do not see each other."""
    title = "+".join(e if isinstance(e, str) else e[0] for e in config.model.mixers)
    reporters = settings.reporters(title)
    trained = run(config, None, prepared=prepared, reporters=reporters, test=False, samples=False)
    if not trained.finished:
        raise KeyboardInterrupt("fit was interrupted")
    trained.model.to(device="cpu", dtype=torch.float64).eval()
    return trained


def model_answers(model: Any, encoded: Sequence[Array]) -> Array:
    """Probabilities [N, classes] or standardised numbers [N, outputs] of a trained model."""
    outputs = pooled_outputs(model, encoded, BATCH_SIZE)
    return softmax(outputs) if answers_classes(model) else outputs.reshape(len(encoded), -1)


def answers_classes(model: Any) -> bool:
    """Whether a model answers log-odds of classes."""
    simple = model.kind == "simple"
    return bool(model.spec.option("classes")) if simple else bool(model.kind == "classifier")


def softmax(scores: Array) -> Array:
    """Probabilities [N, classes]."""
    exponentials = np.exp(scores - scores.max(1, keepdims=True))
    shares: Array = exponentials / exponentials.sum(1, keepdims=True)
    return shares


def _task(
    examples: TrainingExamples, preprocessing: Preprocessing, valid: TrainingExamples | None
) -> Task[Any]:
    names = preprocessing.labels
    given = {} if valid is None else dict.fromkeys(("valid", "test"), _raw(valid, names))
    data = ExampleData(
        "arrays",
        preprocessing.kind,
        preprocessing.form,
        _raw(examples, names),
        lambda train: preprocessing.inputs,
        given=given,
    )
    return examples_task(data, Reading(ReadSettings(), preprocessing, split=valid is not None))


def _raw(examples: TrainingExamples, names: Sequence[str] = ()) -> RawExamples:
    targets = [names[n] for n in examples.targets] if names else list(examples.targets)
    places = [f"X[{number}]" for number in range(len(examples))]
    return RawExamples(examples.rows, targets, places, examples.weights)
