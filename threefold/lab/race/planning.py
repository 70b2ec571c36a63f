"""A race before it is run: who takes part, how large, for how many steps, judged on how much.

What is held equal                 parameters    batches of a seed    training
  --match parameters (default)     within 3 %    all the same         equally many steps
  --match time                     within 3 %    the same beginning   equally long
  --match tokens                   as they are   all the same         equally many steps

A budget of time becomes a number of steps by a rehearsal, once: from then on nothing depends on
the clock, and a race that was interrupted ends as if it had not been.  Whatever cannot be raced is
said here, before anything is trained.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from threefold.errors import ThreefoldError, nearest
from threefold.lab.bench.bench import longest
from threefold.lab.race.sizing import (
    TOLERANCE,
    Sized,
    common_target,
    count_parameters,
    match_parameters,
)
from threefold.layers.table import MIXERS
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.durations import Duration, parse_duration
from threefold.training.experiment import evaluate_split
from threefold.training.loop import Trainer, train
from threefold.training.overrides import apply_overrides, parse_override
from threefold.training.reporters import Reporter
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData, open_data

RACERS = ("lstm", "attention", "s4d", "mamba", "gated_delta_net")
MATCHES = ("parameters", "time", "tokens")
# Settings that cannot be overridden in a race, with what decides them.
DECIDED = {
    "data.name": "DATA is the first argument",
    "data.batch_size": "use --batch-size",
    "data.seed": "the seed differs from run to run; use --seeds",
    "model.mixers": "use --mixers",
    "model.size": "use --width, --depth or --parameters",
    "model.width": "use --width",
    "model.depth": "use --depth",
    "model.seed": "the seed differs from run to run; use --seeds",
    "training.steps": "use --time 500steps",
    "training.time": "use --time",
    "training.learning_rate": "use --learning-rate or --tune",
    "training.seed": "the seed differs from run to run; use --seeds",
    "training.eval_every": "the curves have 12 points",
    "training.on_non_finite": "a run that diverges is rolled back",
    "training.save_every": "the race saves eight times a run",
    "training.keep_checkpoints": "the race keeps one checkpoint",
}
EVALUATIONS = 12  # of a learning curve
VALID, TEST = 8, 64  # batches of an evaluation on the way and of the last, of a budget of steps
TRAINING = 0.8  # of a budget of time; the rest is for evaluations
SHORT = 1024  # elements that every mixer reads as it is
RATES = (1e-3, 3e-3, 1e-2, 3e-4)  # that --tune tries, the likeliest first
TUNING = 1.0  # runs of full length that the halving of one model takes


@dataclass(frozen=True)
class RaceRequest:
    """What the user asked for."""

    data: str
    mixers: tuple[str, ...] = RACERS  # names, or name=mixer to give another name
    time: str = "10m"  # of training in all, or steps of each model such as 200steps
    match: str = "parameters"
    seeds: int = 3
    tune: bool = False
    width: int = 64
    depth: int = 2
    parameters: int | None = None  # the target; None: the size in the middle
    learning_rate: float = 3e-3
    batch_size: int = 16
    overrides: tuple[str, ...] = ()  # other settings, such as data.length=512

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise ThreefoldError(f"unknown match {self.match!r}; {nearest(self.match, MATCHES)}")
        if self.seeds < 1:
            raise ThreefoldError(f"{self.seeds} seeds; expected at least 1")
        if not self.learning_rate > 0:
            raise ThreefoldError(
                f"a learning rate of {self.learning_rate}; expected more than 0, e.g. 0.003"
            )
        if self.duration.steps is not None and self.match == "time":
            raise ThreefoldError(
                f"--time is {self.time!r} with --match time, expected a time, e.g. 10m"
            )
        _ = self.entries
        for text in self.overrides:
            check_override(text)

    @property
    def duration(self) -> Duration:
        """How long the race takes, or how many steps each model trains for."""
        return parse_duration(self.time)

    def settings(self) -> dict[str, Any]:
        """Sections of the configuration, by the overrides other than those of mixers' options."""
        chosen = [text for text in self.overrides if not text.startswith("model.mixers.")]
        return apply_overrides(RunConfig, {"data": {"name": self.data}}, chosen)

    def mixer_options(self, name: str) -> dict[str, Any]:
        """Options of a mixer by overrides such as model.mixers.mamba.state_size=64."""
        paths = map(parse_override, self.overrides)
        return {path[3]: value for path, value in paths if path[:3] == ["model", "mixers", name]}

    @property
    def entries(self) -> dict[str, tuple[str, ...]]:
        """The mixers of each contender by its name; a+b is a hybrid of both."""
        found: dict[str, tuple[str, ...]] = {}
        for text in self.mixers:
            name, _, mixers = text.partition("=")
            parts = tuple((mixers or name).split("+"))
            for part in parts:
                if part not in MIXERS:
                    raise ThreefoldError(f"unknown mixer {part!r}; {nearest(part, MIXERS)}")
            if name in found:
                raise ThreefoldError(f"{name!r} takes part twice; give one another name: b={name}")
            if not re.fullmatch(r"[\w+.-]+", name):
                raise ThreefoldError(f"{name!r}: a name has letters, digits and _ + . - only")
            found[name] = parts
        if not found:
            raise ThreefoldError(f"the race names no mixer; known: {', '.join(MIXERS)}")
        return found


