"""run/{run.json, log.jsonl, lock, checkpoints/}: a run that goes on, wherever it was killed.

What is needed to go on bit for bit is kept in checkpoints: weights, optimiser, carried state and
counters; batches and random numbers are addressed by step. A run goes on with another number of
processes, too. The log has one line for each step, and is cut back to the checkpoint when a run
goes on, so that no step is missing or doubled.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import FileIO
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

import threefold
from threefold.data.atomic_files import sync, told, write_file
from threefold.errors import ThreefoldError
from threefold.memory.state import State, leaves, tree
from threefold.models.saving import unique_tensors
from threefold.training.checkpoints import Checkpoints, Snapshot, locked
from threefold.training.distributed import Group
from threefold.training.evaluation import Scores

if TYPE_CHECKING:
    from threefold.training.loop import Trainer

RUN, LOG, CHECKPOINTS = "run.json", "log.jsonl", "checkpoints"
SLOWEST = 1 / 64  # of the learning rate, by roll-backs


@dataclass
class RunFolder:
    """The folder of one run, held by this process; only the first of several ranks writes."""

    folder: Path
    keep: int = 2
    group: Group = field(default_factory=Group)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, self.keep)
        self.log = RunLog(self.folder / LOG)

    def begin(self, run: Trainer, identity: Mapping[str, Any]) -> list[str]:
        """Note what is run, or go on with what was; what had to be left aside, in words."""
        remarks = self._check(run, identity)
        moment, wrong = self.checkpoints.newest()
        if moment is None and wrong:
            raise ThreefoldError(
                f"{self.folder}: no checkpoint of this run is whole: {'; '.join(wrong)}; bring one "
                f"back from a copy, or remove {CHECKPOINTS}/ to begin anew"
            )
        self.group.meet()
        if self.group.leads:
            self.log.cut(0 if moment is None else moment.numbers["log"])
        if moment is not None:
            self._restore(run, moment)
            remarks.append(f"goes on after step {moment.step:,}")
        return [*remarks, *(f"checkpoint left aside: {one}" for one in wrong)]

    def note(self, run: Trainer) -> None:
        """A line for the newest step."""
        if self.group.leads:
            self.log.add(line_of(run))

    def save(self, run: Trainer) -> Path:
        """A checkpoint of this moment; the best evaluated one is kept as well."""
        state = self.group.whole_state(run.state)
        place = self.checkpoints.path(run.result.steps)
        if self.group.leads:
            self.log.sync()
            scores = {steps: s.loss for steps, s in run.result.validation if isfinite(s.loss)}
            saved = [step for step in self.checkpoints.steps if step in scores]
            best = min(saved, key=lambda step: scores[step], default=None)
            self.checkpoints.save(moment_of(run, state, self.log.size), best=best)
        self.group.meet()
        return place

    def roll_back(self, run: Trainer) -> bool:
        """Go back to the newest checkpoint, with half the learning rate; whether that was done."""
        moment, _ = self.checkpoints.newest()
        factor = run.factor / 2
        if moment is None or factor < SLOWEST:
            return False
        if self.group.leads:
            self.log.cut(moment.numbers["log"])
        self._restore(run, moment)
        run.factor = factor
        return True

    def _restore(self, run: Trainer, moment: Snapshot) -> None:
        restore(run, moment, self.log.lines(moment.numbers["log"], moment.step))
        run.state = self.group.own_state(run.state)
        run.saved = self.checkpoints.path(moment.step)

    def _check(self, run: Trainer, identity: Mapping[str, Any]) -> list[str]:
        """Refuse a folder whose run was configured otherwise; remark on another environment."""
        path = self.folder / RUN
        now = json.loads(json.dumps({**configuration(run), **identity}))
        around = environment()
        if not path.exists():
            self.group.meet()
            if self.group.leads:
                content = {"configuration": now, "environment": around}
                text = json.dumps(content, indent=1, sort_keys=True) + "\n"
                write_file(path, lambda new: _write_text(new, text))
            return []
        self.group.meet()
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            then, before = known["configuration"], known["environment"]
        except (ValueError, KeyError, TypeError) as error:
            raise ThreefoldError(f"{path}: is not a run's ({error}); choose another") from error
        if changed := _changes(then, now):
            raise ThreefoldError(
                f"{self.folder}: holds a run that was configured otherwise: {'; '.join(changed)}; "
                "choose another folder, or configure it as before"
            )
        others = _changes(before, around)
        told = f"the environment is another: {'; '.join(others)}; last digits may differ"
        return [told] if others else []


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{key} was {then.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]


@contextmanager
def open_run_folder(
    folder: Path | None, keep: int = 2, group: Group | None = None
) -> Iterator[RunFolder | None]:
    """The keeper of a folder, which nobody else may use meanwhile; None without a folder."""
    if folder is None:
        yield None
        return
    group = group or Group()
    with locked(folder) if group.leads else nullcontext():
        keeper = RunFolder(folder, keep, group)
        with keeper.log:
            yield keeper


class RunLog:
    """Lines of JSON, added at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: FileIO | None = None  # from the first line on

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def add(self, line: Mapping[str, Any]) -> None:
        """One more line; the system may lose it until `sync`."""
        rest = json.dumps(line).encode() + b"\n"
        with told(self.path):
            if self.file is None:
                self.file = FileIO(self.path, "a")
            while rest:  # a disk that fills takes a part of it, and refuses the next
                rest = rest[self.file.write(rest) :]

    def sync(self) -> None:
        """Have the disk hold all lines."""
        if self.path.exists():
            with told(self.path):
                sync(self.path)

    def lines(self, size: int, steps: int) -> list[dict[str, Any]]:
        """The lines within the first `size` bytes, one for each of `steps`."""
        if self.size < size:
            raise ThreefoldError(
                f"{self.path}: has {self.size} bytes, and the checkpoint was written after {size}; "
                "it was cut by something else: put it back, or begin anew in another folder"
            )
        with open(self.path, "rb") as file:
            try:
                lines = [json.loads(line) for line in file.read(size).splitlines()]
                numbers = [line["step"] for line in lines]
            except (ValueError, KeyError, TypeError):
                numbers = []
        if numbers != list(range(1, steps + 1)):
            raise ThreefoldError(
                f"{self.path}: damaged, expected a line for each of {steps:,} steps; put it back, "
                "or begin anew in another folder"
            )
        return lines

    def cut(self, size: int) -> None:
        """Forget what came after the first `size` bytes."""
        if self.path.exists():
            with told(self.path):
                os.truncate(self.path, size)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def configuration(run: Trainer) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    spec = getattr(run.model, "spec", None)
    return {
        **{f"training.{name}": value for name, value in run.settings.model_dump().items()},
        "spec": None if spec is None else spec.to_dict(),
        "parameters": sum(p.numel() for p in run.model.parameters()),
    }


