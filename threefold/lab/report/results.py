"""The numbers of a race: runs, costs, contenders, baselines, and what the race was about."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from threefold.lab.race.significance import Interval, interval
from threefold.models.table import KINDS

# By metric: its name, the unit of a difference, and the unit of its values.
METRICS = {
    "accuracy": ("accuracy", "percentage points", "percent"),
    "exact": ("sequence accuracy", "percentage points", "percent"),
    "bits": ("bits per token", "bits", "number"),
    "loss": ("loss", "nats", "number"),
    "squared_error": ("squared error", "", "number"),
    "absolute_error": ("absolute error", "", "number"),
    "bleu": ("BLEU", "BLEU points", "number"),
    "phoneme_error": ("phoneme error rate", "percentage points", "percent"),
}


FEW_EXAMPLES = 30  # of a test, below which scores are doubtful and calibration is not told


def quality_of(scores: Mapping[int, float]) -> Interval:
    """The mean score over seeds, with its interval.

    That of two seeds would be 64 times as wide as they differ, which tells nobody anything: it is
    infinite, as that of one seed.
    """
    quality = interval(list(scores.values()))
    return quality if quality.count > 2 else replace(quality, half=math.inf)


class CurvePoint(NamedTuple):
    """A point of a learning curve."""

    steps: int
    tokens: int
    seconds: float
    score: float


@dataclass(frozen=True)
class RaceRun:
    """One model trained from one seed."""

    seed: int
    score: float
    steps: int
    tokens: int
    seconds: float
    curve: tuple[CurvePoint, ...]
    batches: str  # SHA-256 of all training batches, in order


@dataclass(frozen=True)
class Cost:
    """Costs of a model as points (length, value); empty if not measured."""

    training: tuple[tuple[int, float], ...] = ()  # elements per second
    inference: tuple[tuple[int, float], ...] = ()  # elements per second
    prefill: tuple[tuple[int, float], ...] = ()  # seconds to read that many elements
    decode: tuple[tuple[int, float], ...] = ()  # seconds per element after that many
    memory: tuple[tuple[int, float], ...] = ()  # peak bytes of a training step with batch size 1
    state: tuple[tuple[int, float], ...] = ()  # bytes per stream after that many elements


def longest_common(costs: Sequence[Sequence[tuple[int, float]]]) -> tuple[int, list[float]] | None:
    """The longest length at which all that was measured was, and the values; NaN if unmeasured.

    A model that is too slow or too large at long inputs has no points there, so that the last
    points of two models cannot be compared.
    """
    measured = [dict(points) for points in costs if points]
    shared = set.intersection(*map(set, measured)) if measured else set()
    if not shared:
        return None
    length = max(shared)
    return length, [dict(points).get(length, math.nan) for points in costs]


@dataclass(frozen=True)
class Contender:
    """One of the models: its shape, the results of its runs, and its costs."""

    name: str
    mixer: str
    width: int
    depth: int
    channel: str
    parameters: int
    learning_rate: float
    digest: str  # SHA-256 of the spec
    runs: tuple[RaceRun, ...]
    cost: Cost = Cost()
    other_lengths: tuple[tuple[int, float], ...] = ()  # (length, test score)
    extras: Mapping[str, Any] = field(default_factory=dict)  # of `lab.race.extras`, JSON values
    dropout: float = 0.0
    stopped: bool = False  # whether it got fewer seeds than others, because it was clearly behind

    @property
    def label(self) -> str:
        """The name, marked if the model was stopped early."""
        return f"{self.name} (stopped)" if self.stopped else self.name

    @property
    def scores(self) -> dict[int, float]:
        return {run.seed: run.score for run in self.runs}

    @property
    def quality(self) -> Interval:
        """The mean score over seeds, with its interval."""
        return quality_of(self.scores)

    @property
    def decode_seconds(self) -> float:
        """Seconds per element, at the shortest measured length."""
        return self.cost.decode[0][1] if self.cost.decode else math.nan

    @property
    def training_rate(self) -> float:
        """Elements per second during training."""
        seconds = sum(run.seconds for run in self.runs)
        return sum(run.tokens for run in self.runs) / seconds if seconds else math.nan

    @property
    def seconds(self) -> float:
        """Training time, averaged over seeds."""
        return statistics.fmean(run.seconds for run in self.runs)

    @property
    def running_bytes(self) -> float:
        """Memory to run one stream: the weights, and the state at the shortest measured length."""
        weights = self.extras.get("weight_bytes")
        if weights is None or not self.cost.state:
            return math.nan
        return float(weights + self.cost.state[0][1])


@dataclass(frozen=True)
class BaselineResult:
    """A simple model beside the contenders: its scores, and what it costs."""

    name: str
    results: tuple[tuple[int, float], ...]  # (seed, score)
    fit_seconds: float
    element_seconds: float  # to answer, per element of the input
    extras: Mapping[str, Any] = field(default_factory=dict)  # of `lab.race.extras`, JSON values

    @property
    def label(self) -> str:
        return self.name

    @property
    def scores(self) -> dict[int, float]:
        return dict(self.results)

    @property
    def seconds(self) -> float:
        """Time to fit it."""
        return self.fit_seconds

    @property
    def decode_seconds(self) -> float:
        """Seconds per element, in batches; not a number for one that predicts no element."""
        return self.element_seconds if self.extras.get("predicts", True) else math.nan

    @property
    def running_bytes(self) -> float:
        """Memory of what was fitted."""
        return float(self.extras.get("memory_bytes", math.nan))

    @property
    def quality(self) -> Interval:
        """The mean score over seeds, with its interval."""
        return quality_of(self.scores)


def calibration_error(one: Contender | BaselineResult) -> float:
    """How far probabilities are off; not a number if unknown, or from too few answers."""
    found = one.extras.get("calibration") or {}
    answers = sum(each["n"] for each in found.get("bins", ()))
    if found.get("error") is None or 0 < answers < FEW_EXAMPLES:
        return math.nan
    return float(found["error"])


@dataclass(frozen=True)
class Subject:
    """What the race was about, what all models had in common, and how to reproduce it."""

    title: str
    task: str
    kind: str
    metric: str
    lower: bool
    length: int  # elements of a training sequence
    match: str
    matched: tuple[str, ...]  # what all models had in common, as phrases
    command: str
    time: str
    chance: float | None = None
    resolution: float = 0.0
    tuned: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # warnings of the race itself
    tuning: tuple[str, ...] = ()  # what --tune chose for each model, as phrases
    quantity: str = ""  # what errors are measured in, e.g. the name of a column
    test_examples: int = 0  # 0: unknown
    story: tuple[str, ...] = ()  # paragraphs for newcomers; one in quotation marks is a sample

    @property
    def metric_name(self) -> str:
        return METRICS.get(self.metric, (self.metric, "", "number"))[0]

    @property
    def metric_with_unit(self) -> str:
        """The metric with the unit of its values, where it has one that its name does not say."""
        unit = METRICS.get(self.metric, ("", "", ""))[1]
        if self.quantity:
            return f"{self.metric_name}, units of {self.quantity}"
        return f"{self.metric_name}, {unit}" if self.metric == "loss" else self.metric_name

    @property
    def element(self) -> str:
        """The word for one element of a sequence."""
        return KINDS[self.kind].element if self.kind in KINDS else "element"

    @property
    def unit(self) -> str:
        """The unit of scores: percent or number."""
        return METRICS.get(self.metric, ("", "", "number"))[2]

    @property
    def difference_unit(self) -> str:
        """The unit of a difference of scores, "" if it is unknown."""
        if self.quantity:
            return f"units of {self.quantity}"
        return METRICS.get(self.metric, ("", "", ""))[1]

    def difference(self, value: float, half: float | None = None) -> str:
        """A difference of scores in a sentence, e.g. 0.04 ± 0.01 nats."""
        unit = self.difference_unit
        return f"{self._rounded(value, half, -1.0)}{f' {unit}' if unit else ''}"

    def score(self, value: float, half: float | None = None) -> str:
        """A score with its interval, e.g. 93.1 ± 0.4 %; one that would leave 0–100 % ends there."""
        return f"{self._rounded(value, half)}{' %' if self.unit == 'percent' else ''}"

    def _rounded(self, value: float, half: float | None, least: float = 0.0) -> str:
        """A value with as many digits as its interval, or the size of the test, justifies.

        least: of a share, or of a difference of two shares, which are 1 at most.
        """
        share = self.unit == "percent" and self.metric != "phoneme_error"
        factor = 100 if self.unit == "percent" else 1
        if not half or math.isinf(half):
            return self._of_test(factor * value)
        digits = max(0, 1 - math.floor(math.log10(factor * half)))
        low, high = value - half, value + half
        if share and (low < least or high > 1):
            ends = (f"{factor * min(max(end, least), 1):.{digits}f}" for end in (low, high))
            return f"{factor * value:.{digits}f} [{', '.join(ends)}]"
        return f"{factor * value:.{digits}f} ± {factor * half:.{digits}f}"

    @property
    def few(self) -> bool:
        """Whether the test has so few examples that a score hardly means anything."""
        return 0 < self.test_examples < FEW_EXAMPLES

    def _of_test(self, value: float) -> str:
        """Four digits, or of a share as many as one more right answer would change."""
        if self.unit != "percent" or not self.resolution:
            return f"{value:.4g}"
        digits = max(0, -math.floor(math.log10(100 * self.resolution)))
        rounded = f"{value:.{min(2, digits)}f}"
        return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


@dataclass(frozen=True)
class BestModel:
    """The best sequence model or baseline of a race, as a model folder."""

    name: str
    seed: int
    folder: str
    command: str  # that uses it
    refitted: str = ""  # how long it was trained on all data after the race
