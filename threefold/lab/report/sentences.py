"""The verdict of a race in a sentence, and its limitations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from threefold.drawing.text import format_value
from threefold.lab.race.significance import Interval
from threefold.lab.report.evidence import about_size, about_test_set
from threefold.lab.report.recommendation import relation_to
from threefold.lab.report.results import Contender

if TYPE_CHECKING:
    from threefold.lab.report.report import Report

STILL_LEARNING = 0.1  # share of the whole improvement in the last quarter of training
FEW_STEPS = 100  # below which a race says little
ENOUGH_SEEDS = 5  # from which on intervals are narrow
TIE = "A tie: "
# By metric: a score in a sentence; shares have their own sign.
REACHED = {
    "bits": "{} bits per token",
    "loss": "a loss of {} nats",
    "squared_error": "a squared error of {}",
    "absolute_error": "an absolute error of {}",
    "bleu": "{} BLEU points",
}
NOTABLE_SPEEDUP = 1.2  # from which on a difference in speed is mentioned


def verdict_sentence(report: Report) -> str:
    """The verdict with its uncertainty, the best baseline, and which model decodes faster."""
    models = f"{_quality_sentence(report)}{_speed_sentence(report)}."
    best = report.ranked_baselines[0] if report.ranked_baselines else None
    if best is None:
        return models
    leader, relation = report.ranked[0], relation_to(report, best)
    reached = report.subject.score(best.quality.mean, best.quality.half or None)
    own = report.subject.score(leader.quality.mean, leader.quality.half)
    if relation == "better":
        return f"{models} The best baseline, {best.name}, reaches {reached}."
    if relation == "worse":
        models = (
            f"Among the models, {models.removeprefix(TIE)}" if len(report.contenders) > 1 else ""
        )
        reached = REACHED.get(report.subject.metric, "{}").format(reached)
        first = f"No sequence model beats {best.name} here: it reaches {reached}"
        return f"{first}, {leader.name} {own}. {models}".strip()
    if relation == "equal":
        return (
            f"{models} A simple method, {best.name} ({reached}), is as good as {leader.name} "
            f"({own})."
        )
    if relation == "never better":
        return (
            f"{models} The best baseline, {best.name} ({reached}), is better than every run of "
            f"{leader.name} ({own})."
        )
    return (
        f"{models} The best baseline, {best.name} ({reached}), cannot be distinguished from "
        f"{leader.name} ({own})."
    )


def _quality_sentence(report: Report) -> str:
    verdict, subject = report.verdict, report.subject
    if verdict.margin is None:
        score = subject.score(report.ranked[0].quality.mean)
        metric = subject.metric_name
        return f"{verdict.leader} reaches {score} ({metric}); no other model took part"
    margin = subject.difference(verdict.margin.mean, verdict.margin.half)
    if verdict.kind == "best":
        return f"{verdict.leader} is best by {margin}"
    lead = lead_sentence(report, verdict.margin)
    if verdict.kind == "tie":
        tied = join_words([verdict.leader, *verdict.rivals])
        return f"{TIE}{tied} cannot be distinguished ({lead})"
    return f"{lead}; with one seed it is unknown how much of this is chance"


def lead_sentence(report: Report, margin: Interval) -> str:
    """By how much the leader leads the runner-up, with the uncertainty if that says something."""
    verdict, subject = report.verdict, report.subject
    who = f"{verdict.leader} leads {verdict.second} by"
    if margin.mean == margin.half == 0:
        return "their scores are equal"
    if margin.telling or math.isinf(margin.half):
        return f"{who} {subject.difference(margin.mean, margin.half)}"
    if margin.mean == 0:
        return "their mean scores are equal; two seeds are too few to tell"
    return f"{who} {subject.difference(margin.mean)}; two seeds are too few to tell"


def _speed_sentence(report: Report) -> str:
    leader = report.ranked[0]
    rivals = [c for c in report.contenders if c.decode_seconds < math.inf]
    if len(rivals) < 2 or math.isnan(leader.decode_seconds):
        return ""
    fastest = min(rivals, key=lambda c: c.decode_seconds)
    ratio = leader.decode_seconds / fastest.decode_seconds
    if fastest is leader:
        others = sorted(c.decode_seconds for c in rivals if c is not leader)
        faster = others[0] / leader.decode_seconds
        subject = "it also" if report.verdict.kind == "best" else leader.name
        return f"; {subject} decodes fastest" if faster >= NOTABLE_SPEEDUP else ""
    if ratio < NOTABLE_SPEEDUP:
        return ""
    return f"; {fastest.name} decodes {format_value(round(ratio, 1), 'number')} times as fast"


def limitations(report: Report) -> tuple[str, ...]:
    """Limitations of the verdict."""
    texts = [*report.subject.notes, *about_size(report.subject)]
    texts += [*_about_seeds(report), *about_test_set(report)]
    texts += _about_learning(report)
    return tuple(dict.fromkeys(texts))


def _about_seeds(report: Report) -> Iterable[str]:
    seeds = max(len(c.runs) for c in report.contenders)
    if seeds == 1:
        yield (
            "One seed per model: it is unknown how much of a difference is chance; use more "
            "--seeds."
        )
        return
    if report.verdict.kind == "tie" and seeds < ENOUGH_SEEDS:
        yield (
            f"With {seeds} seeds only large differences can be distinguished from chance; more "
            "--seeds narrow the intervals."
            if seeds > 2
            else "Two seeds are too few to distinguish any but very large differences from chance; "
            "use three or more --seeds."
        )
    yield from _about_overlap(report)


def _about_overlap(report: Report) -> Iterable[str]:
    """The first model with a run that is better than the worst run of the leader."""
    leader = report.ranked[0]
    worst = max if report.subject.lower else min
    best = min if report.subject.lower else max
    for other in report.ranked[1:]:
        edge, reach = worst(leader.scores.values()), best(other.scores.values())
        if edge != reach and best(edge, reach) == reach:
            yield (
                f"Seeds overlap: the worst run of {leader.name} is behind the best run of "
                f"{other.name}."
            )
            return


def _about_learning(report: Report) -> Iterable[str]:
    subject = report.subject
    steps = min(run.steps for c in report.contenders for run in c.runs)
    if steps < FEW_STEPS:
        plural = "" if steps == 1 else "s"
        yield f"Training was short ({steps} step{plural}); use a longer --time."
    best = report.ranked[0].quality.mean
    if subject.chance is not None and not (
        best < subject.chance if subject.lower else best > subject.chance
    ):
        chance = format_value(subject.chance, subject.unit)
        yield f"No model is better than a baseline that ignores the input ({chance})."
    falling = [c.name for c in report.contenders if still_learning(c)]
    if falling:
        verb = "was" if len(falling) == 1 else "were"
        change = "order may change" if len(report.contenders) > 1 else "score may improve"
        yield (
            f"{join_words(falling)} {verb} still learning at the end; with a longer --time the "
            f"{change}."
        )
    if not subject.tuned and len(report.contenders) > 1:
        yield "All models use the same learning rate; --tune chooses one for each."


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
