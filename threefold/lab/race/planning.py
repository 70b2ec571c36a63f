"""The plan of a race: which models, how large, for how many steps, evaluated on how many examples.

What all models have in common     parameters    batches of a seed    training
  --match parameters (default)     within 3 %    the same             the same number of steps
  --match time                     within 3 %    the same first ones  the same time
  --match tokens                   not matched   the same             the same number of steps

A time limit is converted to a number of steps once, by timing a few steps of each model.  From then
on nothing depends on the clock, so an interrupted race ends with the same numbers.  Models and data
that cannot be raced are refused here, before anything is trained.
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
from threefold.lab.bench.bench import length_option
from threefold.lab.race.baselines import LEVELS
from threefold.lab.race.probes import PROBE_COST
from threefold.lab.race.sizing import (
    TOLERANCE,
    Sized,
    common_target,
    count_parameters,
    match_parameters,
)
from threefold.layers.table import MIXERS, mixer_entry
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.durations import Duration, parse_duration
from threefold.training.experiment import evaluate_split
from threefold.training.loop import Trainer, train
from threefold.training.overrides import apply_overrides, parse_override
from threefold.training.reporters import Reporter
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData

FORMAT_VERSION = 2  # of race.json and of the folder around it
DEFAULT_MIXERS = ("lstm", "attention", "s4d", "mamba", "gated_delta_net")
MATCHES = ("parameters", "time", "tokens")
# Settings that cannot be overridden in a race, with what to use instead.
RESERVED = {
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
    "training.target_score": "all models train for the same number of steps",
    "training.patience": "all models train for the same number of steps",
    "training.final_lr": "it is a tenth of the learning rate, which --tune chooses",
}
EVALUATIONS = 12  # points of a learning curve
# Batches of a validation and of the final test, if --time is a number of steps.
VALID_BATCHES, TEST_BATCHES = 8, 64
TRAINING_SHARE = 0.8  # of a time limit; the rest is for evaluations
DEFAULT_MAX_LENGTH = 1024  # elements that every mixer can read without a larger max_length
TUNING_RATES = (1e-3, 3e-3, 1e-2, 3e-4)  # learning rates that --tune tries, most likely first
TUNING_COST = 1.0  # runs of full length that tuning one model takes


@dataclass(frozen=True)
class RaceRequest:
    """The arguments of `threefold compare`."""

    data: str
    mixers: tuple[str, ...] = DEFAULT_MIXERS  # names, or name=mixer to choose another name
    time: str = "10m"  # total training time, or steps for each model such as 200steps
    match: str = "parameters"
    seeds: int = 3
    tune: bool = False
    width: int = 64
    depth: int = 2
    parameters: int | None = None  # target; None: the median of the models as they are
    learning_rate: float = 3e-3
    batch_size: int = 16
    overrides: tuple[str, ...] = ()  # other settings, such as data.length=512
    baselines: str = "strong"  # simple models beside the others: strong, simple or none

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise ThreefoldError(f"unknown match {self.match!r}; {nearest(self.match, MATCHES)}")
        if self.baselines not in LEVELS:
            raise ThreefoldError(
                f"unknown --baselines {self.baselines!r}; expected one of {', '.join(LEVELS)}"
            )
        if self.seeds < 1:
            raise ThreefoldError(f"--seeds {self.seeds}: expected at least 1")
        if not self.learning_rate > 0:
            raise ThreefoldError(
                f"--learning-rate {self.learning_rate}: expected more than 0, e.g. 0.003"
            )
        if self.duration.steps is not None and self.match == "time":
            raise ThreefoldError(f"--time {self.time} with --match time: expected a time, e.g. 10m")
        _ = self.entries
        for text in self.overrides:
            check_override(text)

    @property
    def duration(self) -> Duration:
        """How long the race takes, or how many steps each model trains for."""
        return parse_duration(self.time)

    def settings(self) -> dict[str, Any]:
        """The sections of the configuration, from all overrides except options of mixers."""
        chosen = [text for text in self.overrides if not text.startswith("model.mixers.")]
        return apply_overrides(RunConfig, {"data": {"name": self.data}}, chosen)

    def mixer_options(self, name: str) -> dict[str, Any]:
        """Options of a mixer, from overrides such as model.mixers.mamba.state_size=64."""
        paths = map(parse_override, self.overrides)
        return {path[3]: value for path, value in paths if path[:3] == ["model", "mixers", name]}

    @property
    def entries(self) -> dict[str, tuple[str, ...]]:
        """The mixers of each contender by its name; a+b is a hybrid of both."""
        entries: dict[str, tuple[str, ...]] = {}
        for text in self.mixers:
            name, _, mixers = text.partition("=")
            parts = tuple((mixers or name).split("+"))
            for part in parts:
                mixer_entry(part)
            if name in entries:
                raise ThreefoldError(
                    f"{name!r} is listed twice; give one of them another name, e.g. b={name}"
                )
            if not re.fullmatch(r"[\w+.-]+", name):
                raise ThreefoldError(f"{name!r}: a name may only have letters, digits and _ + . -")
            entries[name] = parts
        if not entries:
            raise ThreefoldError(f"no mixer to race; known: {', '.join(MIXERS)}")
        return entries


@dataclass(frozen=True)
class PlannedModel:
    """One contender: the shape of its model, and its number of training steps."""

    name: str
    mixers: list[Any]  # as in the JSON of a spec
    width: int
    depth: int
    channel: Any
    parameters: int
    steps: int

    @property
    def architecture(self) -> dict[str, Any]:
        """The section `model` of its runs' configuration, without the seed."""
        return {
            "mixers": self.mixers,
            "width": self.width,
            "depth": self.depth,
            "channel": self.channel,
        }


