"""The training loop: batches(step) → loss → gradients → clip → update, until the run ends.

With a folder (`run_folder.py`) a run survives any interruption and resumes bit for bit when it is
called again.  One step is `trainer.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from torch import nn

from threefold.runtime.interrupts import Interrupts
from threefold.training import clock
from threefold.training.distributed import ProcessGroup
from threefold.training.objectives import Objective, ObjectiveOptions, objective_of
from threefold.training.reporters import LoggingReporter, Reporter, ReporterGroup
from threefold.training.result import Result
from threefold.training.run_folder import RunFolder, open_run_folder
from threefold.training.seeding import preserve_random_state
from threefold.training.settings import TrainingSettings
from threefold.training.time_budget import TimeBudget
from threefold.training.trainer import Trainer

__all__ = ["Trainer", "train"]


def train(
    model: nn.Module,
    batches: Callable[[int], Any],
    settings: TrainingSettings,
    *,
    validation: Iterable[Any] | None = None,
    objective: Objective | None = None,
    folder: str | PathLike[str] | None = None,
    identity: Mapping[str, Any] | None = None,
    reporters: Sequence[Reporter] | None = None,
    budget: TimeBudget | None = None,
) -> Result:
    """Train `model` on batches(0), batches(1), …

    With a `folder`, checkpoints are saved there and a run that was stopped or killed resumes from
    the newest one; Ctrl-C and SIGTERM finish the step and save.  `identity` lists what else must be
    unchanged to resume, such as the hash of the data.  `objective` defaults to that of the kind of
    model.  `reporters` are called after every step, evaluation and checkpoint; without any,
    progress is logged.  `budget`: what of `settings.time` is for training; default: all.
    """
    group = ProcessGroup.current()
    options = ObjectiveOptions(
        smoothing=settings.label_smoothing, sampled=settings.scheduled_sampling
    )
    objective = objective or objective_of(model, options)
    trainer = Trainer(model, batches, settings, objective, group)
    trainer.budget = budget or trainer.budget
    with (
        open_run_folder(folder, settings.keep_checkpoints, group) as run_folder,
        preserve_random_state(),
        Interrupts() as interrupt,
        ReporterGroup(default_reporters(group) if reporters is None else reporters) as reporter,
    ):
        trainer.start(run_folder, reporter, identity or {})
        if validation is not None and (trainer.evaluation_is_missing or trainer.is_before_start):
            began = clock.now()
            trainer.evaluate_and_record(validation, reporter, interrupt)
            trainer.count_other_time(clock.now() - began)
        while not trainer.result.stopped:
            _advance(trainer, run_folder, reporter, interrupt, validation)
        trainer.finish()
    return trainer.result


def default_reporters(group: ProcessGroup) -> list[Reporter]:
    """A log of the progress, by the main process only."""
    return [LoggingReporter("training")] if group.is_main else []


def _advance(
    trainer: Trainer,
    run_folder: RunFolder | None,
    reporter: Reporter,
    interrupt: Interrupts,
    validation: Iterable[Any] | None,
) -> None:
    """One step of the run: train, evaluate if due, report, log and save."""
    result, start = trainer.result, clock.now()
    before = result.seconds
    if not trainer.step(run_folder):
        reporter.warn(
            f"loss or gradient is not finite: returned to step {result.steps:,} and halved the "
            "learning rate"
        )
        return
    interrupted = bool(trainer.group.sum(float(interrupt.asked))[0])
    result.stopped = "interrupted" if interrupted else trainer.end_reason
    # An interrupted run saves at once; an evaluation that is due then comes when it resumes.
    if (
        validation is not None
        and not interrupted
        and (trainer.end_reason or trainer.evaluation_is_due)
    ):
        trainer.evaluate_and_record(validation, reporter, interrupt)
    reporter.on_step(trainer)
    trainer.log_and_save(run_folder, reporter)
    trainer.count_other_time(clock.now() - start - (result.seconds - before))
