"""The result of a race: the contenders with their numbers, the verdict in a sentence, the warnings.

A report contains numbers only, so it can be rendered again at any time; `page.py` and
`markdown.py` render it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from threefold.drawing.text import format_value
from threefold.lab.race.sequential import InterimLook
from threefold.lab.race.significance import (
    CONFIDENCE,
    Interval,
    Verdict,
    interval,
    paired,
    verdict,
)
from threefold.lab.report.evidence import about_test_set, evidence
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
STILL_LEARNING = 0.1  # share of the whole improvement in the last quarter of training
FEW_STEPS = 100  # below which a race says little
ENOUGH_SEEDS = 5  # from which on intervals are narrow
NOTABLE_SPEEDUP = 1.2  # from which on a difference in speed is mentioned


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
        return interval(list(self.scores.values()))

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


@dataclass(frozen=True)
class BaselineResult:
    """A simple model beside the contenders: its scores, and what it costs."""

    name: str
    results: tuple[tuple[int, float], ...]  # (seed, score)
    fit_seconds: float
    element_seconds: float  # to answer, per element of the input

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
        """Seconds per element, in batches."""
        return self.element_seconds

    @property
    def quality(self) -> Interval:
        """The mean score over seeds, with its interval."""
        return interval(list(self.scores.values()))


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

    @property
    def metric_name(self) -> str:
        return METRICS.get(self.metric, (self.metric, "", "number"))[0]

    @property
    def element(self) -> str:
        """The word for one element of a sequence."""
        return KINDS[self.kind].element if self.kind in KINDS else "element"

    @property
    def unit(self) -> str:
        """The unit of scores: percent or number."""
        return METRICS.get(self.metric, ("", "", "number"))[2]

    def difference(self, value: float, half: float | None = None) -> str:
        """A difference of scores in a sentence, e.g. 0.04 ± 0.01 nats."""
        unit = METRICS.get(self.metric, ("", "", ""))[1]
        return f"{self._rounded(value, half)}{f' {unit}' if unit else ''}"

    def score(self, value: float, half: float | None = None) -> str:
        """A score with its interval, e.g. 93.1 ± 0.4 %."""
        return f"{self._rounded(value, half)}{' %' if self.unit == 'percent' else ''}"

    def _rounded(self, value: float, half: float | None) -> str:
        """A value with as many digits as its interval justifies."""
        factor = 100 if self.unit == "percent" else 1
        if not half or math.isinf(half):
            return f"{factor * value:.4g}"
        if self.unit == "percent" and half >= 1:  # two seeds that differ say nothing
            return f"{factor * value:.0f} ± more than 100"
        digits = max(0, 1 - math.floor(math.log10(factor * half)))
        return f"{factor * value:.{digits}f} ± {factor * half:.{digits}f}"


@dataclass(frozen=True)
class BestModel:
    """The best sequence model of a race, as a model folder."""

    name: str
    seed: int
    folder: str
    command: str  # that uses it
    refitted: str = ""  # how long it was trained on all data after the race


@dataclass(frozen=True)
class Report:
    """A finished race; notebooks display it like the page."""

    subject: Subject
    contenders: tuple[Contender, ...]
    baselines: tuple[BaselineResult, ...] = ()
    looks: tuple[
        InterimLook, ...
    ] = ()  # at the results while the race was under way, and at its end
    # How much better the leader is than each other model, with intervals over the test examples.
    test_margins: Mapping[str, Interval] = field(default_factory=dict)
    best: BestModel | None = None

    @cached_property
    def ranked_baselines(self) -> tuple[BaselineResult, ...]:
        """The baselines, best first."""
        sign = 1 if self.subject.lower else -1
        return tuple(sorted(self.baselines, key=lambda b: (sign * b.quality.mean, b.name)))

    @cached_property
    def ranked(self) -> tuple[Contender, ...]:
        """The contenders, best first."""
        sign = 1 if self.subject.lower else -1
        return tuple(
            sorted(self.contenders, key=lambda c: (-len(c.runs), sign * c.quality.mean, c.name))
        )

    @property
    def everything(self) -> tuple[Contender | BaselineResult, ...]:
        """The contenders, best first, then the baselines."""
        return (*self.ranked, *self.ranked_baselines)

    @cached_property
    def verdict(self) -> Verdict:
        return verdict(
            {c.name: c.scores for c in self.contenders},
            lower=self.subject.lower,
            resolution=self.subject.resolution,
            looks=self.looks,
        )

    @cached_property
    def sentence(self) -> str:
        """The verdict with its uncertainty, the best baseline, and which model decodes faster."""
        models = f"{self._quality_sentence()}{self._speed_sentence()}."
        best = self.ranked_baselines[0] if self.ranked_baselines else None
        if best is None:
            return models
        margin = self.lead_over(best)
        reached = self.subject.score(best.quality.mean, best.quality.half or None)
        if margin.mean > 0 and (margin.settled or math.isinf(margin.half)):
            return f"{models} The best baseline, {best.name}, reaches {reached}."
        leader = self.ranked[0]
        own = self.subject.score(leader.quality.mean, leader.quality.half)
        if margin.mean <= 0 and (margin.settled or math.isinf(margin.half)):
            models = f"Among the models: {models}" if len(self.contenders) > 1 else ""
            first = f"No sequence model beats {best.name} here: it reaches {reached}"
            return f"{first}, {leader.name} {own}. {models}".strip()
        if self._never_better(best):
            return (
                f"{models} The best baseline, {best.name} ({reached}), is better than every run of "
                f"{leader.name} ({own})."
            )
        return (
            f"{models} The best baseline, {best.name} ({reached}), cannot be distinguished from "
            f"{leader.name} ({own})."
        )

    def _never_better(self, baseline: BaselineResult) -> bool:
        """Whether each run of the best model is worse than the baseline with the same seed."""
        sign = 1.0 if self.subject.lower else -1.0
        ours, theirs = self.ranked[0].scores, baseline.scores
        return all(sign * (ours[seed] - theirs[seed]) > 0 for seed in theirs if seed in ours)

    def lead_over(self, baseline: BaselineResult) -> Interval:
        """How much better the best model is than a baseline, seed by seed."""
        sign = -1.0 if self.subject.lower else 1.0
        ours, theirs = (
            {seed: sign * score for seed, score in result.scores.items()}
            for result in (self.ranked[0], baseline)
        )
        return paired(ours, theirs, resolution=self.subject.resolution)

    def _quality_sentence(self) -> str:
        verdict, subject = self.verdict, self.subject
        if verdict.margin is None:
            score = subject.score(self.ranked[0].quality.mean)
            metric = subject.metric_name
            return f"{verdict.leader} reaches {score} ({metric}); no other model took part"
        margin = subject.difference(verdict.margin.mean, verdict.margin.half)
        if verdict.kind == "best":
            return f"{verdict.leader} is best by {margin}"
        lead = f"{verdict.leader} leads {verdict.second} by {margin}"
        if verdict.kind == "tie":
            tied = join_words([verdict.leader, *verdict.rivals])
            return f"A tie: {tied} cannot be distinguished ({lead})"
        return f"{lead}; with one seed it is unknown how much of this is chance"

    def _speed_sentence(self) -> str:
        leader = self.ranked[0]
        rivals = [c for c in self.contenders if c.decode_seconds < math.inf]
        if len(rivals) < 2 or math.isnan(leader.decode_seconds):
            return ""
        fastest = min(rivals, key=lambda c: c.decode_seconds)
        ratio = leader.decode_seconds / fastest.decode_seconds
        if fastest is leader:
            others = sorted(c.decode_seconds for c in rivals if c is not leader)
            faster = others[0] / leader.decode_seconds
            subject = "it also" if self.verdict.kind == "best" else leader.name
            return f"; {subject} decodes fastest" if faster >= NOTABLE_SPEEDUP else ""
        if ratio < NOTABLE_SPEEDUP:
            return ""
        return f"; {fastest.name} decodes {format_value(round(ratio, 1), 'number')} times as fast"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Limitations of the verdict."""
        texts = [*self.subject.notes, *self._about_seeds(), *about_test_set(self)]
        texts += self._about_learning()
        return tuple(dict.fromkeys(texts))

    def _about_seeds(self) -> Iterable[str]:
        seeds = max(len(c.runs) for c in self.contenders)
        if seeds == 1:
            yield (
                "One seed per model: it is unknown how much of a difference is chance; use more "
                "--seeds."
            )
            return
        if self.verdict.kind == "tie" and seeds < ENOUGH_SEEDS:
            yield (
                f"With {seeds} seeds only large differences can be distinguished from chance; more "
                "--seeds narrow the intervals."
            )
        yield from self._about_overlap()

    def _about_overlap(self) -> Iterable[str]:
        """The first model with a run that is better than the worst run of the leader."""
        leader = self.ranked[0]
        worst = max if self.subject.lower else min
        best = min if self.subject.lower else max
        for other in self.ranked[1:]:
            edge, reach = worst(leader.scores.values()), best(other.scores.values())
            if edge != reach and best(edge, reach) == reach:
                yield (
                    f"Seeds overlap: the worst run of {leader.name} is behind the best run of "
                    f"{other.name}."
                )
                return

    def _about_learning(self) -> Iterable[str]:
        subject = self.subject
        steps = min(run.steps for c in self.contenders for run in c.runs)
        if steps < FEW_STEPS:
            plural = "" if steps == 1 else "s"
            yield f"Training was short ({steps} step{plural}); use a longer --time."
        best = self.ranked[0].quality.mean
        if subject.chance is not None and not (
            best < subject.chance if subject.lower else best > subject.chance
        ):
            chance = format_value(subject.chance, subject.unit)
            yield f"No model is better than a baseline that ignores the input ({chance})."
        falling = [c.name for c in self.contenders if still_learning(c)]
        if falling:
            verb = "was" if len(falling) == 1 else "were"
            change = "order may change" if len(self.contenders) > 1 else "score may improve"
            yield (
                f"{join_words(falling)} {verb} still learning at the end; with a longer --time the "
                f"{change}."
            )
        if not subject.tuned and len(self.contenders) > 1:
            yield "All models use the same learning rate; --tune chooses one for each."

    def pareto(self, cost: Mapping[str, float]) -> tuple[str, ...]:
        """Names of models and baselines that no other beats in both quality and cost."""
        sign = 1 if self.subject.lower else -1
        places = {c.name: (sign * c.quality.mean, cost[c.name]) for c in self.everything}
        return tuple(
            name
            for name, mine in places.items()
            if not any(
                all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
                for other in places.values()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; values that are not finite become null."""
        values = {
            "verdict": {"sentence": self.sentence, **asdict(self.verdict)},
            "warnings": list(self.warnings),
            "evidence": list(evidence(self)),
            "looks": [look._asdict() for look in self.looks],
            "test_margins": {name: asdict(m) for name, m in self.test_margins.items()},
            "best": None if self.best is None else asdict(self.best),
            "subject": asdict(self.subject),
            "contenders": [
                {**asdict(c), "quality": asdict(c.quality)} for c in self.ranked
            ],
            "baselines": [
                {**asdict(b), "quality": asdict(b.quality)} for b in self.ranked_baselines
            ],
        }  # fmt: skip
        plain: dict[str, Any] = _plain(values)
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def save(self, folder: Path) -> Path:
        """Write report.html, report.md with its figures, and report.json; returns the page."""
        from threefold.drawing.page import standalone
        from threefold.lab.report.markdown import markdown
        from threefold.lab.report.page import page
        from threefold.lab.report.race_figures import figures

        drawings = folder / "figures"
        drawings.mkdir(parents=True, exist_ok=True)
        for figure in figures(self):
            (drawings / f"{figure.slug}.svg").write_text(standalone(figure), encoding="utf-8")
        (folder / "report.md").write_text(markdown(self), encoding="utf-8")
        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")
        path = folder / "report.html"
        path.write_text(page(self), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        from threefold.lab.report.page import fragment

        return fragment(self)

    def __str__(self) -> str:
        return self.sentence


def still_learning(contender: Contender) -> bool:
    """Whether the last quarter of training brought more than a tenth of the whole improvement."""
    shares = []
    for run in contender.runs:
        if len(run.curve) < 4:
            continue
        first, last = run.curve[0], run.curve[-1]
        before = [p for p in run.curve if p.steps <= 0.75 * last.steps] or [first]
        improvement = last.score - first.score
        if improvement:
            shares.append((last.score - before[-1].score) / improvement)
    return bool(shares) and statistics.fmean(shares) > STILL_LEARNING


def join_words(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


__all__ = [
    "CONFIDENCE",
    "BaselineResult",
    "BestModel",
    "Contender",
    "Cost",
    "CurvePoint",
    "RaceRun",
    "Report",
    "Subject",
]