@dataclass(frozen=True)
class RacePlan:
    """Everything that is decided before the first step."""

    request: RaceRequest
    contenders: tuple[PlannedModel, ...]
    target: int  # parameters
    valid_examples: int  # of each validation
    test_examples: int  # of the final evaluation

    @property
    def common_steps(self) -> int:
        """The number of steps that all models train for, on the same batches."""
        return min(contender.steps for contender in self.contenders)

    def config(self, name: str, seed: int, rate: float = 0.0, fraction: float = 1.0) -> RunConfig:
        """The configuration of one run; tuning uses another rate and a `fraction` of the steps."""
        planned = next(c for c in self.contenders if c.name == name)
        steps = max(1, round(planned.steps * fraction))
        model_seed = weights_seed(name, seed)
        request = self.request
        values = request.settings()
        data = {**values["data"], "batch_size": request.batch_size, "seed": seed}
        model = {**values.get("model", {}), **planned.architecture, "seed": model_seed}
        training = {
            **values.get("training", {}),
            "steps": steps,
            "eval_every": max(1, steps // EVALUATIONS),
            "learning_rate": rate or request.learning_rate,
            "on_non_finite": "roll_back",
            "save_every": max(10, steps // 8),
            "keep_checkpoints": 1,
            "seed": model_seed,
        }
        return RunConfig(**{**values, "data": data, "model": model, "training": training})

    def to_dict(self) -> dict[str, Any]:
        """The content of race.json."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, text: str) -> RacePlan:
        """The plan in race.json; a folder of another format version is refused."""
        values = json.loads(text)
        if values.pop("format_version", None) != FORMAT_VERSION:
            raise ThreefoldError(
                "this race was written by an older version of Threefold; choose another --folder"
            )
        request = values.pop("request")
        for name in ("mixers", "overrides"):
            request[name] = tuple(request[name])
        contenders = tuple(PlannedModel(**item) for item in values.pop("contenders"))
        return cls(RaceRequest(**request), contenders, **values)


def weights_seed(name: str, seed: int) -> int:
    """The seed of a contender's weights, from its name: two contenders never share one."""
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:4], "big")


