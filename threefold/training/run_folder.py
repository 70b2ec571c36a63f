"""run/{run.json, log.jsonl, lock, checkpoints/}: a run that can be resumed wherever it was killed.

Checkpoints contain what is needed to resume bit for bit: weights, optimiser, carried state and
counters; batches and random numbers depend on the step only.  A run may resume with a different
number of processes.  The log has one line per step and is truncated to the checkpoint when a run
resumes, so that no step is missing or repeated.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import FileIO
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

import threefold
from threefold.data.atomic_files import report_write_errors, sync, write_json
from threefold.errors import ThreefoldError
from threefold.memory.state import State, leaves, tree
from threefold.models.saving import unique_tensors
from threefold.training.checkpoints import Checkpoints, Snapshot, lock_folder
from threefold.training.distributed import ProcessGroup
from threefold.training.evaluation import Scores

if TYPE_CHECKING:
    from threefold.training.trainer import Trainer

RUN, LOG, CHECKPOINTS = "run.json", "log.jsonl", "checkpoints"
MIN_LR_SCALE = 1 / 64  # rollbacks halve the learning rate down to this fraction


@dataclass
class RunFolder:
    """The folder of one run, locked by this process; only the main rank writes to it."""

    folder: Path
    keep: int = 2
    group: ProcessGroup = field(default_factory=ProcessGroup)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, self.keep)
        self.log = RunLog(self.folder / LOG)

    def start(self, trainer: Trainer, identity: Mapping[str, Any]) -> list[str]:
        """Write run.json, or resume from the newest checkpoint; returns warnings."""
        warnings = self._check_same_run(trainer, identity)
        snapshot, problems = self.checkpoints.newest()
        if snapshot is None and problems:
            raise ThreefoldError(
                f"{self.folder}: every checkpoint of this run is damaged: {'; '.join(problems)}; "
                f"restore one from a backup, or remove {CHECKPOINTS}/ to start again"
            )
        self.group.barrier()
        if self.group.is_main:
            self.log.truncate(0 if snapshot is None else snapshot.values["log"])
        if snapshot is not None:
            self._restore(trainer, snapshot)
        return [*warnings, *(f"ignored a damaged checkpoint: {problem}" for problem in problems)]

    def log_step(self, trainer: Trainer) -> None:
        """Append the newest step to log.jsonl."""
        if self.group.is_main:
            self.log.append(log_entry(trainer))

    def save(self, trainer: Trainer) -> Path:
        """Save a checkpoint of this step; the one with the best evaluation is kept as well."""
        state = self.group.gather_state(trainer.state)
        if self.group.is_main:
            self.log.sync()
            losses = {steps: s.loss for steps, s in trainer.result.validation if isfinite(s.loss)}
            evaluated = [step for step in self.checkpoints.steps if step in losses]
            best = min(evaluated, key=lambda step: losses[step], default=None)
            self.checkpoints.save(take_snapshot(trainer, state, self.log.size), best=best)
        self.group.barrier()
        return self.checkpoints.path(trainer.result.steps)

    def roll_back(self, trainer: Trainer) -> bool:
        """Return to the newest checkpoint and halve the learning rate; False if it cannot."""
        snapshot, _ = self.checkpoints.newest()
        lr_scale = trainer.lr_scale / 2
        if snapshot is None or lr_scale < MIN_LR_SCALE:
            return False
        if self.group.is_main:
            self.log.truncate(snapshot.values["log"])
        self._restore(trainer, snapshot)
        trainer.lr_scale = lr_scale
        return True

    def _restore(self, trainer: Trainer, snapshot: Snapshot) -> None:
        restore_trainer(trainer, snapshot, self.log.read(snapshot.values["log"], snapshot.step))
        trainer.state = self.group.shard_state(trainer.state)
        trainer.last_checkpoint = self.checkpoints.path(snapshot.step)

    def _check_same_run(self, trainer: Trainer, identity: Mapping[str, Any]) -> list[str]:
        """Refuse a folder whose run has other settings; warn about another environment."""
        path = self.folder / RUN
        configuration = json.loads(json.dumps({**run_identity(trainer), **identity}))
        is_new = not path.exists()
        self.group.barrier()
        if is_new:
            if self.log.path.exists():
                raise ThreefoldError(
                    f"{self.log.path}: not written by a run, because there is no {RUN} next to it; "
                    "choose another folder"
                )
            if self.group.is_main:
                content = {"configuration": configuration, "environment": environment(trainer)}
                write_json(path, content)
            return []
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            saved_configuration, saved_environment = saved["configuration"], saved["environment"]
        except (ValueError, KeyError, TypeError) as error:
            raise ThreefoldError(
                f"{path}: not the description of a run ({error}); choose another folder"
            ) from error
        if changes := _changes(saved_configuration, configuration):
            raise ThreefoldError(f"{self.folder}: {_refusal(changes)}")
        if changes := _changes(saved_environment, environment(trainer)):
            return [
                f"the environment has changed: {'; '.join(changes)}; the last digits of results "
                "may differ"
            ]
        return []


def _refusal(changes: Sequence[str]) -> str:
    if len(changes) == 1 and changes[0].startswith("parameters "):
        return (
            f"contains a run of another model, although the settings are the same: {changes[0]}; "
            "an older version made it, whose layers had other parameters (see CHANGELOG), or the "
            "model's code has changed; train again in another folder"
        )
    return (
        f"already contains a run with different settings: {'; '.join(changes)}; choose another "
        "folder, or use the same settings"
    )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


@contextmanager
def open_run_folder(
    folder: str | os.PathLike[str] | None, keep: int = 2, group: ProcessGroup | None = None
) -> Iterator[RunFolder | None]:
    """Open a run folder and lock it for this process; None without a folder."""
    if folder is None:
        yield None
        return
    path, group = Path(folder), group or ProcessGroup()
    with lock_folder(path) if group.is_main else nullcontext():
        run_folder = RunFolder(path, keep, group)
        with run_folder.log:
            yield run_folder


class RunLog:
    """A file of JSON lines, one per step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: FileIO | None = None  # opened by the first append

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, entry: Mapping[str, Any]) -> None:
        """Append a line; a power failure may lose it until `sync`."""
        rest = json.dumps(entry).encode() + b"\n"
        with report_write_errors(self.path):
            if self.file is None:
                self.file = FileIO(self.path, "a")
            while rest:  # a disk that is almost full writes a part, then refuses the next write
                rest = rest[self.file.write(rest) :]

    def sync(self) -> None:
        """Make sure that all lines are on the disk."""
        if self.path.exists():
            with report_write_errors(self.path):
                sync(self.path)

    def read(self, size: int, steps: int) -> list[dict[str, Any]]:
        """The entries in the first `size` bytes, one for each of `steps` steps."""
        if self.size < size:
            raise ThreefoldError(
                f"{self.path}: has {self.size} bytes, but had {size} when the checkpoint was "
                "saved; restore it from a backup, or train again in another folder"
            )
        with open(self.path, "rb") as file:
            try:
                entries = [json.loads(line) for line in file.read(size).splitlines()]
                numbers = [entry["step"] for entry in entries]
            except (ValueError, KeyError, TypeError):
                numbers = []
        if numbers != list(range(1, steps + 1)):
            raise ThreefoldError(
                f"{self.path}: damaged, expected a line for each of {steps:,} steps; restore it "
                "from a backup, or train again in another folder"
            )
        return entries

    def truncate(self, size: int) -> None:
        """Remove everything after the first `size` bytes."""
        if self.path.exists():
            with report_write_errors(self.path):
                os.truncate(self.path, size)


