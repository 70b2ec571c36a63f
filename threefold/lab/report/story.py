"""The story of the demo: what was raced, what the numbers mean, and what to try next."""

from __future__ import annotations

from dataclasses import replace

from threefold.drawing.text import format_count
from threefold.lab.report.report import Report
from threefold.lab.report.sentences import join_words


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
    parts += [f"{b.name} reaches {b.quality.mean:.1f}" for b in report.ranked_baselines]
    parts.append(f"{best.name} {best.quality.mean:.1f}")
    return (
        "The score counts bits: how many yes-or-no questions it takes on average to find the next "
        f"byte with the help of a model. {'; '.join(parts)}. Fewer is better."
    )
