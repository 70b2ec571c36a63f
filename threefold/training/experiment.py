"""Run a configuration in a folder: build the model, train, save, evaluate.

run/  config.toml   all settings                    model/         the saved model
      run.json      settings, hashes of the data    summary.json   scores and cost
      log.jsonl     a line for every step           figures/       loss and learning rate
      checkpoints/  to resume from                  samples.txt    of language models
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_json, write_text
from threefold.data.readers import checked_path
from threefold.drawing.page import standalone
from threefold.errors import ThreefoldError, option_name
from threefold.models.forecaster import Forecaster
from threefold.models.model import Model
from threefold.plugins import how_to_load, missing_plugins
from threefold.runtime.interrupts import InterruptedByUser, Interrupts
from threefold.training.calibrating import band_coverages, calibrate
from threefold.training.config import FORMAT_VERSION, RunConfig, read_toml
from threefold.training.curves import draw_run, loss_chart
from threefold.training.data_paths import path_note
from threefold.training.decisions import choose_decision, decides, deciding
from threefold.training.distributed import ProcessGroup
from threefold.training.ensembles import train_members
from threefold.training.estimate import check_memory
from threefold.training.evaluation import Scores, evaluate
from threefold.training.loop import train
from threefold.training.preparation import PreparedRun, prepare
from threefold.training.pretraining import pretrain
from threefold.training.reporters import LoggingReporter, Reporter, SampleReporter
from threefold.training.result import Result
from threefold.training.run_folder import CHECKPOINTS, LOG, RUN
from threefold.training.settings import TrainingSettings
from threefold.training.stream_errors import choose_past
from threefold.training.summary import summarize, title_of
from threefold.training.target_errors import TargetErrors
from threefold.training.training_data import TrainingData

Progress = Callable[[int, int], None]
CONFIG, SUMMARY, MODEL, SAMPLES = "config.toml", "summary.json", "model", "samples.txt"


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended or was interrupted."""

    result: Result
    model: Model
    folder: Path | None
    test: Scores | None  # None if interrupted or not evaluated
    summary: dict[str, Any] = field(default_factory=dict)  # scores, cost and baselines
    config: RunConfig | None = None
    data: TrainingData | None = None

    @property
    def finished(self) -> bool:
        """Whether the run has ended, rather than been interrupted."""
        return self.result.stopped != "interrupted"

    def complete(self) -> TrainedRun:
        """The run, if it was not interrupted."""
        if not self.finished:
            raise InterruptedByUser(f"stopped after step {self.result.steps:,}")
        return self

    @property
    def history(self) -> list[dict[str, Any]]:
        """Step, loss, learning rate and, where evaluated, valid_loss and valid_metric."""
        return self.result.history

    def plot(self, path: str | os.PathLike[str] | None = None) -> str:
        """The curves of training and validation loss as SVG, also written to `path` if given."""
        text = standalone(loss_chart(self.history))
        if path is not None:
            write_text(checked_path("path", path), text)
        return text


def run(
    config: RunConfig,
    folder: Path | None = None,
    *,
    prepared: PreparedRun | None = None,
    reporters: Sequence[Reporter] | None = None,
    test: bool = True,
    samples: bool = True,
    on_test: Progress | None = None,
) -> TrainedRun:
    """Train as configured; with a folder, resume the run that it contains.

    `prepared` is used instead of opening the data and building the model again.  Progress is
    logged unless `reporters` are given.  `test` evaluates the trained model on the test split, and
    `samples` writes texts of a language model to samples.txt in the folder.  `on_test` is called
    with the batches of the test that are done, and with their total.
    """
    prepared = prepared or prepare(config)
    group = ProcessGroup.current()
    if group.is_main:
        _check_memory(config, prepared)
        if folder is not None:
            write_config(config, folder, prepared.chosen)
    shown: list[Reporter] = [LoggingReporter(title_of(config))]
    if reporters is not None:
        shown = list(reporters)
    if samples and folder is not None:
        shown.append(SampleReporter(folder / SAMPLES))
    if config.training.ensemble is not None:
        return _run_ensemble(config, folder, prepared, reporters, test, on_test)
    pretrained = _pretrain(config, folder, prepared, reporters)
    if pretrained.stopped == "interrupted":
        return TrainedRun(pretrained, prepared.model, folder, None, config=config)
    result = _train(config, folder, prepared, shown if group.is_main else (), pretrained)
    trained = TrainedRun(result, prepared.model, folder, None, config=config, data=prepared.data)
    if group.is_main:
        trained = _conclude(config, prepared, trained, test, on_test)
    group.barrier()
    return trained


