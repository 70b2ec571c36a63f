"""What a verdict rests on, in sentences: seeds, test examples, looks, models that were stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from threefold.drawing.text import format_value
from threefold.lab.race.significance import CONFIDENCE, Interval, paired

if TYPE_CHECKING:
    from threefold.lab.report.report import Report

CLEARLY_MORE = 1.5  # times as uncertain


def evidence(report: Report) -> tuple[str, ...]:
    """The sentences, in the order of the page."""
    parts = (_seeds, _test_set, _looks, _stopped)
    return tuple(text for part in parts for text in part(report))


def _seeds(report: Report) -> Iterator[str]:
    verdict, margin = report.verdict, report.verdict.margin
    if margin is None or math.isinf(margin.half):
        return
    if not margin.telling:
        lead = report.subject.difference(margin.mean)
        yield (
            f"Over seeds: {verdict.leader} leads {verdict.second} by {lead} on average; two seeds "
            "are too few to tell how much of it is chance."
        )
        return
    lead = report.subject.difference(margin.mean, margin.half)
    confidence = format_value(margin.confidence, "percent")
    yield (
        f"Over seeds: {verdict.leader} leads {verdict.second} by {lead} ({confidence} confidence, "
        f"{margin.count} seeds)."
    )


def _test_set(report: Report) -> Iterator[str]:
    verdict = report.verdict
    margin = report.test_margins.get(verdict.second)
    if margin is None:
        return
    lead = report.subject.difference(margin.mean, margin.half)
    yield (
        f"Over test examples: {lead} ({format_value(margin.confidence, 'percent')} confidence, "
        f"bootstrap of {margin.count:,} examples, with the trained models as they are)."
    )
    scores = [c.scores for c in report.ranked[:2]]
    seeds = paired(scores[0], scores[1], CONFIDENCE)
    if not seeds.telling or math.isinf(seeds.half) or min(seeds.half, margin.half) == 0:
        return
    if seeds.half > CLEARLY_MORE * margin.half:
        yield "Most of the uncertainty comes from the seeds: more --seeds narrow it."
    elif margin.half > CLEARLY_MORE * seeds.half:
        yield "Most of the uncertainty comes from the test set: more test data narrow it."
    else:
        yield "Seeds and test examples contribute about as much to the uncertainty."


def about_test_set(report: Report) -> Iterator[str]:
    """A winner whose lead is within what another test set would change."""
    if report.verdict.kind != "best":
        return
    near = [name for name, margin in report.test_margins.items() if not margin.positive]
    if near:
        names = " and ".join([", ".join(near[:-1]), near[-1]] if len(near) > 1 else near)
        yield (
            f"The lead over {names} holds for other seeds, but on other test examples of this "
            "number it may vanish."
        )


def _looks(report: Report) -> Iterator[str]:
    looks = report.looks
    if len(looks) < 2:
        return
    counts = [str(look.seeds) for look in looks]
    after = f"{', '.join(counts[:-1])} and {counts[-1]}"
    ended = "all planned seeds were trained"
    if looks[-1].spent < 1:
        clear = report.verdict.kind == "best"
        ended = "the verdict was clear" if clear else "all other models had been stopped"
    yield (
        f"The results were looked at after {after} seeds; the race ended when {ended}. All looks "
        "together mislead in at most "
        f"{format_value(1 - report.verdict.confidence, 'percent')} of races of equal models."
    )


def _stopped(report: Report) -> Iterator[str]:
    for contender in report.ranked:
        margin = report.verdict.margins.get(contender.name)
        if contender.stopped and margin is not None:
            yield _stopped_sentence(report, contender.name, len(contender.runs), margin)


def _stopped_sentence(report: Report, name: str, seeds: int, margin: Interval) -> str:
    leader = report.verdict.leader
    gap = report.subject.difference(margin.mean, margin.half if margin.telling else None)
    sure = (
        f"it is worse than {leader} by {gap}"
        if margin.positive
        else f"its distance from {leader}, {gap}, is not certain"
    )
    return (
        f"{name} was stopped after {seeds} seeds, because it was clearly behind the leader then; "
        f"{sure}."
    )


def best_lines(report: Report) -> tuple[str, ...]:
    """Where the best model is, and a baseline that is better; `use_commands` use them."""
    best = report.best
    if best is None:
        return ()
    trained = (
        f", trained on all data for {best.refitted} after the race"
        if best.refitted
        else f" (seed {best.seed}, the run with the lowest validation loss)"
    )
    kept = f"The best sequence model, {best.name}{trained}, is in {best.folder}."
    baseline = report.ranked_baselines[0] if report.ranked_baselines else None
    if baseline is None or (margin := report.lead_over(baseline)).mean >= 0:
        return (kept,)
    gap = report.subject.difference(-margin.mean)
    better = f"The baseline {baseline.name} is better by {gap}"
    saved = report.best_baseline
    if saved is None:
        return (f"{better}; it is not saved. {kept}",)
    fitted = "all data" if saved.refitted else "the training examples"
    return (f"{better}; fitted to {fitted}, it is in {saved.folder}. {kept}",)


def use_commands(report: Report) -> tuple[str, ...]:
    """The commands that use the best baseline, if it was saved, and the best sequence model."""
    return tuple(b.command for b in (report.best_baseline, report.best) if b is not None)
