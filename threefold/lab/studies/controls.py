"""Is there something to learn?  A small model on each task, and on the same with shuffled answers.

    python -m threefold.lab.studies.controls              all small tasks that classify
    python -m threefold.lab.studies.controls parity spam  these

    chance     what the card declares: the best answer that looks at no input
    majority   the training split's commonest answer · bag: order does not matter
    learnt     the model after a short training, on held-out examples
    control    the same model, trained as long on the answers of other examples
    limit      chance + 3 √(chance (1 − chance) / examples): a control above it tells of a leak

The model is no champion: it is there to show that the way from examples to score leaks nothing.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from threefold.data.fetch import MissingError
from threefold.errors import ThreefoldError
from threefold.models.table import build
from threefold.tasks.baselines import bag, majority, shuffled_labels
from threefold.tasks.table import TASKS, task
from threefold.tasks.task import Task
from threefold.training import TrainingSettings, train
from threefold.training.config import DataSettings, ModelSettings
from threefold.training.training_data import TrainingData

LONGEST = 500  # elements of a small task
SMALL = [n for n, card in TASKS.items() if card.kind == "classifier" and card.length <= LONGEST]


@dataclass(frozen=True)
class ControlStudy:
    """How long to train, and on how many examples to judge."""

    steps: int = 200
    batch: int = 32
    judged: int = 2000
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
    judged: int

    @property
    def limit(self) -> float:
        """What chance alone exceeds once in a thousand times."""
        return self.chance + 3 * math.sqrt(self.chance * (1 - self.chance) / self.judged)

    @property
    def clean(self) -> bool:
        """Whether nothing is learnt where there is nothing to learn."""
        return self.control <= self.limit


def measure(name: str, plan: ControlStudy) -> ControlResult:
    """Train twice, on the answers as they are and as they are not."""
    made = task(name)
    judged = min(plan.judged, made.sizes[2])
    return ControlResult(
        name,
        made.chance,
        majority(made, judged),
        bag(made, judged),
        accuracy(made, plan),
        accuracy(shuffled_labels(made, plan.seed), plan),
        judged,
    )


def accuracy(made: Task[Any], plan: ControlStudy) -> float:
    """Of a model that was trained on a task, on examples of its test split."""
    batch = min(plan.batch, made.sizes[0])
    data = DataSettings(name=made.name, batch_size=batch, eval_examples=plan.judged, seed=plan.seed)
    asked = TrainingData(made, data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        model = build(
            asked.spec(ModelSettings(mixers=(plan.mixer,), width=plan.width, depth=plan.depth))
        )
    settings = TrainingSettings(steps=plan.steps, seed=plan.seed)
    result = train(
        model,
        asked.batches(),
        settings,
        validation=asked.pieces("test"),
        objective=asked.objective(settings),
    )
    return result.scores.metric


def table(names: list[str], plan: ControlStudy) -> Iterator[str]:
    """A line for each task as soon as it is known."""
    columns = ("chance", "majority", "bag", "learnt", "control", "limit")
    yield f"{'task':<20}" + "".join(f"{column:>10}" for column in columns)
    for name in names:
        try:
            found = measure(name, plan)
        except MissingError:
            yield f"{name:<20}  not fetched: threefold data fetch {name}"
            continue
        except ThreefoldError as error:
            yield f"{name:<20}  {error}"
            continue
        cells = (getattr(found, column) for column in columns)
        verdict = "" if found.clean else "  the control knows too much"
        yield f"{name:<20}" + "".join(f"{cell:>10.4f}" for cell in cells) + verdict


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.controls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tasks", nargs="*", default=SMALL, metavar="task")
    for name, value in vars(ControlStudy()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = vars(parser.parse_args())
    for line in table(given.pop("tasks"), ControlStudy(**given)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