def _run_ensemble(
    config: RunConfig,
    folder: Path | None,
    prepared: PreparedRun,
    reporters: Sequence[Reporter] | None,
    test: bool,
    on_test: Progress | None,
) -> TrainedRun:
    """Train the members one after another, each by a run of its own, and judge them as one."""

    def train_member(own: RunConfig, path: Path | None, member: PreparedRun) -> Result:
        return run(
            own, path, prepared=member, reporters=reporters, test=False, samples=False
        ).result

    model, result = train_members(config, folder, prepared, train_member)
    trained = TrainedRun(result, model, folder, None, config=config, data=prepared.data)
    if trained.finished and ProcessGroup.current().is_main:
        trained = _conclude(config, replace(prepared, model=model), trained, test, on_test)
    return trained


def _check_memory(config: RunConfig, prepared: PreparedRun) -> None:
    data, settings = prepared.data, config.training
    objective, batch_size = data.objective(settings), config.data.batch_size
    check_memory(prepared.model, objective, data.first, batch_size, settings)


def _pretrain(
    config: RunConfig,
    folder: Path | None,
    prepared: PreparedRun,
    reporters: Sequence[Reporter] | None,
) -> Result:
    """Pretrain the model if that is asked for; an empty result otherwise."""
    if not config.data.pretrain:
        return Result()
    if not ProcessGroup.current().is_main:
        reporters = ()
    elif reporters is None:
        reporters = [LoggingReporter("pretraining")]
    return pretrain(config, prepared.data, prepared.model, folder, reporters)


def _train(
    config: RunConfig,
    folder: Path | None,
    prepared: PreparedRun,
    reporters: Sequence[Reporter],
    pretrained: Result,
) -> Result:
    data, settings = prepared.data, config.training
    if prepared.budget is not None:
        prepared.budget.before = pretrained.seconds + pretrained.other_seconds
    return train(
        prepared.model,
        prepared.batches,
        settings,
        validation=prepared.split_batches("valid", settings.carry_state),
        objective=data.objective(settings),
        folder=folder,
        identity={**data.identity(), **_start_identity(prepared)},
        reporters=reporters,
        budget=prepared.budget,
    )


def _start_identity(prepared: PreparedRun) -> dict[str, Any]:
    takeover = prepared.takeover
    return {} if takeover is None else {"weights of model.from_model": takeover.sha256}


def _conclude(
    config: RunConfig,
    prepared: PreparedRun,
    trained: TrainedRun,
    test: bool,
    on_test: Progress | None = None,
) -> TrainedRun:
    """Save a trained model if there is a folder, evaluate it, write its summary and figures."""
    data, model, scores, carried = prepared.data, prepared.model.eval(), None, None
    errors = TargetErrors.of(data)
    if isinstance(model, Forecaster) and trained.finished:
        timed = config.training.time is not None
        model.calibration = calibrate(model, data, prepared.valid_examples if timed else None)
        carried = choose_past(model, data) if config.training.carry_state else None
    decision = None
    if trained.finished:
        valid = prepared.split_batches("valid", False)
        decision = choose_decision(model, data, config.training, valid)
    if trained.folder is not None:
        model.save(trained.folder / MODEL)
    if test and trained.finished:
        scores = _test(config, prepared, on_test, errors)
        if scores is None:
            trained.result.stopped = "interrupted"
    summary = summarize(config, data, model, trained.result, scores and scores[0])
    start = None if prepared.takeover else data.linear_start(config.model)
    if start is not None:
        summary["linear_start"] = start.summary()
    if decision is not None:
        summary["decision"] = {**decision.values(), "text": decision.sentence}
    if carried is not None:
        summary["carried_state"] = carried
    if errors is not None:
        summary |= {"by_target": None} if scores is None else errors.values()
    if scores is not None and isinstance(model, Forecaster):
        summary["bands"] = band_coverages(model, data, prepared.test_examples)
    if scores is not None and scores[1] < data.task.size("test"):
        summary["test_examples"] = scores[1]
    if trained.folder is not None:
        write_json(trained.folder / SUMMARY, summary)
        if (trained.folder / LOG).is_file():  # the members of an ensemble have logs of their own
            draw_run(trained.folder)
    return replace(trained, test=scores and scores[0], summary=summary)


