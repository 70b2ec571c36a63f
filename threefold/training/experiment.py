"""Run a configuration in a folder: build the model, train, save, evaluate.

run/  config.toml   all settings                    model/         the saved model
      run.json      settings, hashes of the data    summary.json   scores and cost
      log.jsonl     a line for every step           figures/       loss and learning rate
      checkpoints/  to resume from                  samples.txt    of language models
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from threefold.data.atomic_files import write_json, write_text
from threefold.drawing.page import standalone
from threefold.errors import ThreefoldError
from threefold.models.config import is_model_folder
from threefold.models.model import Model
from threefold.models.saving import load
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.config import FORMAT_VERSION, RunConfig, read_toml
from threefold.training.curves import draw_run, loss_chart
from threefold.training.devices import choose_device, place
from threefold.training.distributed import ProcessGroup
from threefold.training.estimate import check_memory
from threefold.training.evaluation import Scores, evaluate
from threefold.training.loop import Result, train
from threefold.training.overrides import parse_override
from threefold.training.reporters import LoggingReporter, Reporter, SampleReporter
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData, open_data

CONFIG, SUMMARY, MODEL, SAMPLES = "config.toml", "summary.json", "model", "samples.txt"


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended or was interrupted."""

    result: Result
    model: Model
    folder: Path | None
    test: Scores | None  # None if interrupted or not evaluated
    summary: dict[str, Any] = field(default_factory=dict)  # scores, cost and baselines

    @property
    def finished(self) -> bool:
        """Whether the run has ended, rather than been interrupted."""
        return self.result.stopped != "interrupted"

    @property
    def history(self) -> list[dict[str, Any]]:
        """Step, loss, learning rate and, where evaluated, valid_loss and valid_metric."""
        return self.result.history

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The curves of training and validation loss as SVG, also written to `path` if given."""
        text = standalone(loss_chart(self.history))
        if path is not None:
            write_text(Path(path), text)
        return text


@dataclass(frozen=True)
class PreparedRun:
    """What a run trains on and evaluates: made once, used for the plan and for the run."""

    data: TrainingData
    model: Model
    batches: Callable[[int], Any]  # by step
    valid_examples: int | None  # of each validation; None: all
    test_examples: int | None = None  # of the final test; None: all


def prepare(config: RunConfig, data: TrainingData | None = None) -> PreparedRun:
    """Open the data, unless they are given, and build a model with initial weights."""
    if config.threads:
        torch.set_num_threads(config.threads)
    data = data or open_data(config.data)
    spec = data.spec(config.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.model.seed)
        model = build(spec)
    model.tokenizer, model.preprocessing = data.tokenizer, data.preprocessing
    place(model, config.training)
    batches = data.batches(config.training.carry_state)
    return PreparedRun(data, model, batches, config.data.eval_examples)


def run(
    config: RunConfig,
    folder: Path | None = None,
    *,
    prepared: PreparedRun | None = None,
    reporters: Sequence[Reporter] | None = None,
    test: bool = True,
    samples: bool = True,
) -> TrainedRun:
    """Train as configured; with a folder, resume the run that it contains.

    `prepared` is used instead of opening the data and building the model again.  Progress is
    logged unless `reporters` are given.  `test` evaluates the trained model on the test split, and
    `samples` writes texts of a language model to samples.txt in the folder.
    """
    prepared = prepared or prepare(config)
    group = ProcessGroup.current()
    if group.is_main:
        _check_memory(config, prepared)
        if folder is not None:
            write_config(config, folder)
    shown: list[Reporter] = [LoggingReporter(title_of(config))]
    if reporters is not None:
        shown = list(reporters)
    if samples and folder is not None:
        shown.append(SampleReporter(folder / SAMPLES))
    result = _train(config, folder, prepared, shown if group.is_main else ())
    trained = TrainedRun(result, prepared.model, folder, None)
    if group.is_main:
        trained = _conclude(config, prepared, trained, test)
    group.barrier()
    return trained


def _check_memory(config: RunConfig, prepared: PreparedRun) -> None:
    data, settings = prepared.data, config.training
    objective, batch_size = data.objective(settings), config.data.batch_size
    check_memory(prepared.model, objective, data.first, batch_size, settings)


def _train(
    config: RunConfig, folder: Path | None, prepared: PreparedRun, reporters: Sequence[Reporter]
) -> Result:
    data, settings = prepared.data, config.training
    return train(
        prepared.model,
        prepared.batches,
        settings,
        validation=data.limited(prepared.valid_examples).pieces("valid", settings.carry_state),
        objective=data.objective(settings),
        folder=folder,
        identity=data.identity(),
        reporters=reporters,
    )


def _conclude(
    config: RunConfig, prepared: PreparedRun, trained: TrainedRun, test: bool
) -> TrainedRun:
    """Evaluate a trained model; with a folder, save it with its summary and figures."""
    data, model, scores = prepared.data, prepared.model.eval(), None
    if test and trained.finished:
        tested = data.limited(prepared.test_examples)
        settings = config.training
        scores = evaluate_split(tested, model, "test", settings.carry_state, settings.precision)
    summary = summarize(config, data, model, trained.result, scores)
    if trained.folder is not None:
        model.save(trained.folder / MODEL)
        write_json(trained.folder / SUMMARY, summary)
        draw_run(trained.folder)
    return replace(trained, test=scores, summary=summary)


def evaluate_split(
    data: TrainingData,
    model: Model,
    split: str,
    carry: bool = False,
    precision: str = "float32",
) -> Scores:
    """Loss and metric of a model on a split."""
    objective, batches = data.objective(TrainingSettings(steps=1)), data.pieces(split, carry)
    return evaluate(model, batches, carry=carry, objective=objective, precision=precision)


def title_of(config: RunConfig) -> str:
    """The title of a run, e.g. `mamba on notes.txt`."""
    names = [entry if isinstance(entry, str) else entry[0] for entry in config.model.mixers]
    return f"{'+'.join(dict.fromkeys(names))} on {Path(config.data.name).name}"


def write_config(config: RunConfig, folder: Path) -> None:
    """Write config.toml if there is none yet; refuse a different one and say what differs."""
    path = folder / CONFIG
    if path.exists():
        existing = read_run(folder)
        if existing != config:
            raise ThreefoldError(
                f"{folder}: already contains a run with different settings: "
                f"{'; '.join(existing.differences(config))}; choose "
                "another --folder, or use the same settings"
            )
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ThreefoldError(f"{folder}: cannot be created ({error.strerror})") from error
    write_text(path, config.to_toml())


def read_run(folder: Path) -> RunConfig:
    """The configuration of a run's folder."""
    return RunConfig.read(read_run_values(folder))


