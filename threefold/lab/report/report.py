"""What a race showed: the contenders with their numbers, the verdict in a sentence, the warnings.

A report is made of numbers alone, so that it is the same whenever it is made; `page.py` and
`markdown.py` write it.
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
from threefold.lab.race.significance import CONFIDENCE, Interval, Verdict, interval, verdict

# A metric's name, its unit in a sentence, and how its values are written.
METRICS = {
    "accuracy": ("accuracy", "points", "percent"),
    "exact": ("rows all right", "points", "percent"),
    "bits": ("bits", "bits", "number"),
    "loss": ("loss", "nats", "number"),
    "squared_error": ("squared error", "", "number"),
    "absolute_error": ("absolute error", "", "number"),
    "bleu": ("BLEU", "points of BLEU", "number"),
    "phoneme_error": ("phonemes wrong", "points", "percent"),
}
FALLING = 0.1  # the part of a curve's fall that its last quarter may have
SHORT = 100  # steps, below which a race says little
ENOUGH = 5  # seeds, from which on intervals are narrow
FASTER = 1.2  # times, from which a speed is worth a word


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
    batches: str  # SHA-256 of what it was trained on, in order


@dataclass(frozen=True)
class Cost:
    """Points (length, value) of what a model costs; empty where it was not measured."""

    training: tuple[tuple[int, float], ...] = ()  # elements a second
    inference: tuple[tuple[int, float], ...] = ()  # elements a second
    prefill: tuple[tuple[int, float], ...] = ()  # seconds to read so many elements
    decode: tuple[tuple[int, float], ...] = ()  # seconds for one element after so many
    memory: tuple[tuple[int, float], ...] = ()  # peak bytes of a training step of one row
    state: tuple[tuple[int, float], ...] = ()  # bytes carried after so many elements


@dataclass(frozen=True)
class Contender:
    """One of the models: what it is, what its runs reached, what it costs."""

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

    @property
    def scores(self) -> dict[int, float]:
        return {run.seed: run.score for run in self.runs}

    @property
    def quality(self) -> Interval:
        """The mean score over seeds, with its interval."""
        return interval(list(self.scores.values()))

    @property
    def decode_seconds(self) -> float:
        """For one element, at the shortest measured context."""
        return self.cost.decode[0][1] if self.cost.decode else math.nan

    @property
    def training_rate(self) -> float:
        """Elements a second while it was trained."""
        seconds = sum(run.seconds for run in self.runs)
        return sum(run.tokens for run in self.runs) / seconds if seconds else math.nan

    @property
    def seconds(self) -> float:
        """Of training, on average over seeds."""
        return statistics.fmean(run.seconds for run in self.runs)


@dataclass(frozen=True)
class Subject:
    """What the race was about, what was held equal, and how it is done again."""

    title: str
    task: str
    kind: str
    metric: str
    lower: bool
    length: int  # elements of a training row
    match: str
    matched: tuple[str, ...]  # what was held equal, in words
    command: str
    time: str
    chance: float | None = None
    resolution: float = 0.0
    tuned: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # warnings that only the race knows of

    @property
    def metric_name(self) -> str:
        return METRICS.get(self.metric, (self.metric, "", "number"))[0]

    @property
    def element(self) -> str:
        """What one element of a sequence is called."""
        return (
            "token" if self.kind in ("language", "masked", "seq2seq", "transformer") else "element"
        )

    @property
    def unit(self) -> str:
        """How scores are written: percent or number."""
        return METRICS.get(self.metric, ("", "", "number"))[2]

    def difference(self, value: float, half: float | None = None) -> str:
        """A difference of scores in a sentence, e.g. 0.04 ± 0.01 nats."""
        unit = METRICS.get(self.metric, ("", "", ""))[1]
        return f"{self._rounded(value, half)}{f' {unit}' if unit else ''}"

    def score(self, value: float, half: float | None = None) -> str:
        """A score with how far it may be off, e.g. 93.1 ± 0.4 %."""
        return f"{self._rounded(value, half)}{' %' if self.unit == 'percent' else ''}"

    def _rounded(self, value: float, half: float | None) -> str:
        """As many digits as are known."""
        factor = 100 if self.unit == "percent" else 1
        if not half or math.isinf(half):
            return f"{factor * value:.4g}"
        digits = max(0, 1 - math.floor(math.log10(factor * half)))
        return f"{factor * value:.{digits}f} ± {factor * half:.{digits}f}"


@dataclass(frozen=True)
class Report:
    """A race that is over; notebooks show it as the page does."""

    subject: Subject
    contenders: tuple[Contender, ...]

    @cached_property
    def ranked(self) -> tuple[Contender, ...]:
        """Best first."""
        sign = 1 if self.subject.lower else -1
        return tuple(sorted(self.contenders, key=lambda c: (sign * c.quality.mean, c.name)))

    @cached_property
    def verdict(self) -> Verdict:
        return verdict(
            {c.name: c.scores for c in self.contenders},
            lower=self.subject.lower,
            resolution=self.subject.resolution,
        )

    @cached_property
    def sentence(self) -> str:
        """The verdict, with its uncertainty and what a rival does faster."""
        return f"{self._quality_sentence()}{self._speed_sentence()}."

    def _quality_sentence(self) -> str:
        found, subject = self.verdict, self.subject
        if found.margin is None:
            score = subject.score(self.ranked[0].quality.mean)
            return f"{found.leader} reaches {score} ({subject.metric_name}); it ran alone"
        margin = subject.difference(found.margin.mean, found.margin.half)
        if found.kind == "best":
            return f"{found.leader} is best by {margin}"
        if found.kind == "tie":
            return (
                f"A tie: {join_words([found.leader, *found.rivals])} cannot be told apart "
                f"({margin})"
            )
        return (
            f"{found.leader} leads {found.second} by {margin}; how much of it is chance is unknown"
        )

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
            return "; it also decodes fastest" if faster >= FASTER else ""
        if ratio < FASTER:
            return ""
        return f"; {fastest.name} decodes {format_value(round(ratio, 1), 'number')} times as fast"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What keeps the verdict from being the last word."""
        found = [*self.subject.notes, *self._about_seeds(), *self._about_learning()]
        return tuple(dict.fromkeys(found))

    def _about_seeds(self) -> Iterable[str]:
        leader = self.ranked[0]
        if min(len(c.runs) for c in self.contenders) == 1:
            yield "One seed each: nothing is known of how much of a difference is chance."
            return
        seeds = min(len(c.runs) for c in self.contenders)
        if self.verdict.kind == "tie" and seeds < ENOUGH:
            yield (
                f"{seeds} seeds tell only large differences from chance; more --seeds narrow the "
                "intervals."
            )
        worst = max if self.subject.lower else min
        best = min if self.subject.lower else max
        for other in self.ranked[1:]:
            edge, reach = worst(leader.scores.values()), best(other.scores.values())
            if edge != reach and best(edge, reach) == reach:
                yield (
                    f"Seeds overlap: the worst of {leader.name} is behind the best of {other.name}."
                )
                return

    def _about_learning(self) -> Iterable[str]:
        subject = self.subject
        steps = min(run.steps for c in self.contenders for run in c.runs)
        if steps < SHORT:
            yield f"Training was short: {steps} steps; give a longer --time."
        best = self.ranked[0].quality.mean
        if subject.chance is not None and not (
            best < subject.chance if subject.lower else best > subject.chance
        ):
            chance = format_value(subject.chance, subject.unit)
            yield f"Nobody is better than an answer that looks at no input ({chance})."
        falling = [c.name for c in self.contenders if still_learning(c)]
        if falling:
            verb = "is" if len(falling) == 1 else "are"
            yield (
                f"Still learning at the end: {join_words(falling)} {verb} not done; with a longer "
                "--time the order may change."
            )
        if not subject.tuned and len(self.contenders) > 1:
            yield "One learning rate for all (--tune chooses one for each)."

    def pareto(self, cost: Mapping[str, float]) -> tuple[str, ...]:
        """Names of those that no other beats in both quality and cost."""
        sign = 1 if self.subject.lower else -1
        places = {c.name: (sign * c.quality.mean, cost[c.name]) for c in self.contenders}
        return tuple(
            name
            for name, mine in places.items()
            if not any(
                all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
                for other in places.values()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; what is infinite or unknown is null."""
        values = {
            "verdict": {"sentence": self.sentence, **asdict(self.verdict)},
            "warnings": list(self.warnings),
            "subject": asdict(self.subject),
            "contenders": [
                {**asdict(c), "quality": asdict(c.quality)} for c in self.ranked
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
    """Whether the last quarter of training brought more than a tenth of all that was learnt."""
    shares = []
    for run in contender.runs:
        if len(run.curve) < 4:
            continue
        first, last = run.curve[0], run.curve[-1]
        before = [m for m in run.curve if m.steps <= 0.75 * last.steps] or [first]
        whole = last.score - first.score
        if whole:
            shares.append((last.score - before[-1].score) / whole)
    return bool(shares) and statistics.fmean(shares) > FALLING


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


__all__ = ["CONFIDENCE", "Contender", "Cost", "CurvePoint", "RaceRun", "Report", "Subject"]
