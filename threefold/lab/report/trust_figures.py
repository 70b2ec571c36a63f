"""Figures of what a score does not say: calibration, robustness, and how far back models look."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Guide, Line, Mark, line_chart
from threefold.drawing.text import format_value
from threefold.lab.report.figure_parts import baseline_levels, everything, models, score_axis
from threefold.lab.report.report import BaselineResult, Contender, Report
from threefold.lab.report.results import calibration_error

FEWEST_ANSWERS, FEWEST_SHARE = 5, 0.01  # of a point of a reliability diagram
NO_INFLUENCE = 1e-4  # the lower end of the axis; less is drawn there
REACH = 0.01  # influence from which on an element counts as seen

# By kind of damage: the title of its figure, the title and the unit of its axis.
DAMAGES = {
    "noise": ("Noise", "noise, standard deviations of the input", "number"),
    "gaps": ("Gaps", "missing {element}s", "percent"),
    "rate": ("A lower sampling rate", "sampling rate divided by", "count"),
    "replaced": ("Replaced {element}s", "replaced {element}s", "percent"),
    "deleted": ("Missing {element}s", "missing {element}s", "percent"),
}
DAMAGE_TEXTS = {
    "noise": "Gaussian noise was added to the inputs.",
    "gaps": "At a missing place the last value before it was repeated.",
    "rate": "The elements between those that remain were interpolated.",
    "replaced": "They were replaced by random ones from the same texts.",
    "deleted": "They were left out, and the rest moved together.",
}


def calibration_of(one: Contender | BaselineResult, form: str) -> Any:
    """The calibration of a model or baseline in that form, None if it was not measured."""
    found = one.extras.get("calibration") or {}
    return found if found.get("form") == form else None


def calibration(report: Report) -> Iterator[Figure]:
    """A reliability diagram, or the coverage of the bands of forecasts."""
    yield from _reliability(report)
    yield from _coverage(report)


def _reliability(report: Report) -> Iterator[Figure]:
    lines, errors = [], []
    silent = []
    for series, one in everything(report):
        if found := calibration_of(one, "confidence"):
            lines.append(Line(one.name, series, _reliable_points(found["bins"])))
            if not math.isnan(error := calibration_error(one)):
                errors.append(f"{one.name} {format_value(error, 'percent')}")
        else:
            silent.append(one.name)
    if not any(line.points for line in lines):
        return
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    sparse = [line.name for line in lines if not line.points]
    nothing = _without("Without probabilities", silent)
    nothing += _without("Not drawn, with too few answers of similar probability", sparse)
    listed = f" Expected calibration error: {', '.join(errors)}." if errors else ""
    answer = "next token" if report.subject.kind == "language" else "answer"
    yield line_chart(
        "Reliability",
        f"How often the likeliest {answer} is right, by the probability that the model gives it; "
        f"below the diagonal a model is overconfident.{listed}{nothing}",
        lines,
        Axis("probability of the answer", "percent", at=ticks),
        Axis("share of right answers", "percent", at=ticks),
        guides=[Guide([(0.0, 0.0), (1.0, 1.0)], "")],
    )


def _without(why: str, names: Sequence[str]) -> str:
    """A sentence about those that a figure cannot show."""
    return f" {why}: {', '.join(names)}." if names else ""


def _reliable_points(bins: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """(confidence, accuracy) of the bins with enough answers to say something."""
    fewest = max(FEWEST_ANSWERS, FEWEST_SHARE * sum(b["n"] for b in bins))
    return [(b["confidence"], b["accuracy"]) for b in bins if b["n"] >= fewest]


def _coverage(report: Report) -> Iterator[Figure]:
    lines, totals, nominal = [], [], 0.0
    for series, one in models(report):
        if found := calibration_of(one, "coverage"):
            steps = enumerate(found["by_step"], 1)
            points = [(float(step), value) for step, value in steps if value is not None]
            lines.append(Line(one.name, series, points))
            nominal = found["nominal"]
            totals.append(f"{one.name} {format_value(found['actual'], 'percent')}")
    if not any(line.points for line in lines):
        return
    band = format_value(nominal, "percent")
    longest = max(x for line in lines for x, _ in line.points)
    yield line_chart(
        "Coverage of the forecast bands",
        f"The share of true values inside the band that should contain {band} of them; below the "
        f"dotted line a model is overconfident. Over all steps: {', '.join(totals)}. "
        "The baselines forecast no bands.",
        lines,
        Axis("steps ahead"),
        Axis("share inside the band", "percent"),
        guides=[Guide([(1.0, nominal), (longest, nominal)], "")],
    )


def robustness(report: Report) -> Iterator[Figure]:
    """A curve for each kind of damage, and the scores on longer inputs."""
    element = report.subject.element
    unable = {b.name for b in report.baselines if not b.extras.get("predicts", True)}
    for kind, (title, axis, unit) in DAMAGES.items():
        lines = [
            Line(one.name, series, [(x, y) for x, y in _curve(one, kind) if y is not None])
            for series, one in everything(report)
        ]
        strengths = sorted({x for line in lines for x, _ in line.points})
        text = f"{DAMAGE_TEXTS[kind]} {_best_at_the_end(report, lines)}".strip()
        slow = [line.name for line in lines if not line.points and line.name not in unable]
        if strengths:
            text += _without("Not measured, because it would have taken too long", slow)
        yield line_chart(
            title.format(element=element),
            text,
            lines,
            Axis(axis.format(element=element), unit, at=tuple(strengths)),
            score_axis(report),
        )
    yield _lengths(report)


def _curve(one: Contender | BaselineResult, kind: str) -> Sequence[Sequence[float]]:
    curves: dict[str, Any] = one.extras.get("robustness") or {}
    points: Sequence[Sequence[float]] = curves.get(kind, ())
    return points


def _best_at_the_end(report: Report, lines: Sequence[Line]) -> str:
    """Which model or baseline is best at the strongest damage."""
    ends = {line.name: line.points[-1][1] for line in lines if line.points}
    if len(ends) < 2:
        return ""
    best = (min if report.subject.lower else max)(ends, key=lambda name: ends[name])
    score = format_value(ends[best], report.subject.unit)
    count = report.ranked[0].extras.get("robustness_of")
    among = f" Measured on {count:,} test examples." if count else ""
    return f"Best at the strongest damage: {best} ({score}).{among}"


def _lengths(report: Report) -> Figure:
    lines = [Line(c.name, series, c.other_lengths) for series, c in models(report)]
    lengths = sorted({x for line in lines for x, _ in line.points})
    subject = report.subject
    text = (
        f"Trained on {subject.length:,} {subject.element}s, not trained further; of test examples "
        "that are as long, the fewer the longer they are."
    )
    levels = baseline_levels(report, lines)
    if levels:
        text += f" The level line is {levels[0].name} at the training length."
    return line_chart(
        f"Test {subject.metric_name} at other lengths",
        text,
        [*lines, *levels],
        Axis(f"length, {subject.element}s", "count", True, at=tuple(lengths)),
        score_axis(report),
        [Mark(subject.length, None, "training length")] if lengths else [],
    )


def influence(report: Report) -> Iterator[Figure]:
    """How much one element matters, by its distance from the end."""
    element, lines = report.subject.element, []
    for series, one in everything(report):
        points = [(d, max(value, NO_INFLUENCE)) for d, value in one.extras.get("influence") or ()]
        lines.append(Line(one.name, series, points))
    reaches = [f"{one.name} {reach:,}" for _, one in everything(report) if (reach := reach_of(one))]
    farthest = (
        f"The farthest {element} with an influence of at least {format_value(REACH, 'percent')}: "
        f"{', '.join(reaches)}."
        if reaches
        else ""
    )
    yield line_chart(
        "Influence of the past",
        f"How much the answer changes when one {element} is replaced, against replacing all of "
        f"them; the median over examples. {farthest}".strip(),
        lines,
        Axis(f"distance from the end, {element}s (1 is the newest)", "count", True),
        Axis(f"influence of one {element}", "percent", True),
    )


def reach_of(one: Contender | BaselineResult) -> int:
    """The largest distance at which an element has a notable influence; 0: none, or unknown."""
    points = one.extras.get("influence") or ()
    return max((int(d) for d, value in points if value >= REACH), default=0)