def check_override(text: str) -> None:
    """Refuse settings that the race itself decides, and mixers that do not exist."""
    path, _ = parse_override(text)
    if path[:2] == ["model", "mixers"] and len(path) > 2:
        apply_overrides(RunConfig, {"model": {"mixers": [path[2]]}}, [text])
        return
    key = ".".join(path)
    if key in RESERVED:
        raise ThreefoldError(f"--set {text!r}: in a race, {RESERVED[key]}")


def make_plan(
    request: RaceRequest,
    progress: Callable[[str], None] = lambda _: None,
    cache: DataCache | None = None,
) -> RacePlan:
    """Choose sizes and steps of all models, or refuse what cannot be raced."""
    progress("reading the data")
    settings = {**request.settings()["data"], "batch_size": request.batch_size}
    data = (cache or DataCache()).open(DataSettings(**settings))
    check_data(data)
    progress("choosing model sizes")
    specs = {name: model_spec(data, request, mixers) for name, mixers in request.entries.items()}
    target = request.parameters or common_target(specs)
    if request.match == "tokens":
        sized = {n: Sized(s, count_parameters(s), 0.0) for n, s in specs.items()}
    else:
        sized = match_parameters(specs, target)
    steps, valid, test = choose_steps(request, data, sized, progress)
    contenders = tuple(planned_model(name, item, steps[name]) for name, item in sized.items())
    sizes = (min(valid, data.task.size("valid")), min(test, data.task.size("test")))
    return RacePlan(request, contenders, target, *sizes)


def choose_steps(
    request: RaceRequest,
    data: TrainingData,
    sized: dict[str, Sized],
    progress: Callable[[str], None],
) -> tuple[dict[str, int], int, int]:
    """(steps of each model, examples of each validation, examples of the final test)."""
    if request.duration.steps is not None:
        steps = dict.fromkeys(sized, request.duration.steps)
        return steps, VALID_BATCHES * request.batch_size, TEST_BATCHES * request.batch_size
    training = request.settings().get("training", {})
    times = {}
    for name, item in sized.items():
        progress(f"timing {name}")
        times[name] = time_steps(data, item.spec, training)
    steps = steps_within(request, times)
    return steps, *evaluation_sizes(request.batch_size, times, steps)


def planned_model(name: str, sized: Sized, steps: int) -> PlannedModel:
    """A contender of the chosen size."""
    spec = sized.spec.to_dict()
    shape = spec["mixers"], sized.spec.width, sized.spec.depth, spec["channel"]
    return PlannedModel(name, *shape, sized.parameters, steps)


def check_data(data: TrainingData) -> None:
    """Refuse data that are too small for a batch or for a split."""
    task = data.task
    for split in ("train", "valid", "test"):
        if task.size(split) < 1:
            raise ThreefoldError(
                f"{task.name}: too few data: the {split!r} split is empty; give more data"
            )
    if task.corpus is None and task.sizes[0] < data.data.batch_size:
        raise ThreefoldError(
            f"{task.name}: {task.sizes[0]} training examples, fewer than one batch of "
            f"{data.data.batch_size}; give more data or a smaller --batch-size"
        )
    data.batches()(0)
    for split in ("valid", "test"):
        next(iter(data.pieces(split)))


