"""The plan of a race: which models, how large, for how many steps, evaluated on how many examples.

What all models have in common     parameters    batches of a seed    training
  --match parameters (default)     within 3 %    the same             the same number of steps
  --match time                     within 3 %    the same first ones  the same time
  --match tokens                   not matched   the same             the same number of steps

A time limit is converted to a number of steps once (`timing.py`).  From then on nothing depends on
the clock, so an interrupted race ends with the same numbers.  Models and data that cannot be raced
are refused here, before anything is trained.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from threefold.errors import ThreefoldError, option_name
from threefold.lab.bench.bench import length_option
from threefold.lab.race.request import RaceRequest
from threefold.lab.race.sizing import (
    TOLERANCE,
    Sized,
    common_target,
    count_parameters,
    match_parameters,
)
from threefold.lab.race.timing import (
    BASELINE_SHARE,
    EVALUATIONS,
    EXPECTED_BASELINES,
    RUN_OVERHEAD,
    TEST_BATCHES,
    TIMING_SHARE,
    VALID_BATCHES,
    EvaluationLimits,
    RaceClock,
    Timetable,
    choose_threads,
    few_steps_note,
    measuring_seconds,
    time_models,
    timetable,
    using_threads,
)
from threefold.models.spec import Spec
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.training_data import TrainingData

FORMAT_VERSION = 3  # of race.json and of the folder around it
DEFAULT_MAX_LENGTH = 1024  # elements that every mixer can read without a larger max_length

# Fits the baselines, which a time limit pays for: (data, test examples, seconds).
FitBaselines = Callable[[TrainingData, int, float], object]
# Seconds of a run of one step of the plan's first model.
Rehearse = Callable[["RacePlan"], float]


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
    seconds: float = 1.0  # expected, of one run
    learning_rate: float | None = None  # None: that of the request
    dropout: float | None = None  # None: that of the request

    def architecture(self, options: dict[str, Any]) -> dict[str, Any]:
        """The section `model` of its runs' configuration, without the seed."""
        chosen = {} if self.dropout is None else {"dropout": self.dropout}
        return {
            "mixers": self.mixers,
            "width": self.width,
            "depth": self.depth,
            "channel": self.channel,
            "options": {**options, **chosen},
        }


