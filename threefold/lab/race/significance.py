"""mean ± t_{(1+c)/2, n−1} · s/√n:  confidence intervals over n seeds, and the verdict of a race.

Models are compared seed by seed, because each seed gives all of them the same batches in the same
order.  The residual after subtracting the means of models and seeds is chance; its variance is
pooled over the k models (a randomised block design, (k−1)(n−1) degrees of freedom), and it is never
taken to be less than what the two compared models show.  A model is called best only if it beats
every other one; each comparison uses a confidence of 1 − 0.01 · 2/k for k models, so that equally
good models get a winner by chance in at most 1 race in 100 (the intersection of k − 1 tests, for
any of the k models that may lead).  A race with several looks spends this error over them
(`sequential.py`); a model that was stopped after n seeds is compared over these, at the level of
the look after n seeds.

Student 1908, "The Probable Error of a Mean"; Fisher 1935, "The Design of Experiments"; Berger
1982, "Multiparameter Hypothesis Testing and Acceptance Sampling".
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from threefold.errors import ThreefoldError
from threefold.lab.race.sequential import InterimLook, levels

CONFIDENCE = 0.99


@dataclass(frozen=True)
class Interval:
    """A mean with the half-width of its interval, which is infinite for a single value."""

    mean: float
    half: float
    count: int
    confidence: float

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def settled(self) -> bool:
        """Whether the interval excludes zero."""
        return abs(self.mean) > self.half

    @property
    def telling(self) -> bool:
        """Whether the interval of a difference is worth reading: of two seeds if it is clear."""
        return self.count > 2 or self.settled

    @property
    def positive(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.mean > self.half


@dataclass(frozen=True)
class Verdict:
    """Which model is best, and which ones cannot be distinguished from it.

    kind: best (one beats all others), tie (the leader cannot be distinguished from its `rivals`),
    or unknown (one seed each: the influence of chance is unknown).
    """

    kind: str
    leader: str
    rivals: tuple[str, ...]  # the others in a tie, nearest first
    second: str  # the runner-up; "" if there is none
    margin: Interval | None  # of the leader over the runner-up; positive: the leader is better
    margins: Mapping[str, Interval]  # of the leader over each other model
    confidence: float
    corrected: float  # of each single comparison, at the last look


def interval(
    values: Sequence[float], confidence: float = CONFIDENCE, resolution: float = 0.0
) -> Interval:
    """The mean of independent values with its t interval; resolution: of differences of scores."""
    if not values or not all(map(math.isfinite, values)):
        raise ThreefoldError(f"an interval of {list(values)}: expected one or more finite numbers")
    if len(values) == 1:
        return Interval(float(values[0]), math.inf, 1, confidence)
    variance = max(statistics.variance(values), rounding_variance(resolution))
    error = math.sqrt(variance / len(values))
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * error
    return Interval(statistics.fmean(values), max(half, resolution), len(values), confidence)


def paired(
    first: Mapping[int, float],
    second: Mapping[int, float],
    confidence: float = CONFIDENCE,
    resolution: float = 0.0,
) -> Interval:
    """first − second, seed by seed."""
    shared = sorted(set(first) & set(second))
    if not shared:
        raise ThreefoldError(f"no seed in common: {sorted(first)} and {sorted(second)}")
    return interval([first[seed] - second[seed] for seed in shared], confidence, resolution)


def verdict(
    scores: Mapping[str, Mapping[int, float]],
    *,
    lower: bool,
    confidence: float = CONFIDENCE,
    resolution: float = 0.0,
    looks: Sequence[InterimLook] = (),
) -> Verdict:
    """The verdict on scores by name and seed; `lower`: whether lower scores are better.

    `resolution` is the smallest difference that the evaluation can resolve, `looks` are all looks
    at this race so far.  A model with fewer seeds than others was stopped early and never leads.
    """
    if not scores:
        raise ThreefoldError("a verdict needs at least one model with a score")
    sign = -1.0 if lower else 1.0
    better = {
        name: {seed: sign * value for seed, value in by_seed.items()}
        for name, by_seed in scores.items()
    }
    # Equal scores by name, as a report ranks them.
    ranked = sorted(
        better,
        key=lambda name: (-len(better[name]), -statistics.fmean(better[name].values()), name),
    )
    leader, others = ranked[0], ranked[1:]
    error = (1 - confidence) * min(1.0, 2 / len(ranked))
    by_seeds = confidences(looks, error)
    corrected = by_seeds.get(len(better[leader]), 1 - error)
    if not others:
        return Verdict("unknown", leader, (), "", None, {}, confidence, corrected)
    margins = {
        name: compared(better, leader, name, by_seeds.get(len(better[name]), 1 - error), resolution)
        for name in others
    }
    # Over the few seeds of a stopped model, the leader may even be behind it.
    near = tuple(name for name in others if not margins[name].positive)
    single = any(math.isinf(margin.half) for margin in margins.values())
    kind = "unknown" if single else ("tie" if near else "best")
    second = others[0]
    return Verdict(kind, leader, near, second, margins[second], margins, confidence, corrected)


def confidences(looks: Sequence[InterimLook], error: float) -> dict[int, float]:
    """The confidence of a comparison over this many seeds, by seeds."""
    found = levels(looks, error)
    return {look.seeds: 1 - level for look, level in zip(looks, found, strict=True)}


def compared(
    scores: Mapping[str, Mapping[int, float]],
    first: str,
    second: str,
    confidence: float,
    resolution: float,
) -> Interval:
    """first − second, seed by seed, with the variance pooled over all models with these seeds."""
    if confidence >= 1:  # a look that is too early to tell anything
        difference = paired(scores[first], scores[second])
        return Interval(difference.mean, math.inf, difference.count, 1.0)
    difference = paired(scores[first], scores[second], confidence, resolution)
    seeds = sorted(set(scores[first]) & set(scores[second]))
    shared = [
        {seed: by_seed[seed] for seed in seeds}
        for by_seed in scores.values()
        if by_seed.keys() >= set(seeds)
    ]
    if difference.count < 2:
        return difference
    freedom = (len(shared) - 1) * (difference.count - 1)
    gaps = [scores[first][seed] - scores[second][seed] for seed in seeds]
    variance = max(2 * residual_variance(shared), statistics.variance(gaps))
    variance = max(variance, rounding_variance(resolution))
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(variance / difference.count)
    return Interval(difference.mean, max(half, resolution), difference.count, confidence)


def rounding_variance(resolution: float) -> float:
    """Of the difference of two scores that are multiples of the resolution.

    Without it, two seeds whose differences happen to be equal would seem to be free of chance.
    """
    return resolution**2 / 6


def residual_variance(scores: Sequence[Mapping[int, float]]) -> float:
    """Unexplained by model and seed: Σ (x − x̄_model − x̄_seed + x̄)² / (k−1)(n−1)."""
    seeds = sorted(scores[0])
    models = [statistics.fmean(by_seed.values()) for by_seed in scores]
    means = {seed: statistics.fmean(by_seed[seed] for by_seed in scores) for seed in seeds}
    overall = statistics.fmean(models)
    squares = [
        (by_seed[seed] - model - means[seed] + overall) ** 2
        for by_seed, model in zip(scores, models, strict=True)
        for seed in seeds
    ]
    return sum(squares) / ((len(scores) - 1) * (len(seeds) - 1))


@lru_cache
def t_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t distribution with `freedom` degrees of freedom."""
    if not 0.5 <= probability < 1 or freedom < 1:
        raise ThreefoldError(
            f"t quantile of probability {probability} with {freedom} degrees of freedom; expected "
            "from 0.5 to below 1, and at least 1"
        )
    low, high = 0.0, 1.0
    while t_distribution(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if t_distribution(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(value: float, freedom: int) -> float:
    """P(T ≤ value), by the finite sums for whole degrees of freedom.

    Abramowitz & Stegun 1964, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    angle = math.atan2(value, math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2 == 1
    term = total = cosine if odd else 1.0
    if freedom == 1:
        total = 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    inside = math.sin(angle) * total
    share = 2 / math.pi * (angle + inside) if odd else inside
    return 0.5 + 0.5 * share