def model_spec(data: TrainingData, request: RaceRequest, mixers: tuple[str, ...]) -> Spec:
    """The spec of a model for these data; a mixer that cannot do the task is refused here."""
    length = data.task.length
    options = {
        name: (length_option(name, length) if length > DEFAULT_MAX_LENGTH else {})
        | request.mixer_options(name)
        for name in mixers
    }
    entries = tuple((name, options[name]) if options[name] else name for name in mixers)
    depth = len(mixers) * math.ceil(request.depth / len(mixers))
    sizes = {"mixers": entries, "width": request.width, "depth": depth}
    spec = data.spec(ModelSettings(**{**request.settings().get("model", {}), **sizes}))
    try:
        count_parameters(spec)
    except ThreefoldError as error:
        names = "+".join(mixers)
        raise ThreefoldError(f"{names} cannot do {data.task.name}: {error}") from error
    return spec


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step, and of evaluating one batch."""

    step: float
    evaluation: float


class StepClock(Reporter):
    """Records how long each step took."""

    def __init__(self) -> None:
        self.ends = [0.0]

    def on_step(self, trainer: Trainer) -> None:
        self.ends.append(trainer.result.seconds)

    @property
    def steps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.ends)]


def time_steps(
    data: TrainingData, spec: Spec, training: dict[str, Any], steps: int = 8
) -> StepTimes:
    """The median time of a few steps of a temporary model, without the first two (warm-up)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(spec)
    settings, clock = TrainingSettings(**{**training, "steps": steps}), StepClock()
    objective = data.objective(settings)
    train(model, data.batches(), settings, objective=objective, reporters=[clock])
    one_batch = data.limited(data.data.batch_size)
    evaluations = []
    for _ in range(3):
        start = time.perf_counter()
        evaluate_split(one_batch, model, "valid")
        evaluations.append(time.perf_counter() - start)
    return StepTimes(statistics.median(clock.steps[2:]), min(evaluations))


def steps_within(request: RaceRequest, times: dict[str, StepTimes]) -> dict[str, int]:
    """Steps of each contender within the time limit, which must allow at least one step."""
    assert request.duration.seconds is not None
    runs = request.seeds + PROBE_COST + (TUNING_COST if request.tune else 0.0)
    training = TRAINING_SHARE * request.duration.seconds / runs  # for one run of every contender
    if request.match == "time":
        share = training / len(times)
        steps = {name: int(share / taken.step) for name, taken in times.items()}
    else:
        total = sum(taken.step for taken in times.values())
        steps = dict.fromkeys(times, int(training / total))
    if min(steps.values()) < 1:
        raise ThreefoldError(too_short(request, times, runs))
    return steps


def too_short(request: RaceRequest, times: dict[str, StepTimes], runs: float) -> str:
    """The message for a time limit that does not allow one step."""
    slowest = max(times, key=lambda name: times[name].step)
    if request.match == "time":
        least = times[slowest].step * len(times) * runs / TRAINING_SHARE
    else:
        least = sum(taken.step for taken in times.values()) * runs / TRAINING_SHARE
    return (
        f"--time {request.time} is too short for one step of {slowest} "
        f"({times[slowest].step:.2g} s) with {len(times)} models and {request.seeds} seeds: give "
        f"at least --time {math.ceil(least)}s, better a hundred times as much, or use fewer "
        "--mixers or --seeds"
    )


def evaluation_sizes(
    batch: int, times: dict[str, StepTimes], steps: dict[str, int]
) -> tuple[int, int]:
    """Examples of each validation and of the final test: what a fifth of the time allows."""
    # How many batches each model could evaluate in the time of its training.
    batches = min(
        steps[name] * taken.step / max(taken.evaluation, 1e-6) for name, taken in times.items()
    )
    valid = max(4, int(0.08 * batches / EVALUATIONS))
    test = max(16, int(0.12 * batches))
    return batch * valid, batch * test


def describe_matching(plan: RacePlan) -> Sequence[str]:
    """What all models have in common, as sentences for the report."""
    request = plan.request
    size = f"parameters: within {100 * TOLERANCE:.0f} % of {plan.target:,}"
    if request.match == "tokens":
        size = "width and depth; the number of parameters is not matched"
    batches = "batches: the same for each seed, in the same order"
    training = f"training: {plan.common_steps:,} steps with a batch size of {request.batch_size}"
    if request.match == "time":
        batches += f", for the first {plan.common_steps:,} steps; faster models train for more"
        training = "training time: the same, converted to steps by timing each model"
    return (
        size,
        batches,
        training,
        "optimizer, schedule, precision and threads",
        f"evaluation: the same {plan.test_examples:,} test examples, in the same batches",
    )
