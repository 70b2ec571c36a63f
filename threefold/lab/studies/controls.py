"""Does a task leak its answers?  A small model on each task, and on the same with shuffled labels.

    threefold lab controls              all small classification tasks
    threefold lab controls parity spam  these tasks

    chance     accuracy of the best answer that ignores the input, as declared by the task
    majority   accuracy of the most frequent training label
    bag        accuracy of a model that ignores the order of elements
    learnt     accuracy of the model after a short training, on held-out examples
    control    the same model, trained for as many steps on shuffled labels
    limit      chance + 3 √(chance (1 − chance) / examples): a control above it indicates a leak

The model is deliberately small: it only has to show that nothing leaks from examples to scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from threefold.data.fetch import MissingError
from threefold.errors import ThreefoldError
from threefold.tasks.baselines import bag, majority, shuffled_labels
from threefold.tasks.table import TASKS, task
from threefold.tasks.task import Task
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.preparation import prepare
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData

MAX_LENGTH = 500  # elements of a small task
SMALL = [n for n, card in TASKS.items() if card.kind == "classifier" and card.length <= MAX_LENGTH]


@dataclass(frozen=True)
class ControlStudy:
    """How long to train, and on how many examples to evaluate."""

    steps: int = 200
    batch_size: int = 32
    examples: int = 2000
    mixer: str = "gru"
    width: int = 32
    depth: int = 1
    seed: int = 0


@dataclass(frozen=True)
class ControlResult:
    """Accuracies of one task."""

    name: str
    chance: float
    majority: float
    bag: float
    learnt: float
    control: float
    examples: int

    @property
    def limit(self) -> float:
        """What chance alone exceeds once in a thousand cases."""
        return self.chance + 3 * math.sqrt(self.chance * (1 - self.chance) / self.examples)

    @property
    def clean(self) -> bool:
        """Whether the control learnt nothing, as it should."""
        return self.control <= self.limit


def measure(name: str, plan: ControlStudy) -> ControlResult:
    """Train twice: on the true labels, and on shuffled ones."""
    tested = task(name)
    examples = min(plan.examples, tested.sizes[2])
    return ControlResult(
        name,
        tested.chance,
        majority(tested, examples),
        bag(tested, examples),
        accuracy(tested, plan),
        accuracy(shuffled_labels(tested, plan.seed), plan),
        examples,
    )


def accuracy(tested: Task[Any], plan: ControlStudy) -> float:
    """The test accuracy of a model trained on a task."""
    config = RunConfig(
        data=DataSettings(
            name=tested.name, batch_size=min(plan.batch_size, tested.sizes[0]), seed=plan.seed
        ),
        model=ModelSettings(
            mixers=(plan.mixer,), width=plan.width, depth=plan.depth, seed=plan.seed
        ),
        training=TrainingSettings(steps=plan.steps, seed=plan.seed),
    )
    prepared = prepare(config, TrainingData(tested, config.data))
    few = replace(prepared, valid_examples=plan.batch_size, test_examples=plan.examples)
    scores = run(config, prepared=few, reporters=()).complete().test
    assert scores is not None
    return scores.metric


def table(names: Sequence[str], plan: ControlStudy) -> Iterator[str]:
    """The lines of the table, each as soon as its task is measured."""
    columns = ("chance", "majority", "bag", "learnt", "control", "limit")
    yield f"{'task':<20}" + "".join(f"{column:>10}" for column in columns)
    for name in names or SMALL:
        try:
            result = measure(name, plan)
        except MissingError:
            yield f"{name:<20}  not downloaded; run: threefold data fetch {name}"
            continue
        except ThreefoldError as error:
            yield f"{name:<20}  {error}"
            continue
        cells = (getattr(result, column) for column in columns)
        verdict = "" if result.clean else "  the control is above the limit: a leak?"
        yield f"{name:<20}" + "".join(f"{cell:>10.4f}" for cell in cells) + verdict
