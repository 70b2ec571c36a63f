"""seconds asked = reading + baselines + rounds · Σ (steps + evaluations + overhead) + measuring

How a time limit becomes numbers of steps: a few steps and evaluations of each model are timed, all
other costs of a race are subtracted, and what is left is for training.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from threefold.errors import ThreefoldError, option, option_name
from threefold.lab.race.probes import PROBE_COST
from threefold.lab.race.request import RaceRequest
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.experiment import evaluate_split
from threefold.training.loop import train
from threefold.training.reporters import Reporter
from threefold.training.settings import TrainingSettings
from threefold.training.trainer import Trainer
from threefold.training.training_data import TrainingData

EVALUATIONS = 12  # points of a learning curve
# Batches of a validation and of the final test, if --time is a number of steps.
VALID_BATCHES, TEST_BATCHES = 8, 64
FEWEST_VALID, FEWEST_TEST = 2, 8  # batches, however short the time
LONGER_PASSES = 4  # of a test at the training length and at three others
TRAINING_SHARE = 0.8  # of a run; the rest is for evaluations
VALID_SHARE, TEST_SHARE = 0.08, 0.12  # of a run's training time
BASELINE_SHARE = 0.25  # of the race at most; those that are left then are not fitted
EXPECTED_BASELINES = 0.05  # of the race, before they are fitted
MEASURING_SHARES = 0.06, 0.2  # of the race, at least and at most: costs and the page
MEASURED_ELEMENTS = 4096  # of a batch whose costs are measured
MEASURED_CALLS = 20  # of each model: four lengths, five calls
PAGE_SECONDS = 1.5  # to draw and write the report
TIMING_SHARE = 0.04  # of the race: how long steps take
RUN_OVERHEAD = 0.35  # seconds, unless it is measured: building and saving a model, figures
TUNING_COST = 1.75  # runs of full length that tuning one model takes
TUNING_RUNS = 9  # short ones
TOO_FEW_STEPS, ENOUGH_STEPS = 20, 100  # of a model
WARM_UP, TIMED = 2, 6  # steps
MOST_PASSES = 6  # over all models
WORTH_THREADS = 1.5  # times as fast, for more threads than one


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step, and of evaluating one batch."""

    step: float
    evaluation: float


