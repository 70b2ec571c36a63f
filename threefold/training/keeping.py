"""run/{run.json, log.jsonl, lock, checkpoints/}: a run that goes on, wherever it was killed.

What is needed to go on bit for bit is kept in checkpoints: weights, optimiser, carried state,
random numbers and counters; batches are addressed by step. The log has one line for each step, and
is cut back to the checkpoint when a run goes on, so that no step is missing or doubled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from threefold.data.files import write_file
from threefold.errors import ThreefoldError
from threefold.memory.state import leaves, tree
from threefold.models.saving import unshared
from threefold.training.checkpoints import Checkpoints, Moment, locked

if TYPE_CHECKING:
    from threefold.training.loop import Run

RUN, LOG, CHECKPOINTS = "run.json", "log.jsonl", "checkpoints"
_JOIN = "/"


@dataclass
class Keeper:
    """The folder of one run, held by this process."""

    folder: Path
    every: int  # steps between checkpoints
    keep: int = 2

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.folder / CHECKPOINTS, self.keep)
        self.log = Log(self.folder / LOG)

    def begin(self, run: Run) -> list[str]:
        """Note what is run, or go on with what was; what had to be left aside, in words."""
        self._check(run)
        moment, wrong = self.checkpoints.newest()
        if moment is not None:
            restore(run, moment, self.log.lines(moment.numbers["log"]))
            self.log.cut(moment.numbers["log"])
        else:
            self.log.cut(0)
        return wrong

    def note(self, run: Run) -> None:
        """A line for the newest step, and a checkpoint where one is due."""
        self.log.add({"step": run.result.steps, "loss": run.result.losses[-1]})
        if run.result.steps % self.every == 0:
            self.save(run)

    def save(self, run: Run) -> Path:
        """A checkpoint of this moment; the best evaluated one is kept as well."""
        self.log.sync()
        scores = {steps: scores.loss for steps, scores in run.result.validation}
        saved = [step for step in self.checkpoints.steps if step in scores]
        best = min(saved, key=lambda step: scores[step], default=None)
        return self.checkpoints.save(moment_of(run, self.log.size), best=best)

    def _check(self, run: Run) -> None:
        """Refuse a folder whose run was configured otherwise."""
        path = self.folder / RUN
        now = json.loads(json.dumps(configuration(run)))
        if not path.exists():
            text = json.dumps(now, indent=1, sort_keys=True) + "\n"
            write_file(path, lambda new: _write_text(new, text))
            return
        try:
            then = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ThreefoldError(f"{path}: is not JSON ({error}); choose another folder") from error
        changed = [
            f"{key} was {then.get(key)!r} and is {now.get(key)!r}"
            for key in sorted({*then, *now})
            if then.get(key) != now.get(key)
        ]
        if changed:
            raise ThreefoldError(
                f"{self.folder}: holds a run that was configured otherwise: {'; '.join(changed)}; "
                "choose another folder, or configure it as before"
            )


@contextmanager
def kept(folder: Path | None, every: int, keep: int = 2) -> Iterator[Keeper | None]:
    """The keeper of a folder, which nobody else may use meanwhile; None without a folder."""
    if folder is None:
        yield None
        return
    with locked(folder):
        yield Keeper(folder, every, keep)


class Log:
    """Lines of JSON, added at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def add(self, line: Mapping[str, Any]) -> None:
        """One more line; the system may lose it until `sync`."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def sync(self) -> None:
        """Have the disk hold all lines."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                os.fsync(file.fileno())

    def lines(self, size: int) -> list[dict[str, Any]]:
        """The lines within the first `size` bytes."""
        if self.size < size:
            raise ThreefoldError(
                f"{self.path}: has {self.size} bytes, and the checkpoint was written after {size}; "
                "it was cut by something else, so the losses up to the checkpoint are lost"
            )
        with open(self.path, "rb") as file:
            return [json.loads(line) for line in file.read(size).splitlines()]

    def cut(self, size: int) -> None:
        """Forget what came after the first `size` bytes."""
        if self.path.exists():
            os.truncate(self.path, size)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def configuration(run: Run) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    spec = getattr(run.model, "spec", None)
    return {
        **{f"settings.{name}": value for name, value in asdict(run.settings).items()},
        "spec": None if spec is None else spec.to_dict(),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def moment_of(run: Run, log: int) -> Moment:
    """All that is needed to go on."""
    state = run.optimiser.state_dict()["state"]
    moments = {
        f"{index}{_JOIN}{name}": value
        for index, values in state.items()
        for name, value in values.items()
    }
    return Moment(
        run.result.steps,
        {
            "model": unshared(run.model),
            "optimiser": moments,
            "state": {path: leaf.detach() for path, leaf in leaves(run.state or {})},
            "random": {"torch": torch.get_rng_state()},
        },
        {
            "tokens": run.result.tokens,
            "seconds": run.result.seconds,
            "validation": [[steps, *scores] for steps, scores in run.result.validation],
            "carries": run.state is not None,
            "log": log,
        },
    )


def restore(run: Run, moment: Moment, lines: list[dict[str, Any]]) -> None:
    """Bring a run to where it was."""
    with torch.no_grad():
        for name, tensor in unshared(run.model).items():
            tensor.copy_(moment.tensors["model"][name])
    state: dict[int, dict[str, Any]] = {}
    for name, value in moment.tensors["optimiser"].items():
        index, _, key = name.partition(_JOIN)
        state.setdefault(int(index), {})[key] = value
    groups = run.optimiser.state_dict()["param_groups"]
    run.optimiser.load_state_dict({"state": state, "param_groups": groups})
    run.state = tree(moment.tensors["state"]) if moment.numbers["carries"] else None
    torch.set_rng_state(moment.tensors["random"]["torch"])
    run.result.losses[:] = [line["loss"] for line in lines]
    run.result.tokens = moment.numbers["tokens"]
    run.result.seconds = moment.numbers["seconds"]
    run.note_scores(moment.numbers["validation"])
