"""What helps few examples: short runs with and without it, compared on examples held out of them.

    d_i = loss_i without it − loss_i with it       example i, which neither run has seen
    it wins if    mean d > 2 · deviation of d / √n

Every training example is held out once, in one of three folds of similar classes.  All runs have
the same seeds, batches and steps, and the settings of the run that is to come; nothing but a time
limit depends on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.data.augmentation import FOR_TOKENS
from threefold.models.model import Model
from threefold.runtime.interrupts import InterruptedByUser
from threefold.tasks.task import Numbers, Task
from threefold.training.config import RunConfig
from threefold.training.evaluation import evaluate
from threefold.training.fine_tuning import StartingModel
from threefold.training.loop import train
from threefold.training.preparation import can_augment, prepare
from threefold.training.training_data import TrainingData

EXAMPLES = (12, 400)  # fewest and most for which a comparison pays
FOLDS = 3
STEPS = (100, 500)  # fewest and most of each run
ERRORS = 2.0  # standard errors of the mean difference that a winner is better by
# Those that promise most come first: a short run compares fewer.
CANDIDATES: tuple[tuple[str, ...], ...] = (
    ("crop",),
    ("warp", "scale", "noise"),
    ("dropout",),
    ("mixup",),
)
Losses: TypeAlias = NDArray[np.float64]  # of every training example, when it was held out
Progress: TypeAlias = Callable[[int, int], None]  # (runs that are done, all runs)


@dataclass(frozen=True)
class Difference:
    """How much lower held-out losses are with something than without it."""

    without: float  # mean loss
    gain: float  # mean difference
    error: float  # its standard error

    @classmethod
    def of(cls, without: Losses, with_it: Losses) -> Difference:
        """The difference of the losses of the same examples."""
        gains = without - with_it
        error = float(gains.std(ddof=1)) / len(gains) ** 0.5
        return cls(float(without.mean()), float(gains.mean()), error)

    @property
    def wins(self) -> bool:
        """Whether it is lower by more than chance explains."""
        return self.gain > ERRORS * self.error

    def __str__(self) -> str:
        return (
            f"held-out loss {self.without - self.gain:.3g} instead of {self.without:.3g}, "
            f"difference {self.gain:.2g} ± {self.error:.1g}"
        )


@dataclass(frozen=True)
class ChosenAugmentation:
    """The augmentations that won, if any, and the numbers that say so."""

    names: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Short runs of a configuration on folds of the training examples."""

    config: RunConfig
    data: TrainingData
    start: StartingModel | None
    steps: int  # of each run
    on_run: Callable[[], None] = lambda: None  # called when one is done

    def __call__(self, names: tuple[str, ...]) -> Losses:
        """The held-out losses with these augmentations."""
        losses = np.zeros(self.data.task.size("train"))
        for fold in folds(self.data.task):
            data = _held_out(self.data, fold)
            losses[fold] = _losses(self._trained(names, data), data, self.config)
            self.on_run()
        return losses

    def _trained(self, names: tuple[str, ...], data: TrainingData) -> Model:
        """A model of a short run on the examples of a fold."""
        limits = {"steps": self.steps, "time": None, "ensemble": None, "augment": names}
        training = self.config.training.model_copy(update=limits)
        batch_size = min(data.data.batch_size, data.task.size("train"))
        settings = self.config.data.model_copy(update={"batch_size": batch_size})
        config = self.config.model_copy(update={"data": settings, "training": training})
        prepared = prepare(config, data.with_settings(settings), self.start)
        result = train(
            prepared.model,
            prepared.batches,
            training,
            validation=prepared.split_batches("valid", False),
            objective=data.objective(training),
            reporters=(),
        )
        if result.stopped == "interrupted":
            raise InterruptedByUser("stopped while augmentations were compared")
        return prepared.model


def candidates(data: TrainingData) -> tuple[tuple[str, ...], ...]:
    """The augmentations that are compared for these data; none if they are no such data."""
    task = data.task
    few = EXAMPLES[0] <= task.size("train") <= EXAMPLES[1]
    if not few or not can_augment(data):
        return ()
    tokens = not data.first.inputs.is_floating_point()
    return tuple(c for c in CANDIDATES if not tokens or set(c) <= set(FOR_TOKENS))


def choose(
    compare: Callable[[tuple[str, ...]], Losses], tried: Sequence[tuple[str, ...]], runs: str
) -> ChosenAugmentation:
    """The augmentation of the lowest held-out losses, if they are lower than without any."""
    without = compare(())
    found = {names: Difference.of(without, compare(names)) for names in tried}
    best = max(found, key=lambda names: found[names].gain)
    others = [
        f"{'+'.join(names)} {other.without - other.gain:.3g}"
        for names, other in found.items()
        if names != best
    ]
    also = f" (others: {', '.join(others)})" if others else ""
    if found[best].wins:
        return ChosenAugmentation(best, f"{found[best]}{also}, by {runs}")
    return ChosenAugmentation(
        (), f"none wins; best: {'+'.join(best)}, {found[best]}{also}, by {runs}"
    )


def folds(task: Task[Any]) -> Iterator[Numbers]:
    """The numbers of the training examples of each fold, sorted by target and dealt out."""
    size = task.size("train")
    targets = task.rows("train", np.arange(size)).targets
    order = np.arange(size)
    if not targets.is_floating_point():
        order = np.argsort(targets.reshape(size, -1)[:, 0].numpy(), kind="stable")
    for number in range(FOLDS):
        yield np.sort(order[number::FOLDS])


def _held_out(data: TrainingData, fold: Numbers) -> TrainingData:
    """The same data without the examples of a fold, which are those of the validation."""
    task = data.task
    rest = np.setdiff1d(np.arange(task.size("train")), fold)
    numbers = {"train": rest, "valid": fold, "test": fold}

    def draw(split: str, chosen: Numbers) -> Any:
        return task.draw("train", numbers[split][chosen])

    sizes = (len(rest), len(fold), len(fold))
    return TrainingData(replace(task, draw=draw, sizes=sizes), data.data)


def _losses(model: Model, data: TrainingData, config: RunConfig) -> list[float]:
    """The loss of each example of the validation."""
    one = data.data.model_copy(update={"batch_size": 1, "eval_examples": None})
    losses: list[float] = []
    evaluate(
        model,
        data.with_settings(one).pieces("valid"),
        objective=data.objective(config.training),
        on_batch=lambda rows, loss, tally: losses.append(float(loss.loss)),
        precision=config.training.precision,
    )
    return losses