@dataclass(frozen=True)
class PlannedModel:
    """One contender: its model and how long it is trained."""

    name: str
    mixers: list[Any]  # as a spec's JSON has them
    width: int
    depth: int
    channel: Any
    parameters: int
    steps: int

    @property
    def architecture(self) -> dict[str, Any]:
        """The section `model` of its runs, without the seed."""
        return {
            "mixers": self.mixers,
            "width": self.width,
            "depth": self.depth,
            "channel": self.channel,
        }


@dataclass(frozen=True)
class RacePlan:
    """All that is decided before the first step."""

    request: RaceRequest
    contenders: tuple[PlannedModel, ...]
    target: int  # parameters
    valid: int  # examples of each evaluation on the way
    test: int  # examples of the last one

    @property
    def common(self) -> int:
        """Steps that all take, on the same batches."""
        return min(contender.steps for contender in self.contenders)

    def config(self, name: str, seed: int, rate: float = 0.0, part: float = 1.0) -> RunConfig:
        """The run of one leg; `part` of its steps with another learning rate while tuning."""
        planned = next(c for c in self.contenders if c.name == name)
        steps = max(1, round(planned.steps * part))
        drawn = weights_seed(name, seed)
        request = self.request
        values = request.settings()
        data = {**values["data"], "batch_size": request.batch_size, "seed": seed}
        model = {**values.get("model", {}), **planned.architecture, "seed": drawn}
        training = {
            **values.get("training", {}),
            "steps": steps,
            "eval_every": max(1, steps // EVALUATIONS),
            "learning_rate": rate or request.learning_rate,
            "on_non_finite": "roll_back",
            "save_every": max(10, steps // 8),
            "keep_checkpoints": 1,
            "seed": drawn,
        }
        return RunConfig(**{**values, "data": data, "model": model, "training": training})

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RacePlan:
        """The plan of `to_json`."""
        values = json.loads(text)
        request = values.pop("request")
        for name in ("mixers", "overrides"):
            request[name] = tuple(request[name])
        contenders = tuple(PlannedModel(**item) for item in values.pop("contenders"))
        return cls(RaceRequest(**request), contenders, **values)


def weights_seed(name: str, seed: int) -> int:
    """Where a contender's weights come from: its own name, whatever its mixer."""
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:4], "big")


def check_override(text: str) -> None:
    """Refuse a setting that the race itself decides, and mixers that do not exist."""
    path, _ = parse_override(text)
    if path[:2] == ["model", "mixers"] and len(path) > 2:
        apply_overrides(RunConfig, {"model": {"mixers": [path[2]]}}, [text])
        return
    key = ".".join(path)
    if key in DECIDED:
        raise ThreefoldError(f"--set {text!r}: in a race, {DECIDED[key]}")


def make_plan(request: RaceRequest, progress: Callable[[str], None] = lambda _: None) -> RacePlan:
    """Find data, sizes and steps, or say what is wrong with them."""
    progress("reading the data")
    data = {**request.settings()["data"], "batch_size": request.batch_size}
    found = open_data(DataSettings(**data))
    check_data(found)
    progress("finding sizes")
    specs = {name: spec_of(found, request, mixers) for name, mixers in request.entries.items()}
    target = request.parameters or common_target(specs)
    if request.match == "tokens":
        sized = {n: Sized(s, count_parameters(s), 0.0) for n, s in specs.items()}
    else:
        sized = match_parameters(specs, target)
    if request.duration.steps is not None:
        steps = dict.fromkeys(sized, request.duration.steps)
        valid, test = VALID * request.batch_size, TEST * request.batch_size
    else:
        training = request.settings().get("training", {})
        taken = {n: rehearse(found, item.spec, training, progress, n) for n, item in sized.items()}
        steps = allot(request, taken)
        valid, test = judged(request.batch_size, taken, steps)
    contenders = tuple(
        PlannedModel(
            name,
            item.spec.to_dict()["mixers"],
            item.spec.width,
            item.spec.depth,
            item.spec.to_dict()["channel"],
            item.parameters,
            steps[name],
        )
        for name, item in sized.items()
    )
    sizes = (min(valid, found.task.size("valid")), min(test, found.task.size("test")))
    return RacePlan(request, contenders, target, *sizes)


def check_data(found: TrainingData) -> None:
    """Refuse data too small for a batch, or for a split."""
    task = found.task
    for split in ("train", "valid", "test"):
        if task.size(split) < 1:
            raise ThreefoldError(
                f"{task.name}: too small for a split: nothing is left for {split!r}; give more data"
            )
    if task.corpus is None and task.sizes[0] < found.data.batch_size:
        raise ThreefoldError(
            f"{task.name}: {task.sizes[0]} examples to learn from, fewer than one batch of "
            f"{found.data.batch_size}; give more data or a smaller --batch-size"
        )
    found.batches()(0)
    for split in ("valid", "test"):
        next(iter(found.pieces(split)))