@dataclass(frozen=True)
class EvaluationLimits:
    """What the data allow: batches of the validation and of the test split, passes of a test."""

    valid: int = 10**9
    test: int = 10**9
    passes: int = LONGER_PASSES

    @classmethod
    def of(cls, data: TrainingData) -> EvaluationLimits:
        """The limits of data; texts, series to forecast and generated tasks can be longer."""
        valid, test = (
            -(-data.task.size(split) // data.data.batch_size) for split in ("valid", "test")
        )
        longer = not data.from_user or data.task.kind in ("language", "masked", "forecaster")
        return cls(valid, test, LONGER_PASSES if longer else 1)


@dataclass(frozen=True)
class Timetable:
    """What a time limit allows: steps by model, batches of evaluations, seconds of a run."""

    steps: Mapping[str, int]
    valid: int
    test: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class RaceClock:
    """How much of the time limit is used."""

    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started


class StepClock(Reporter):
    """Records how long each step took."""

    def __init__(self) -> None:
        self.ends = [0.0]

    def on_step(self, trainer: Trainer) -> None:
        self.ends.append(trainer.result.seconds)

    @property
    def steps(self) -> list[float]:
        return [b - a for a, b in pairwise(self.ends)]


def time_models(
    data: TrainingData,
    specs: Mapping[str, Spec],
    training: Mapping[str, Any],
    limit: float,
    say: Callable[[str], None],
) -> dict[str, StepTimes]:
    """Times of all models, in turns, so that slow phases of the machine affect all of them."""
    begin = time.monotonic()
    taken: dict[str, list[StepTimes]] = {name: [] for name in specs}
    for number in range(MOST_PASSES):
        for name, spec in specs.items():
            say(f"timing {name}")
            taken[name] += time_steps(data, spec, training)
        spent = time.monotonic() - begin
        if spent * (number + 2) / (number + 1) > limit:  # one more pass would take too long
            break
    return {name: median_times(items) for name, items in taken.items()}


def median_times(items: Sequence[StepTimes]) -> StepTimes:
    """The median of each time: a machine that is busy for a moment does not count."""
    return StepTimes(
        statistics.median(item.step for item in items),
        statistics.median(item.evaluation for item in items),
    )


def time_steps(data: TrainingData, spec: Spec, training: Mapping[str, Any]) -> list[StepTimes]:
    """The times of a few steps of a temporary model, each with that of an evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(spec)
    settings = TrainingSettings(**{**training, "steps": WARM_UP + TIMED})
    clock = StepClock()
    train(model, data.batches(), settings, objective=data.objective(settings), reporters=[clock])
    one_batch, evaluations = data.limited(data.data.batch_size), []
    for _ in range(1 + TIMED):
        start = time.perf_counter()
        evaluate_split(one_batch, model, "valid")
        evaluations.append(time.perf_counter() - start)
    return list(map(StepTimes, clock.steps[WARM_UP:], evaluations[1:]))


def choose_threads(data: TrainingData, spec: Spec, training: Mapping[str, Any]) -> int:
    """All threads that torch has, or one if small models are nearly as fast with it.

    On a busy machine, threads that wait for each other are many times slower.
    """
    most = torch.get_num_threads()
    if most == 1:
        return 1
    times = {}
    for threads in (most, 1):
        with using_threads(threads):
            times[threads] = median_times(time_steps(data, spec, training)).step
    return most if WORTH_THREADS * times[most] < times[1] else 1


@contextmanager
def using_threads(threads: int) -> Iterator[None]:
    """Compute with this many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measuring_seconds(times: Mapping[str, StepTimes], elements: int, total: float) -> float:
    """Seconds of a race for what comes after its runs: costs and the page.

    elements: of a training batch.
    """
    calls = MEASURED_CALLS * MEASURED_ELEMENTS / elements
    expected = calls * sum(taken.step + 2 * taken.evaluation for taken in times.values())
    least, most = MEASURING_SHARES
    return min(max(PAGE_SECONDS + expected, least * total), most * total)


def rounds_of(request: RaceRequest) -> float:
    """Runs of full length per model."""
    return request.rounds + PROBE_COST + (TUNING_COST if request.tune else 0.0)


def timetable(
    request: RaceRequest,
    times: Mapping[str, StepTimes],
    seconds: float,
    limits: EvaluationLimits = EvaluationLimits(),
    run_overhead: float = RUN_OVERHEAD,
) -> Timetable:
    """What fits into the seconds that all runs have together; at least one step must."""
    check_one_step(request, times)
    overhead = (request.rounds + request.tune * TUNING_RUNS) * len(times) * run_overhead
    share = max(0.0, (seconds - overhead) / rounds_of(request))
    steps = _steps(request, times, TRAINING_SHARE * share, {})
    valid, test = evaluation_sizes(times, steps, limits)
    judging = {
        name: taken.evaluation * (min(steps[name], EVALUATIONS) * valid + limits.passes * test)
        for name, taken in times.items()
    }
    steps = _steps(request, times, share, judging)
    runs = {
        name: run_overhead + judging[name] + steps[name] * taken.step
        for name, taken in times.items()
    }
    return Timetable(steps, valid, test, runs)


def _steps(
    request: RaceRequest,
    times: Mapping[str, StepTimes],
    share: float,
    judging: Mapping[str, float],
) -> dict[str, int]:
    """Steps of each model in `share` seconds for one run of all, evaluations included."""
    if request.match == "time":
        each = share / len(times)
        return {
            name: max(1, int((each - judging.get(name, 0.0)) / taken.step))
            for name, taken in times.items()
        }
    total = sum(taken.step for taken in times.values())
    return dict.fromkeys(times, max(1, int((share - sum(judging.values())) / total)))


def evaluation_sizes(
    times: Mapping[str, StepTimes], steps: Mapping[str, int], limits: EvaluationLimits
) -> tuple[int, int]:
    """Batches of each validation and of the final test: what a fifth of the time allows."""
    # How many batches each model could evaluate in the time of its training.
    batches = min(
        steps[name] * taken.step / max(taken.evaluation, 1e-6) for name, taken in times.items()
    )
    valid = max(FEWEST_VALID, int(VALID_SHARE * batches / EVALUATIONS))
    test = max(FEWEST_TEST, int(TEST_SHARE * batches / limits.passes))
    return min(valid, limits.valid), min(test, limits.test)


def few_steps_note(request: RaceRequest, times: Mapping[str, StepTimes], table: Timetable) -> str:
    """What is said before a race whose time allows hardly any training; "" if it allows enough."""
    steps = min(table.steps.values())
    if steps >= TOO_FEW_STEPS or request.duration.seconds is None:
        return ""
    missing = (ENOUGH_STEPS - steps) * seconds_of_one_step(request, times) / TRAINING_SHARE
    needed = math.ceil(request.duration.seconds + missing)
    better = f"{needed}s" if needed < 120 else f"{math.ceil(needed / 60)}m"
    return (
        f"note: {option('time', request.time)} allows only {steps} training "
        f"step{'' if steps == 1 else 's'} of each model, which says little; about "
        f"{option('time', better)} would allow {ENOUGH_STEPS}"
    )


def seconds_of_one_step(request: RaceRequest, times: Mapping[str, StepTimes]) -> float:
    """Seconds of one training step of every model, in all runs of the race."""
    one = sum(taken.step for taken in times.values())
    if request.match == "time":
        one = max(taken.step for taken in times.values()) * len(times)
    return one * rounds_of(request)


def check_one_step(request: RaceRequest, times: Mapping[str, StepTimes]) -> None:
    """Refuse a time limit that does not allow one step of each model."""
    assert request.duration.seconds is not None
    slowest = max(times, key=lambda name: times[name].step)
    least = seconds_of_one_step(request, times) / TRAINING_SHARE
    if request.duration.seconds < least:
        raise ThreefoldError(
            f"{option('time', request.time)} is too short for one step of {slowest} "
            f"({times[slowest].step:.2g} s) with {len(times)} models and {request.rounds} seeds: "
            f"give at least {option('time', f'{math.ceil(least)}s')}, better a hundred times as "
            f"much, or use fewer {option_name('mixers')} or {option_name('seeds')}"
        )