def read_run_values(folder: Path) -> dict[str, Any]:
    """config.toml of a run's folder, in the format of this version."""
    path = folder / CONFIG
    if not path.is_file():
        reason = f"contains no {CONFIG}" if folder.is_dir() else "folder not found"
        raise ThreefoldError(f"{folder}: {reason}; expected a folder written by `threefold train`")
    values = read_toml(path)
    if not isinstance(values.get("data"), dict):
        raise ThreefoldError(f"{path}: not the configuration of a run: there is no section [data]")
    version = values.get("format_version", 1)
    if version != FORMAT_VERSION:
        raise ThreefoldError(
            f"{path}: a run in format {version}, but this version of Threefold reads format "
            f"{FORMAT_VERSION} (settings were renamed): train again, or use the version that "
            "wrote it"
        )
    return values


def finished_steps(folder: Path) -> int | None:
    """The steps of a run that has ended; None if it can be resumed."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return None if summary["stopped"] == "interrupted" else int(summary["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Evaluation:
    """Scores of a saved model on one split of some data."""

    scores: Scores
    data: TrainingData
    split: str

    @property
    def examples(self) -> int:
        """Number of examples in the split."""
        return self.data.task.size(self.split)


def evaluate_folder(
    folder: Path, data: str | None = None, split: str = "test", overrides: Sequence[str] = ()
) -> Evaluation:
    """Evaluate a run or a saved model, on a run's own data or on other data."""
    is_run = (folder / CONFIG).is_file()
    if not folder.is_dir():
        raise ThreefoldError(f"{folder}: folder not found")
    if not is_run and not is_model_folder(folder):
        raise ThreefoldError(f"{folder}: neither a run of `threefold train` nor a saved model")
    if not is_run and data is None:
        raise ThreefoldError(
            f"{folder}: a saved model does not know its data; give DATA as well: "
            f"`threefold evaluate {folder} DATA`"
        )
    for text in overrides:
        if parse_override(text)[0][0] != "data":
            raise ThreefoldError(
                f"--set {text!r}: an evaluation can only change settings of the data, such as "
                "data.length=1024"
            )
    values = read_run(folder).model_dump(mode="json") if is_run else {"data": {}}
    config = RunConfig.read(values if data is None else _with_data(values, data), overrides)
    training_data = open_data(config.data)
    settings = config.training
    model = load(folder / MODEL if is_run else folder, device=choose_device(settings.device))
    _check_fit(folder, model, training_data.spec(config.model), config.data.name)
    carry = settings.carry_state and training_data.task.corpus is not None
    limited = training_data.limited(None)
    scores = evaluate_split(limited, model, split, carry, settings.precision)
    return Evaluation(scores, training_data, split)


def _with_data(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings of a run on other data: only its batch size and tokenizer stay the same."""
    same = {key: values["data"].get(key) for key in ("batch_size", "tokenizer")}
    data = {"name": name, **{key: value for key, value in same.items() if value is not None}}
    return {**values, "data": data}


def _check_fit(folder: Path, model: Model, needed: Spec, data: str) -> None:
    spec = model.spec
    if needed.kind != spec.kind:
        raise ThreefoldError(
            f"{folder} is a {spec.kind} model, but {data} needs a {needed.kind} model"
        )
    if needed.vocabulary != spec.vocabulary:
        raise ThreefoldError(
            f"{folder} has a vocabulary of {spec.vocabulary}, but {data} has {needed.vocabulary}"
        )


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
        "parameters": model.parameter_count,
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 3),
        "tokens_per_second": round(result.tokens_per_second, 1),
        "stopped": result.stopped,
        "loss": _number(result.losses[-1] if result.losses else math.nan),
        "valid": _scores(result.scores),
        "test": None if test is None else _scores(test),
        "published": dict(task.published),
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if task.labels:
        values["labels"] = list(task.labels)
    return values


def _scores(scores: Scores) -> dict[str, float | None]:
    return {"loss": _number(scores.loss), "metric": _number(scores.metric)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