def spec_of(found: TrainingData, request: RaceRequest, mixers: tuple[str, ...]) -> Spec:
    """The model that the data ask for; a mixer that cannot do it is refused here."""
    length = found.task.length
    options = {
        name: (longest(name, length) if length > SHORT else {}) | request.mixer_options(name)
        for name in mixers
    }
    entries = tuple((name, options[name]) if options[name] else name for name in mixers)
    depth = len(mixers) * math.ceil(request.depth / len(mixers))
    sizes = {"mixers": entries, "width": request.width, "depth": depth}
    spec = found.spec(ModelSettings(**{**request.settings().get("model", {}), **sizes}))
    try:
        count_parameters(spec)
    except ThreefoldError as error:
        names = "+".join(mixers)
        raise ThreefoldError(f"{names} cannot do {found.task.name}: {error}") from error
    return spec


@dataclass(frozen=True)
class Rehearsal:
    """Seconds of one step, and of judging one batch."""

    step: float
    judging: float


class Clock(Reporter):
    """Notes how long each step took."""

    def __init__(self) -> None:
        self.ends = [0.0]

    def on_step(self, trainer: Trainer) -> None:
        self.ends.append(trainer.result.seconds)

    @property
    def steps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.ends)]


def rehearse(
    found: TrainingData,
    spec: Spec,
    training: dict[str, Any],
    progress: Callable[[str], None],
    name: str,
    steps: int = 8,
) -> Rehearsal:
    """The median of a few steps of a throw-away model, and a judged batch; the first ones warm."""
    progress(f"rehearsing {name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(spec)
    settings, clock = TrainingSettings(**{**training, "steps": steps}), Clock()
    objective = found.objective(settings)
    train(model, found.batches(), settings, objective=objective, reporters=[clock])
    one = found.limited(found.data.batch_size)
    judging = []
    for _ in range(3):
        start = time.perf_counter()
        evaluate_split(one, model, "valid")
        judging.append(time.perf_counter() - start)
    return Rehearsal(statistics.median(clock.steps[2:]), min(judging))


def allot(request: RaceRequest, rehearsed: dict[str, Rehearsal]) -> dict[str, int]:
    """Steps of each contender in a budget of time; one too small for a step is refused."""
    assert request.duration.seconds is not None
    runs = request.seeds + (TUNING if request.tune else 0.0)
    training = TRAINING * request.duration.seconds / runs  # of one leg of every contender
    if request.match == "time":
        share = training / len(rehearsed)
        steps = {name: int(share / taken.step) for name, taken in rehearsed.items()}
    else:
        whole = sum(taken.step for taken in rehearsed.values())
        steps = dict.fromkeys(rehearsed, int(training / whole))
    if min(steps.values()) < 1:
        slowest = max(rehearsed, key=lambda name: rehearsed[name].step)
        if request.match == "time":
            least = rehearsed[slowest].step * len(rehearsed) * runs / TRAINING
        else:
            least = sum(t.step for t in rehearsed.values()) * runs / TRAINING
        raise ThreefoldError(
            f"--time {request.time} is too short for one step of {slowest} "
            f"({rehearsed[slowest].step:.2g} s) with {len(rehearsed)} models and {request.seeds} "
            f"seeds: give --time {math.ceil(least)}s at the very least, and better a hundred "
            "times as much, or fewer --mixers or --seeds"
        )
    return steps


def judged(batch: int, rehearsed: dict[str, Rehearsal], steps: dict[str, int]) -> tuple[int, int]:
    """Examples of an evaluation on the way, and of the last: what a fifth of the time allows."""
    rooms = [
        steps[name] * taken.step / max(taken.judging, 1e-6) for name, taken in rehearsed.items()
    ]
    slowest = min(rooms)  # batches that could be judged in the time of training
    valid = max(4, int(0.08 * slowest / EVALUATIONS))
    test = max(16, int(0.12 * slowest))
    return batch * valid, batch * test


def matched_words(plan: RacePlan) -> Sequence[str]:
    """What is held equal, for the report."""
    request = plan.request
    batches = "batches: the same for one seed, in the same order"
    if request.match == "time":
        batches += f", for the first {plan.common:,} steps; faster models go on with more"
    size = (
        "width and depth; parameters as they come"
        if request.match == "tokens"
        else f"parameters: within {TOLERANCE:.0%} of {plan.target:,}"
    )
    spent = (
        "training time: the same, by a rehearsal"
        if request.match == "time"
        else f"training: {plan.common:,} steps of {request.batch_size} rows each"
    )
    return (
        size,
        batches,
        spent,
        "optimiser, schedule, precision and threads",
        f"evaluation: the same {plan.test:,} examples of the test split, in the same batches",
    )