@dataclass(frozen=True)
class RacePlan:
    """Everything that is decided before the first step."""

    request: RaceRequest
    contenders: tuple[PlannedModel, ...]
    target: int  # parameters
    valid_examples: int  # of each validation
    test_examples: int  # of the final evaluation
    threads: int | None = None  # that torch computes with; None: as it is

    def planned(self, name: str) -> PlannedModel:
        """The contender with this name."""
        return next(c for c in self.contenders if c.name == name)

    def learning_rate(self, name: str) -> float:
        """The learning rate of a contender."""
        return self.planned(name).learning_rate or self.request.learning_rate

    @property
    def common_steps(self) -> int:
        """The number of steps that all models train for, on the same batches."""
        return min(contender.steps for contender in self.contenders)

    def config(self, name: str, seed: int, fraction: float = 1.0) -> RunConfig:
        """The configuration of one run; tuning uses a `fraction` of the steps."""
        planned = self.planned(name)
        steps = max(1, round(planned.steps * fraction))
        model_seed = weights_seed(name, seed)
        request = self.request
        values = request.settings()
        data = {**values["data"], "batch_size": request.batch_size, "seed": seed}
        model = values.get("model", {})
        model = {**model, **planned.architecture(model.get("options", {})), "seed": model_seed}
        training = {
            **values.get("training", {}),
            "steps": steps,
            "eval_every": max(1, steps // EVALUATIONS),
            "learning_rate": self.learning_rate(name),
            "on_non_finite": "roll_back",
            "save_every": max(10, steps // 8),
            "keep_checkpoints": 1,
            "seed": model_seed,
        }
        threads = {} if self.threads is None else {"threads": self.threads}
        sections = {"data": data, "model": model, "training": training}
        return RunConfig(**{**threads, **values, **sections})

    def to_dict(self) -> dict[str, Any]:
        """The content of race.json."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, text: str) -> RacePlan:
        """The plan in race.json; a folder of another format version is refused."""
        values = json.loads(text)
        if values.pop("format_version", None) != FORMAT_VERSION:
            raise ThreefoldError(
                "this race was written by an older version of Threefold; choose another "
                f"{option_name('folder')}"
            )
        request = values.pop("request")
        for name in ("mixers", "overrides"):
            request[name] = tuple(request[name])
        contenders = tuple(PlannedModel(**item) for item in values.pop("contenders"))
        return cls(RaceRequest(**request), contenders, **values)


def weights_seed(name: str, seed: int) -> int:
    """The seed of a contender's weights, from its name: two contenders never share one."""
    return int.from_bytes(hashlib.sha256(f"{name} {seed}".encode()).digest()[:4], "big")


def make_plan(
    request: RaceRequest,
    say: Callable[[str], None] = lambda _: None,
    cache: DataCache | None = None,
    clock: RaceClock | None = None,
    fit_baselines: FitBaselines = lambda *_: None,
    rehearse: Rehearse = lambda _: RUN_OVERHEAD,
) -> RacePlan:
    """Choose sizes and steps of all models, or refuse what cannot be raced.

    clock: since when the time limit runs.  fit_baselines: called before the steps are chosen, so
    that its time counts.  rehearse: the time of a very short run, which is that of its overhead.
    """
    clock = clock or RaceClock()
    say("reading the data")
    settings = {**request.settings()["data"], "batch_size": request.batch_size}
    data = (cache or DataCache()).open(DataSettings(**settings))
    check_data(data)
    say("choosing model sizes")
    specs = {name: model_spec(data, request, mixers) for name, mixers in request.entries.items()}
    target = request.parameters or common_target(specs)
    if request.match == "tokens":
        sized = {n: Sized(s, count_parameters(s), 0.0) for n, s in specs.items()}
    else:
        sized = match_parameters(specs, target)
    if request.duration.steps is not None:
        steps = dict.fromkeys(sized, request.duration.steps)
        table = Timetable(steps, VALID_BATCHES, TEST_BATCHES, dict.fromkeys(sized, 1.0))
        threads, test = None, _examples(request, data, "test", table.test)
    else:
        batch, once = request.batch_size, Timetable(dict.fromkeys(sized, 1), 1, 1, {})
        first = planned_model(*next(iter(sized.items())), once)
        overhead = rehearse(RacePlan(request, (first,), target, batch, batch))
        hooks = PlanHooks(clock, fit_baselines, overhead)
        table, test, threads = plan_time(request, data, sized, say, hooks)
    contenders = tuple(planned_model(name, item, table) for name, item in sized.items())
    valid = _examples(request, data, "valid", table.valid)
    return RacePlan(request, contenders, target, valid, test, threads)


def _examples(request: RaceRequest, data: TrainingData, split: str, batches: int) -> int:
    return min(batches * request.batch_size, data.task.size(split))


@dataclass(frozen=True)
class PlanHooks:
    """What a time limit has to pay for besides steps and evaluations."""

    clock: RaceClock
    fit_baselines: FitBaselines
    overhead: float  # seconds of each run


def plan_time(
    request: RaceRequest,
    data: TrainingData,
    sized: dict[str, Sized],
    say: Callable[[str], None],
    hooks: PlanHooks,
) -> tuple[Timetable, int, int | None]:
    """(the timetable, the examples of the test, threads), all costs of the race counted in."""
    total = request.duration.seconds
    assert total is not None
    training = request.settings().get("training", {})
    specs = {name: item.spec for name, item in sized.items()}
    threads = request.settings().get("threads")
    if threads is None:
        threads = choose_threads(data, next(iter(specs.values())), training)
    with using_threads(threads):
        times = time_models(data, specs, training, TIMING_SHARE * total, say)
    limits = EvaluationLimits.of(data)
    elements = request.batch_size * data.task.length
    left = total - measuring_seconds(times, elements, total)
    expected = left - hooks.clock.elapsed - EXPECTED_BASELINES * total
    test = timetable(request, times, expected, limits, hooks.overhead).test
    examples = _examples(request, data, "test", test)
    hooks.fit_baselines(data, examples, BASELINE_SHARE * total)
    # The baselines have been scored on these test examples, so their number stays.
    left -= hooks.clock.elapsed
    table = timetable(request, times, left, replace(limits, test=test), hooks.overhead)
    if note := few_steps_note(request, times, table):
        say(note)
    return table, examples, threads


def planned_model(name: str, sized: Sized, table: Timetable) -> PlannedModel:
    """A contender of the chosen size."""
    empty = PlannedModel(name, [], 0, 0, None, 0, table.steps[name], table.seconds.get(name, 1.0))
    return with_shape(empty, sized)


def with_shape(planned: PlannedModel, sized: Sized) -> PlannedModel:
    """The contender with another shape."""
    spec = sized.spec.to_dict()
    return replace(
        planned,
        mixers=spec["mixers"],
        width=sized.spec.width,
        depth=sized.spec.depth,
        channel=spec["channel"],
        parameters=sized.parameters,
    )


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
            f"{data.data.batch_size}; give more data or a smaller {option_name('batch_size')}"
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
    rate = "" if request.tune else f", learning rate ({request.learning_rate:g})"
    return (
        size,
        batches,
        training,
        f"optimizer, schedule{rate}, precision and threads",
        f"evaluation: the same {plan.test_examples:,} test examples, in the same batches",
    )