def _test(
    config: RunConfig,
    prepared: PreparedRun,
    on_test: Progress | None,
    errors: TargetErrors | None,
) -> tuple[Scores, int] | None:
    """Scores on the test split, and of how many examples; None if there was a signal meanwhile.

    A run with a time limit tests as many examples as there is time for.
    """
    carry, done = config.training.carry_state, 0
    batches = prepared.split_batches("test", carry)
    if prepared.budget is not None:
        prepared.budget.begin_test()
    with Interrupts() as interrupts:

        def on_batch(*batch: Any) -> None:
            nonlocal done
            done += 1
            if errors is not None:
                errors(*batch)
            if on_test is not None:
                on_test(done, len(batches))
            if prepared.on_test_batch is not None:
                prepared.on_test_batch(*batch)
            interrupts.check("during the test")

        data = prepared.data
        metric = deciding(data.task.measure, prepared.model) if decides(config.training) else None
        objective = data.objective(config.training, metric)
        try:
            scores = evaluate(
                prepared.model,
                batches,
                carry=carry,
                objective=objective,
                on_batch=on_batch,
                precision=config.training.precision,
            )
        except InterruptedByUser:
            return None
    size = prepared.data.task.size("test")
    most = min(prepared.test_examples or size, size)
    return scores, min(most, -(-most * done // len(batches)))


def evaluate_split(
    data: TrainingData,
    model: Model,
    split: str,
    carry: bool = False,
    precision: str | None = None,
) -> Scores:
    """Loss and metric of a model on a split."""
    objective, batches = data.objective(TrainingSettings(steps=1)), data.pieces(split, carry)
    return evaluate(model, batches, carry=carry, objective=objective, precision=precision)


def write_config(config: RunConfig, folder: Path, chosen: Mapping[str, str] | None = None) -> None:
    """Write config.toml if there is none yet; refuse a different one and say what differs.

    chosen: the reasons of settings that were not given.
    """
    path = folder / CONFIG
    if path.exists():
        existing = read_run(folder)
        if existing != config:
            raise ThreefoldError(
                f"{folder}: already contains a run with different settings: "
                f"{'; '.join(existing.differences(config))}; choose "
                f"another {option_name('folder')}, or use the same settings"
            )
        return
    _refuse_foreign_files(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ThreefoldError(f"{folder}: cannot be created ({error.strerror})") from error
    write_text(path, path_note(config.data.name) + config.to_toml(chosen))


def _refuse_foreign_files(folder: Path) -> None:
    """Refuse a folder without a run whose files this one would replace."""
    names = (LOG, SUMMARY, MODEL, SAMPLES, "figures", CHECKPOINTS)
    found = [name for name in names if (folder / name).exists()]
    if found and not (folder / RUN).is_file():
        raise ThreefoldError(
            f"{folder}: contains {', '.join(found)}, but no run of `threefold train`; nothing was "
            f"written: choose another {option_name('folder')}"
        )


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
    missing = missing_plugins(values.get("plugins", ()))
    if missing:
        raise ThreefoldError(
            f"{folder}: needs the plugin {missing[0]}, which is not imported; "
            f"{how_to_load(missing[0])}"
        )
    return values


def finished_steps(folder: Path) -> int | None:
    """The steps of a run that has ended; None if it can be resumed, or has lost its model."""
    if not (folder / MODEL).is_dir() and (folder / CHECKPOINTS).is_dir():
        return None
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        return None if summary["stopped"] == "interrupted" else int(summary["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
