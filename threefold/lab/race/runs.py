"""One leg of a race: a model trained from one seed in a run's folder, then judged as all others.

A leg that is finished has leg.json, and is not run again; one that was killed goes on from its
newest checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from threefold.data.atomic_files import write_file
from threefold.errors import ThreefoldError
from threefold.lab.race.planning import RATES, RacePlan
from threefold.lab.report.report import CurvePoint, RaceRun
from threefold.models.model import Model
from threefold.training.config import RunConfig
from threefold.training.experiment import (
    MODEL,
    evaluate_split,
    prepare,
    write_config,
    write_summary,
)
from threefold.training.loop import Trainer, train
from threefold.training.reporters import Reporter
from threefold.training.training_data import TrainingData, open_data

DONE, BATCHES, CURVE = "leg.json", "batches.txt", "curve.jsonl"
LONGER = (2, 4, 8)  # times the length of training
TUNING_SEED = 1_000_003  # of no leg
CLOSE = 0.01  # part of a loss that a short run with few examples cannot tell
RUNGS = ((len(RATES), 1 / 8), (2, 1 / 4))  # (rates that are still in, part of a run's steps)


class StoppedError(ThreefoldError):
    """Stopped by the user; the same command goes on."""


@dataclass(frozen=True)
class Finished:
    """What a leg ended with."""

    leg: RaceRun
    longer: tuple[tuple[int, float], ...]
    loss: float  # of the last validation


def train_one(
    plan: RacePlan, config: RunConfig, folder: Path | None, progress: Progress
) -> Finished:
    """Train and judge one leg, or read what it ended with."""
    if folder is not None and (folder / DONE).is_file():
        return read_result(folder / DONE)
    found, model = prepare(config)
    settings = config.training
    if folder is not None:
        write_config(config, folder)
    seen = Seen(found.batches(), folder)
    watcher = Watcher(folder, progress)
    result = train(
        model,
        seen,
        settings,
        validation=found.limited(plan.valid).pieces("valid"),
        objective=found.objective(settings),
        folder=folder,
        identity=found.identity(),
        reporters=[watcher],
    )
    if result.stopped == "interrupted":
        raise StoppedError("interrupted; the same command goes on where it was")
    model.eval()
    test = evaluate_split(found.limited(plan.test), model, "test")
    leg = RaceRun(
        seed=config.data.seed,
        score=test.metric,
        steps=result.steps,
        tokens=result.tokens,
        seconds=result.seconds,
        curve=watcher.moments,
        batches=seen.digest(plan.common),
    )
    finished = Finished(leg, at_other_lengths(found, model, plan.test), result.scores.loss)
    if folder is not None:
        model.save(folder / MODEL)
        write_summary(folder, config, found, model, result, test)
        write_json(folder / DONE, asdict(finished))
    return finished


def read_result(path: Path) -> Finished:
    """What leg.json says."""
    values = json.loads(path.read_text(encoding="utf-8"))
    leg = values["leg"]
    leg["curve"] = tuple(CurvePoint(*moment) for moment in leg["curve"])
    longer = tuple((int(length), score) for length, score in values["longer"])
    return Finished(RaceRun(**leg), longer, values["loss"])


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """A file that is there whole or not at all."""
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    def write(new: Path) -> None:
        new.write_text(text, encoding="utf-8")

    write_file(path, write)


def at_other_lengths(
    found: TrainingData, model: Model, examples: int
) -> tuple[tuple[int, float], ...]:
    """(length, score) on longer rows, where the data have them; a fraction of the examples."""
    length = found.task.length
    points = []
    for factor in (1, *LONGER):
        data = found.data.model_copy(update={"length": factor * length})
        try:
            other = open_data(data) if factor > 1 else found
            if not alike(found, other):
                return ()
            some = max(min(4, examples), examples // factor)
            scores = evaluate_split(other.limited(some), model, "test")
        except ThreefoldError:
            break  # no such rows, or the model has a largest length
        points.append((factor * length, scores.metric))
    return tuple(points) if len(points) > 1 else ()


def alike(one: TrainingData, other: TrainingData) -> bool:
    """Whether a model for one can do the other."""
    fields = ("kind", "vocabulary", "features", "classes", "metric")
    return all(getattr(one.task, name) == getattr(other.task, name) for name in fields)


Progress = Callable[[float, float], None]  # (part of the leg that is done, newest loss)


class Watcher(Reporter):
    """Notes each evaluation with its time, and says how far the leg is."""

    def __init__(self, folder: Path | None, progress: Progress) -> None:
        self.path, self.progress = None if folder is None else folder / CURVE, progress
        self.found: dict[int, CurvePoint] = {}
        for line in lines_of(self.path):
            self._add(CurvePoint(*json.loads(line)))

    def _add(self, moment: CurvePoint) -> None:
        # A step that was done twice, after a kill, is the same but for its time.
        self.found[moment.steps] = moment

    @property
    def moments(self) -> tuple[CurvePoint, ...]:
        return tuple(self.found[steps] for steps in sorted(self.found))

    def on_step(self, trainer: Trainer) -> None:
        self.progress(trainer.progress, trainer.result.losses[-1])

    def on_evaluate(self, trainer: Trainer) -> None:
        result = trainer.result
        moment = CurvePoint(result.steps, result.tokens, result.seconds, result.scores.metric)
        self._add(moment)
        add_line(self.path, json.dumps(moment))


class Seen:
    """Batches, and a hash of each one that was asked for."""

    def __init__(self, batches: Callable[[int], Any], folder: Path | None) -> None:
        self.batches, self.path = batches, None if folder is None else folder / BATCHES
        self.hashes: dict[int, str] = {}
        for line in lines_of(self.path):
            step, found = line.split()
            self.hashes[int(step)] = found

    def __call__(self, step: int) -> Any:
        rows = self.batches(step)
        found = digest_of_rows(rows)
        known = self.hashes.get(step)
        if known is None:
            self.hashes[step] = found
            add_line(self.path, f"{step} {found}")
        elif known != found:
            raise ThreefoldError(
                f"the batch of step {step} is another than before the interruption: the data have "
                "changed; begin in another folder"
            )
        return rows

    def digest(self, steps: int) -> str:
        """SHA-256 over the first batches, in order."""
        whole = hashlib.sha256()
        for step in range(steps):
            whole.update(f"{step} {self.hashes[step]}\n".encode())
        return whole.hexdigest()


def digest_of_rows(rows: Any) -> str:
    """SHA-256 of all that a batch holds."""
    values = rows._asdict() if hasattr(rows, "_asdict") else vars(rows)
    whole = hashlib.sha256()
    for name, value in values.items():
        if isinstance(value, Tensor):
            whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            whole.update(value.contiguous().numpy().tobytes())
    return whole.hexdigest()


def lines_of(path: Path | None) -> list[str]:
    """The whole lines of a file; a last one that was cut by a kill is left out."""
    if path is None or not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


def add_line(path: Path | None, line: str) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def tune(plan: RacePlan, name: str, folder: Path | None, progress: Progress) -> float:
    """The learning rate of a contender by successive halving: many short runs, few longer ones.

    Each rung is a run from the beginning with a schedule of its own, judged by its validation
    loss.  Rates whose losses are too close to tell, as where nothing is learnt yet, are ordered by
    how near they are to the one that would be used without tuning.
    Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter
    Optimization".
    """
    rates = list(RATES)
    for rung, (count, part) in enumerate(RUNGS):
        losses = {}
        for rate in rates[:count]:
            place = None if folder is None else folder / f"{name}-rung{rung}-{rate:g}"
            config = plan.config(name, TUNING_SEED, rate, part)
            losses[rate] = _loss(plan, config, place, progress)
        rates = ranked(losses, plan.request.learning_rate)
    return rates[0]


def ranked(losses: Mapping[float, float], usual: float) -> list[float]:
    """Learning rates, best first; of those that cannot be told apart the most usual first."""
    best = min(losses.values())
    near = best + CLOSE * abs(best)
    return sorted(
        losses,
        key=lambda rate: (
            (0, abs(math.log(rate / usual))) if losses[rate] <= near else (1, losses[rate])
        ),
    )


def _loss(plan: RacePlan, config: RunConfig, folder: Path | None, progress: Progress) -> float:
    """The validation loss of a short run; infinite if it failed."""
    if folder is not None and (folder / DONE).is_file():
        return read_loss(folder / DONE)
    found, model = prepare(config)
    if folder is not None:
        write_config(config, folder)
    try:
        result = train(
            model,
            found.batches(),
            config.training.model_copy(update={"eval_every": None}),
            validation=found.limited(plan.valid).pieces("valid"),
            objective=found.objective(config.training),
            folder=folder,
            identity=found.identity(),
            reporters=[Watcher(None, progress)],
        )
    except ThreefoldError:
        loss = math.inf
    else:
        if result.stopped == "interrupted":
            raise StoppedError("interrupted; the same command goes on where it was")
        loss = result.scores.loss
    if folder is not None:
        write_json(folder / DONE, {"loss": loss if math.isfinite(loss) else None})
    return loss


def read_loss(path: Path) -> float:
    """The loss of a short run that is over."""
    loss = json.loads(path.read_text(encoding="utf-8"))["loss"]
    return math.inf if loss is None else float(loss)
