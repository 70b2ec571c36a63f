"""`mixers="auto"`: sequence models and simple ones compared on held-out examples."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.errors import ThreefoldError
from threefold.estimators.fitting import FitSettings, TrainingExamples, encode_rows, train_model
from threefold.layers.table import mixer_entry

Array = NDArray[Any]
AUTO = ("gru", "mamba", "s5")
HELD_OUT = 0.25  # share of the examples that decide, by default
CHOOSING = 0.6  # share of a time limit in which the models are compared
# Probabilities count in the loss as at least this, and as at most one minus this: few examples make
# nobody surer, but a nearest neighbour is never unsure.
SURE = 1e-3


@dataclass(frozen=True)
class RaceModel:
    """A model of the race: how it is fitted, and how what was fitted answers."""

    name: str
    fit: Callable[[TrainingExamples, Preprocessing], Any]
    answer: Callable[[Any, Sequence[Array]], Array]  # (fitted, encoded rows) → [N, outputs]
    simple: bool = True


@dataclass(frozen=True)
class RaceEntry:
    """What one model of the race has reached on the held-out examples."""

    name: str
    kind: str
    score: float  # accuracy, or minus the mean squared error on the scale of the targets
    loss: float
    seconds: float

    @property
    def rank(self) -> tuple[float, float]:
        """Higher is better; equal scores are decided by the loss."""
        return self.score, -self.loss


def race_names(mixers: Any) -> tuple[str, ...]:
    """The mixers to race: those of "auto" or of "a,b"; none if one model is asked for."""
    if isinstance(mixers, str) and mixers == "auto":
        return AUTO
    if not isinstance(mixers, str) or "," not in mixers:
        return ()
    names = tuple(name for part in mixers.split(",") if (name := part.strip()))
    for number, name in enumerate(names):
        for part in name.split("+"):
            mixer_entry(part)
        if name in names[:number]:
            raise ThreefoldError(f"mixers is {mixers!r}, which names {name!r} twice")
    return names


def neural_settings(settings: FitSettings, mixers: str, count: int) -> FitSettings:
    """The settings with which each of `count` models is compared: its share of the time."""
    limits = settings.limits()
    if limits.get("time") is None:
        return replace(settings, mixers=mixers)
    return replace(settings, mixers=mixers, time=limits["time"] * CHOOSING / count)


def neural_contender(
    name: str, settings: FitSettings, count: int, answer: Callable[[Any, Sequence[Array]], Array]
) -> RaceModel:
    """A sequence model in the race."""

    def fit(examples: TrainingExamples, preprocessing: Preprocessing) -> Any:
        return train_model(examples, preprocessing, neural_settings(settings, name, count)).model

    return RaceModel(name, fit, answer, simple=False)


def run_race(
    contenders: Sequence[RaceModel],
    train: TrainingExamples,
    held: TrainingExamples,
    preprocessing: Preprocessing,
    say: Callable[[str], None],
) -> list[RaceEntry]:
    """Fit all contenders and score them; one that cannot be fitted is left out, and told."""
    rows = encode_rows(preprocessing, held.rows)
    entries = []
    for contender in contenders:
        start = time.perf_counter()
        try:
            answers = contender.answer(contender.fit(train, preprocessing), rows)
        except ThreefoldError as error:
            left_out(contender.name, error, contender.simple, say)
            continue
        score, loss = _scores(answers, held, preprocessing)
        kind = "baseline" if contender.simple else "sequence model"
        entries.append(RaceEntry(contender.name, kind, score, loss, time.perf_counter() - start))
        say(f"{contender.name}: {_told(entries[-1], preprocessing.kind, unit_of(preprocessing))}")
    if not entries:
        raise ThreefoldError("no model of the race could be fitted; see the messages above")
    return sorted(entries, key=lambda entry: entry.rank, reverse=True)


def left_out(name: str, error: Exception, simple: bool, say: Callable[[str], None]) -> None:
    """Tell why a model takes no part: a warning, because it was asked for, unless it is simple."""
    told = f"{name} was left out of the race: {error}"
    if simple:
        say(told)
    else:
        warnings.warn(told, stacklevel=6)


def _scores(
    answers: Array, held: TrainingExamples, preprocessing: Preprocessing
) -> tuple[float, float]:
    weights = held.weights
    if preprocessing.kind == "classifier":
        right = answers.argmax(1) == held.targets
        likely = np.clip(answers[np.arange(len(held)), held.targets], SURE, 1 - SURE)
        return (
            float(np.average(right, weights=weights)),
            float(np.average(-np.log(likely), weights=weights)),
        )
    errors = (answers - preprocessing.outputs.apply(held.targets)) ** 2
    error = float(np.average(errors.mean(1), weights=weights))
    return -error, error


def unit_of(preprocessing: Preprocessing) -> float | None:
    """One deviation of the target in the user's units; None of several targets, or of classes."""
    step = preprocessing.outputs.find(Standardise)
    return None if step is None or len(step.deviation) != 1 else float(step.deviation[0])


def _told(entry: RaceEntry, kind: str, unit: float | None = None) -> str:
    if kind == "classifier":
        return f"{entry.score:.1%} right"
    if unit is None:
        what = "mean absolute error" if kind == "forecaster" else "mean squared error"
        return f"{what} {entry.loss:.3g} on the scale of the targets, whose deviation is 1"
    if kind == "forecaster":
        return f"mean absolute error {entry.loss * unit:.3g} in units of y"
    return f"root mean squared error {math.sqrt(entry.loss) * unit:.3g} in units of y"


def verdict(entries: Sequence[RaceEntry], held: int, kind: str, unit: float | None = None) -> str:
    """The result of a race in one or two sentences; unit: see `unit_of`."""
    best, *others = entries
    reached = _told(best, kind, unit)
    examples = "1 held-out example" if held == 1 else f"{held:,} held-out examples"
    told = f"{best.name} is the best on {examples} ({reached}) and is kept"
    rivals = [e for e in others if (e.kind == "baseline") != (best.kind == "baseline")]
    if not rivals:
        return f"{told}."
    rest = f"{rivals[0].name}, the best {rivals[0].kind}: {_told(rivals[0], kind, unit)}"
    if best.kind == "baseline":
        return f"No sequence model beats {best.name} here: {told}; {rest}."
    return f"{told}; {rest}."
