"""A paragraph that needs no statistics: which model, how sure, how much better, what it costs, and
what to do next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from itertools import pairwise

from threefold.drawing.text import format_value
from threefold.lab.report.recommendation import best_relation, recommended, saved_share
from threefold.lab.report.report import BaselineResult, Contender, Report
from threefold.lab.report.results import calibration_error
from threefold.lab.report.sentences import (
    ENOUGH_SEEDS,
    FEW_STEPS,
    join_words,
    still_learning,
)

# By metric: what a score means in words.
MEANINGS = {
    "accuracy": "is right in {} of the test cases",
    "exact": "gets {} of the test sequences entirely right",
    "bits": "needs {} bits to predict one token",
    "loss": "has a loss of {} nats",
    "squared_error": "has a mean squared error of {}",
    "absolute_error": "is off by {} on average",
    "bleu": "reaches {} BLEU points",
    "phoneme_error": "gets {} of the phonemes wrong",
}
# By the relation of the best model to the best baseline: why the baseline is recommended.
WHY_SIMPLE = {
    "worse": "no sequence model beats it here",
    "equal": "the sequence models have added nothing to it",
    "never better": "no sequence model clearly beats it here",
    "unclear": "no sequence model clearly beats it here",
}
NOTABLE = 0.02  # relative improvement that is worth a number
WHOLE_INPUTS = ("classifier", "hierarchical", "regressor", "vision")  # kinds with one answer each
OVERCONFIDENT = 0.05  # calibration error from which on probabilities should not be trusted


def summary(report: Report) -> list[str]:
    """The paragraph, sentence by sentence."""
    chosen = recommended(report)
    sentences = [_which(report, chosen), _cost(report, chosen), *_caution(chosen)]
    sentences += [_how_sure(report), _gap(report, chosen), _next(report, chosen)]
    return [text for text in sentences if text]


def _means(report: Report, one: Contender | BaselineResult) -> str:
    """What the score of a model means."""
    subject, score = report.subject, one.quality.mean
    text = subject.score(score) if subject.unit == "percent" else f"{score:.3g}"
    if subject.metric == "absolute_error" and subject.quantity:
        text = f"{text} units of {subject.quantity}"
    meaning = MEANINGS.get(subject.metric, f"has a {subject.metric_name} of {{}}").format(text)
    count = f"of the {subject.test_examples:,} test" if subject.few else "of the test"
    return meaning.replace("of the test", count)


def _which(report: Report, chosen: Contender | BaselineResult) -> str:
    """The recommendation, against the best of the other sort."""
    leader, relation = report.ranked[0], best_relation(report)
    if isinstance(chosen, BaselineResult):
        return (
            f"Use {chosen.name}, a simple method: {WHY_SIMPLE[relation]}. "
            f"It {_means(report, chosen)}; "
            f"the best sequence model, {leader.name}, {_means(report, leader)}."
        )
    tied = report.verdict.kind == "tie"
    first = f"Use {chosen.name}"
    if tied:
        others = [name for name in (leader.name, *report.verdict.rivals) if name != chosen.name]
        first += f": it is as good as {join_words(others)}, as far as this race can tell"
        first += ", and the fastest of them" if chosen.decode_seconds < math.inf else ""
    else:
        first += ", the best of the models" if len(report.contenders) > 1 else ""
    text = f"{first}. It {_means(report, chosen)}"
    if not report.baselines:
        return f"{text}. No simple method took part."
    best = report.ranked_baselines[0]
    return f"{text}; the best simple method, {best.name}, {_means(report, best)}{_gain(report)}."


def _gain(report: Report) -> str:
    """How much better the best model is than the best baseline, in words."""
    share = saved_share(report, report.ranked_baselines[0])
    what = {"accuracy": "fewer mistakes", "exact": "fewer mistakes", "bits": "fewer bits"}
    if share is None or share < NOTABLE:
        return ""
    return f" ({100 * share:.0f} % {what.get(report.subject.metric, 'less error')})"


def _gap(report: Report, chosen: Contender | BaselineResult) -> str:
    """How much of the lead over the best baseline other test examples would leave."""
    baseline = next(iter(report.ranked_baselines), None)
    margin = None if baseline is None else report.baseline_margins.get(baseline.name)
    if isinstance(chosen, BaselineResult) or baseline is None or margin is None:
        return ""
    low, high = (report.subject.difference(value) for value in (margin.low, margin.high))
    sure = format_value(margin.confidence, "percent")
    return (
        f"On other test examples its lead over {baseline.name} would be between "
        f"{low.split()[0]} and {high} ({sure} confidence)."
        if chosen is report.ranked[0]
        else ""
    )


def _how_sure(report: Report) -> str:
    counts = {len(c.runs) for c in report.contenders}
    seeds = max(counts)
    if seeds == 1:
        return "Each model was trained once only, so the order of the models may be chance."
    sure = format_value(report.verdict.confidence, "percent")
    which = "each model was" if len(counts) == 1 else "the best models were"
    trained = f"{which} trained {'twice' if seeds == 2 else f'{seeds} times'}"
    if report.verdict.kind == "best":
        return f"That {report.verdict.leader} is the best model is {sure} certain: {trained}."
    if report.verdict.kind == "tie":
        return f"The differences among the best models may be chance, although {trained}."
    return f"No other model took part, and {trained}."


def _cost(report: Report, chosen: Contender | BaselineResult) -> str:
    """Time of one element, memory, and time to train."""
    parts = []
    if 0 < chosen.decode_seconds < math.inf:
        parts.append(_answer_time(report, chosen.decode_seconds))
    if 0 < chosen.running_bytes < math.inf:
        parts.append(f"{format_value(chosen.running_bytes, 'bytes')} of memory")
    fitted = "was fitted" if isinstance(chosen, BaselineResult) else "was trained"
    took = format_value(chosen.seconds, "seconds")
    needs = f"It needs {join_words(parts)} on this machine, and" if parts else "It"
    return f"{needs} {fitted} in {took}."


def _answer_time(report: Report, seconds: float) -> str:
    """The time of one element, or of a whole input where that has one answer."""
    subject = report.subject
    if subject.kind not in WHOLE_INPUTS:
        return f"{format_value(seconds, 'seconds')} for each {subject.element}"
    whole = format_value(seconds * subject.length, "seconds")
    return f"{whole} for an input of {subject.length:,} {subject.element}s"


def _caution(chosen: Contender | BaselineResult) -> Iterator[str]:
    """Probabilities that are not to be trusted."""
    found = chosen.extras.get("calibration") or {}
    error = calibration_error(chosen)
    if error >= OVERCONFIDENT:
        off = f"{100 * error:.0f} percentage points"
        yield f"Do not take its probabilities at face value: they are off by {off} on average."
    actual, nominal = found.get("actual"), found.get("nominal")
    if actual is not None and nominal is not None and abs(actual - nominal) >= OVERCONFIDENT:
        yield _about_bands(nominal, actual)


def _about_bands(nominal: float, actual: float) -> str:
    """What it means that bands contain more or less than they should, and what to do."""
    told, true = (format_value(round(value, 2), "percent") for value in (nominal, actual))
    wide = actual > nominal
    return (
        f"Its {told} bands contain {true} of the test values, so they are too "
        f"{'wide: errors are smaller than they suggest' if wide else 'narrow'}; "
        "a longer --time or more data bring them closer."
    )


def _next(report: Report, chosen: Contender | BaselineResult) -> str:
    """What to do next."""
    steps = min(run.steps for c in report.contenders for run in c.runs)
    seeds = min(len(c.runs) for c in report.contenders)
    falling = [c.name for c in report.contenders if still_learning(c)]
    if report.subject.few:
        return (
            f"Next: repeat this with more rows: {report.subject.test_examples} test examples "
            "decide little."
        )
    if steps < FEW_STEPS:
        trained = "1 training step says" if steps == 1 else f"{steps} training steps say"
        return f"Next: repeat this with a longer --time; {trained} little."
    if falling:
        names = join_words(falling)
        verb = "was" if len(falling) == 1 else "were"
        why = f"repeat this with a longer --time, because {names} {verb} still improving."
        if isinstance(chosen, BaselineResult) and report.best_baseline is not None:
            return f"Next: {_use_baseline(report)}; or {why}"
        return f"Next: {why}"
    if isinstance(chosen, BaselineResult):
        return f"Next: {_use_baseline(report)}, or give the models more data or a longer --time."
    if report.verdict.kind != "best" and len(report.contenders) > 1 and seeds < ENOUGH_SEEDS:
        return "Next: if the difference matters to you, repeat this with more --seeds."
    if report.best is not None and report.best.name == chosen.name:
        return f"Next: use it, {report.best.command}; it is in {report.best.folder}."
    return f"Next: train it on all your data, {_train_command(report, chosen)}."


def _use_baseline(report: Report) -> str:
    """How to use the recommended baseline."""
    saved = report.best_baseline
    return "use the simple method" if saved is None else f"use it, {saved.command}"


def _train_command(report: Report, chosen: Contender) -> str:
    """The command that trains the chosen model alone."""
    words = shlex.split(report.subject.command)
    if words[:2] != ["threefold", "compare"]:
        return "with threefold.train"
    given = [b for a, b in pairwise(words) if a == "--set" and b.startswith("data.")]
    sets = [word for setting in given for word in ("--set", setting)]
    command = ["threefold", "train", words[2], "--mixers", chosen.mixer, *sets]
    return f"with `{shlex.join(command)}`"
