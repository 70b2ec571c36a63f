"""Time limits hold within 10 % on a simulated clock, however the speed changes during a run."""

import math
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from threefold.models.model import Model
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.config import RunConfig
from threefold.training.experiment import run
from threefold.training.preparation import prepare
from threefold.training.reporters import Reporter
from threefold.training.time_budget import MOST_JUDGING

Cost = Callable[[bool, float], float]  # (whether a step of training, now) → seconds
LIMIT = 100.0


@dataclass
class Machine:
    """A clock that only advances when a model computes: `cost(trains, now)` seconds each time."""

    cost: Cost
    interrupted_at: float = math.inf
    now: float = 0.0

    def build(self, spec: Spec) -> Any:
        """A model whose passes take the time of this machine."""
        model = build(spec)
        model.register_forward_pre_hook(self.compute)
        return model

    def compute(self, model: nn.Module, inputs: Any) -> None:
        self.now += self.cost(model.training, self.now)
        if self.now > self.interrupted_at:
            self.interrupted_at = math.inf
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(*options: Any) -> Machine:
        made = Machine(*options)
        monkeypatch.setattr("threefold.training.clock._read", lambda: made.now)
        monkeypatch.setattr("threefold.training.preparation.build", made.build)
        return made

    return make


def configuration(**training: Any) -> RunConfig:
    """Validation and test would take four minutes, so that a sample of 30 s is evaluated."""
    return RunConfig.read(
        {
            "data": {"name": "recall", "batch_size": 4, "eval_examples": 1000},
            "model": {"mixers": ["gru"], "width": 8, "depth": 1},
            "training": {"time": LIMIT, **training},
        }
    )


SPEEDS: dict[str, Cost] = {
    "steady": lambda trains, now: 0.5,
    "slower from the middle": lambda trains, now: 0.5 if now < 50 else 2.0,
    "slower near the end": lambda trains, now: 0.5 if now < 66 else 4.0,
    "faster from the middle": lambda trains, now: 2.0 if now < 50 else 0.2,
    "evaluations slower than estimated": lambda trains, now: 0.5 if trains or now < 20 else 2.5,
    "slow while it is planned": lambda trains, now: 2.0 if now < 30 else 0.3,
}


@pytest.mark.parametrize("eval_every", [None, 30])
@pytest.mark.parametrize("speed", SPEEDS)
def test_the_limit_holds_when_the_speed_changes(
    machine: Callable[..., Machine], speed: str, eval_every: int | None
) -> None:
    simulated = machine(SPEEDS[speed])
    trained = run(configuration(eval_every=eval_every), reporters=())
    assert 0.9 * LIMIT <= simulated.now <= 1.1 * LIMIT
    assert trained.result.stopped == "time" and trained.test is not None
    assert trained.result.seconds + trained.result.other_seconds > (1 - MOST_JUDGING) * LIMIT / 2


def test_slow_evaluations_leave_time_to_train(machine: Callable[..., Machine]) -> None:
    """Steps slower than estimated do not let the evaluations take more than their share."""
    simulated = machine(lambda trains, now: 0.5 if now < 12 else 2.5)
    trained = run(configuration(), reporters=())
    assert trained.result.seconds > 0.4 * LIMIT
    assert simulated.now <= 1.1 * LIMIT


def test_a_validation_that_is_cut_is_told(machine: Callable[..., Machine]) -> None:
    class Notes(Reporter):
        def __init__(self) -> None:
            self.warnings: list[str] = []

        def warn(self, text: str) -> None:
            self.warnings.append(text)

    notes = Notes()
    machine(SPEEDS["slower near the end"])
    run(configuration(), reporters=[notes])
    assert re.fullmatch(r"validated on \d+ of \d+ batches: the time is over", *notes.warnings)


def test_a_short_test_is_whole_even_if_it_starts_late(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Saving takes 4 s that were not reserved; the test then takes its 2.5 s all the same."""
    simulated, config = machine(lambda trains, now: 0.5 if trains else 0.01), configuration()

    def save(model: Model, folder: Path) -> None:
        simulated.now += 4.0

    monkeypatch.setattr(Model, "save", save)
    trained = run(config, tmp_path, reporters=())
    assert "test_examples" not in trained.summary
    assert simulated.now <= 1.1 * LIMIT


def test_an_evaluation_is_estimated_without_its_first_batch(
    machine: Callable[..., Machine],
) -> None:
    """The first evaluation finds empty caches: ten seconds more would mean a sample."""
    passes = 0

    def cost(trains: bool, now: float) -> float:
        nonlocal passes
        passes += not trains
        return 0.5 if trains else 10.0 if passes == 1 else 0.02

    machine(cost)
    prepared = prepare(configuration())
    assert prepared.test_examples is None


def test_a_run_that_resumes_keeps_its_limit(
    machine: Callable[..., Machine], tmp_path: Path
) -> None:
    """Sixty seconds before the interruption count towards the limit after it."""
    simulated, config = machine(SPEEDS["steady"], 60.0), configuration()
    stopped = run(config, tmp_path, reporters=())
    assert not stopped.finished
    resumed = run(config, tmp_path, reporters=())
    assert resumed.finished and resumed.result.steps > stopped.result.steps
    assert 0.9 * LIMIT <= simulated.now <= 1.1 * LIMIT
