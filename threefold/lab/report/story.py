"""The story of the demo: what was raced, what the numbers mean, and what to try next."""

from __future__ import annotations

from dataclasses import replace

from threefold.drawing.text import format_count
from threefold.lab.report.recommendation import best_relation
from threefold.lab.report.report import Report
from threefold.lab.report.sentences import join_words

# By baseline: what it is.
NEEDS = {
    "n-grams": "n-grams, which count what follows the last few bytes, need",
    "xz": "xz, a program that compresses files, needs",
}


def is_sample(paragraph: str) -> bool:
    """Whether a paragraph of a story is a text that a model wrote."""
    return paragraph.startswith("“") and paragraph.endswith("”")


def with_story(report: Report, sample: str) -> Report:
    """The report of the demo with its story; sample: a text that the best model wrote."""
    names = join_words([c.name for c in report.ranked])
    size = format_count(float(f"{report.ranked[0].parameters:.2g}"))
    steps = report.ranked[0].runs[0].steps
    story = (
        f"What happened here: {len(report.contenders)} small sequence models ({names}) read the "
        "Python language reference byte by byte, and learnt to predict the next byte from those "
        f"before it. All have about {size} parameters and read the same text in the same order, "
        f"for {steps:,} steps, so what differs is how they remember the past.",
        _scale(report),
        *_why_simple(report),
        f"This is what the best of them, {report.ranked[0].name}, writes after such a short "
        "training:",
        f"“{sample}”",
        "The same page for your own data, a table, a text or a folder of files: threefold compare "
        "YOUR-DATA --time 10m.",
    )
    return replace(report, subject=replace(report.subject, story=story))


def _scale(report: Report) -> str:
    """The score on a scale that everyone knows."""
    best, parts = report.ranked[0], ["8 bits for a byte would be blind guessing"]
    if report.subject.chance is not None:
        parts.append(f"{report.subject.chance:.1f} bits need only the frequency of each byte")
    for simple in report.ranked_baselines:
        needs = NEEDS.get(simple.name, f"{simple.name} needs")
        parts.append(f"{needs} {simple.quality.mean:.1f}")
    parts.append(f"{best.name}, the best model, needs {best.quality.mean:.1f}")
    return (
        "The score counts bits: how many yes-or-no questions it takes on average to find the next "
        f"byte with the help of a model. {'; '.join(parts)}. Fewer is better. Below, bytes are "
        "called tokens, because models of other texts read words or syllables."
    )


def _why_simple(report: Report) -> tuple[str, ...]:
    """What to think of a simple method that is better than the models."""
    if best_relation(report) != "worse":
        return ()
    simple = report.ranked_baselines[0].name
    return (
        f"That {simple} won is no mistake. A text this small is soon counted, while the models "
        "were trained for minutes only; with more text and a longer --time the order may change. "
        "To find out whether a model is worth its cost is what a race is for.",
    )
