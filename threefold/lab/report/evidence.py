"""What a verdict rests on, in sentences: seeds, test examples, looks, models that were stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from threefold.drawing.text import format_value
from threefold.lab.race.significance import CONFIDENCE, Interval, paired
from threefold.lab.report.recommendation import recommended, relation_to
from threefold.lab.report.results import BaselineResult, Subject

if TYPE_CHECKING:
    from threefold.lab.report.report import Report

CLEARLY_MORE = 1.5  # times as uncertain


def evidence(report: Report) -> tuple[str, ...]:
    """The sentences, in the order of the page."""
    parts = (_seeds, _test_set, _baseline, _looks, _stopped)
    return tuple(text for part in parts for text in part(report))


def _seeds(report: Report) -> Iterator[str]:
    verdict, margin = report.verdict, report.verdict.margin
    if margin is None or math.isinf(margin.half):
        return
    if margin.mean == 0 and not margin.telling:
        yield f"Over seeds: the mean scores of {verdict.leader} and {verdict.second} are equal."
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
    if margin.mean == margin.half == 0:
        yield (
            f"Over test examples: {verdict.leader} and {verdict.second} score the same on each of "
            f"{margin.count:,} examples."
        )
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


def _baseline(report: Report) -> Iterator[str]:
    """The gap between the best model and the best baseline, and how far to trust it."""
    best = report.ranked_baselines[0] if report.ranked_baselines else None
    margin = None if best is None else report.baseline_margins.get(best.name)
    if best is None or margin is None:
        return
    leader = report.verdict.leader
    if margin.mean == margin.half == 0:
        yield f"{leader} and {best.name} score the same on each of {margin.count:,} test examples."
        return
    gap = report.subject.difference(abs(margin.mean), margin.half)
    side = "ahead of" if margin.mean >= 0 else "behind"
    yield (
        f"{leader} is {side} the best baseline, {best.name}, by {gap} "
        f"({format_value(margin.confidence, 'percent')} confidence, bootstrap of {margin.count:,} "
        "test examples, with the trained models as they are)."
    )


def about_size(subject: Subject) -> Iterator[str]:
    """A test that is too small to tell good models from lucky ones."""
    if not subject.few:
        return
    plural = "" if subject.test_examples == 1 else "s"
    text = f"The test has only {subject.test_examples} example{plural}"
    if subject.resolution and subject.unit == "percent":
        text += f": one more right answer changes a score by {100 * subject.resolution:.0f} "
        text += "percentage points"
    yield f"{text}. More rows say more; more --seeds or a longer --time do not help here."


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
    chosen = recommended(report)
    if not isinstance(chosen, BaselineResult):
        return (kept,)
    why, saved = "", report.best_baseline
    if relation_to(report, chosen) in ("worse", "never better"):
        why = f" (better by {report.subject.difference(-report.lead_over(chosen).mean)})"
    if saved is None:
        return (f"The baseline {chosen.name} is recommended{why}; it is not saved.", kept)
    fitted = "all data" if saved.refitted else "the training examples"
    first = f"The baseline {chosen.name} is recommended{why}"
    return (f"{first}; fitted to {fitted}, it is in {saved.folder}.", kept)


def use_commands(report: Report) -> tuple[str, ...]:
    """The commands that use the best baseline, if it was saved, and the best sequence model."""
    return tuple(b.command for b in (report.best_baseline, report.best) if b is not None)