def run_identity(trainer: Trainer) -> dict[str, Any]:
    """What must be unchanged for a run to resume."""
    spec, settings = getattr(trainer.model, "spec", None), trainer.settings.model_dump()
    return {
        **{f"training.{name}": value for name, value in settings.items() if name != "device"},
        "spec": None if spec is None else spec.to_dict(),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
    }


def environment(trainer: Trainer) -> dict[str, Any]:
    """What else the last digits of results depend on."""
    return {
        "device": trainer.device.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "threefold": threefold.__version__,
        "machine": platform.machine(),
    }


def log_entry(trainer: Trainer) -> dict[str, Any]:
    """The line of the log for the newest step; numbers that are not finite become null."""
    result = trainer.result
    entry = {
        "step": result.steps,
        "loss": result.losses[-1],
        "learning_rate": trainer.optimizer.param_groups[0]["lr"],
        "grad_norm": trainer.grad_norm,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 4),
    }
    if result.validation and result.validation[-1][0] == result.steps:
        loss, metric = result.validation[-1][1]
        entry |= {"valid_loss": loss, "valid_metric": metric}
    return {name: value if isfinite(value) else None for name, value in entry.items()}


def take_snapshot(trainer: Trainer, state: State | None, log_size: int) -> Snapshot:
    """Everything that is needed to resume."""
    result = trainer.result
    values = {
        "tokens": result.tokens,
        "seconds": result.seconds,
        "other_seconds": result.other_seconds,
        "validation": [[steps, *scores] for steps, scores in result.validation],
        "start": None if result.start is None else list(result.start),
        "has_state": state is not None,
        "lr_scale": trainer.lr_scale,
        "skipped": trainer.skipped,
        "log": log_size,
    }
    return Snapshot(result.steps, _snapshot_tensors(trainer, state), values)


def _snapshot_tensors(trainer: Trainer, state: State | None) -> dict[str, dict[str, Tensor]]:
    """The tensors of a snapshot by group and name; `ema` and `best` only if they exist."""
    tensors = {
        "model": unique_tensors(trainer.model),
        "optimizer": trainer.optimizer.tensors(),
        "state": {path: leaf.detach() for path, leaf in leaves(state or {})},
    }
    if trainer.ema is not None:
        tensors["ema"] = trainer.ema.mean
    if trainer.best is not None:
        tensors["best"] = trainer.best
    return tensors


def restore_trainer(trainer: Trainer, snapshot: Snapshot, entries: list[dict[str, Any]]) -> None:
    """Return a trainer to a snapshot; `entries` are the lines of the log up to it."""
    tensors, values = snapshot.tensors, snapshot.values
    with torch.no_grad():
        for name, tensor in unique_tensors(trainer.model).items():
            tensor.copy_(tensors["model"][name])
    trainer.optimizer.restore(dict(tensors["optimizer"]))
    if trainer.ema is not None:
        trainer.ema.restore(dict(tensors["ema"]))
    trainer.best = dict(tensors["best"]) if "best" in tensors else None
    state = {path: leaf.to(trainer.device) for path, leaf in tensors["state"].items()}
    trainer.state = tree(state) if values["has_state"] else None
    trainer.lr_scale, trainer.skipped = values["lr_scale"], values.get("skipped", 0)
    result = trainer.result
    result.losses[:] = [nan if entry["loss"] is None else entry["loss"] for entry in entries]
    result.learning_rates[:] = [entry["learning_rate"] for entry in entries]
    result.tokens, result.seconds = values["tokens"], values["seconds"]
    result.other_seconds = values.get("other_seconds", 0.0)
    result.validation[:] = [(steps, Scores(*scores)) for steps, *scores in values["validation"]]
    result.start = None if values.get("start") is None else Scores(*values["start"])