def environment() -> dict[str, Any]:
    """What the last digits depend on beside that."""
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "threefold": threefold.__version__,
        "machine": platform.machine(),
    }


def line_of(run: Trainer) -> dict[str, Any]:
    """The line of the log for the newest step; null for what is no number."""
    result = run.result
    line = {
        "step": result.steps,
        "loss": result.losses[-1],
        "rate": run.optimiser.param_groups[0]["lr"],
        "norm": run.norm,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 4),
    }
    if result.validation and result.validation[-1][0] == result.steps:
        loss, metric = result.validation[-1][1]
        line |= {"valid_loss": loss, "valid_metric": metric}
    return {name: value if isfinite(value) else None for name, value in line.items()}


def moment_of(run: Trainer, state: State | None, log: int) -> Snapshot:
    """All that is needed to go on."""
    tensors = {
        "model": unique_tensors(run.model),
        "optimiser": run.optimiser.tensors(),
        "state": {path: leaf.detach() for path, leaf in leaves(state or {})},
    }
    if run.average is not None:
        tensors["average"] = run.average.mean
    if run.best is not None:
        tensors["best"] = run.best
    return Snapshot(
        run.result.steps,
        tensors,
        {
            "tokens": run.result.tokens,
            "seconds": run.result.seconds,
            "validation": [[steps, *scores] for steps, scores in run.result.validation],
            "carries": state is not None,
            "factor": run.factor,
            "skipped": run.skipped,
            "log": log,
        },
    )


def restore(run: Trainer, moment: Snapshot, lines: list[dict[str, Any]]) -> None:
    """Bring a run to where it was."""
    with torch.no_grad():
        for name, tensor in unique_tensors(run.model).items():
            tensor.copy_(moment.tensors["model"][name])
    run.optimiser.restore(dict(moment.tensors["optimiser"]))
    if run.average is not None:
        run.average.restore(dict(moment.tensors["average"]))
    run.best = dict(moment.tensors["best"]) if "best" in moment.tensors else None
    run.state = tree(moment.tensors["state"]) if moment.numbers["carries"] else None
    run.factor, run.skipped = moment.numbers["factor"], moment.numbers.get("skipped", 0)
    result = run.result
    result.losses[:] = [nan if line["loss"] is None else line["loss"] for line in lines]
    result.tokens, result.seconds = moment.numbers["tokens"], moment.numbers["seconds"]
    result.validation[:] = [
        (steps, Scores(*scores)) for steps, *scores in moment.numbers["validation"]
    ]
