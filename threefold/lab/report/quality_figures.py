"""Figures of quality, of quality against cost, and learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, Point, line_chart
from threefold.drawing.ranges import Range, range_chart
from threefold.drawing.scatter import Dot, dot_chart
from threefold.drawing.text import format_value
from threefold.lab.report.figure_parts import (
    baseline_levels,
    everything,
    models,
    score_axis,
)
from threefold.lab.report.report import BaselineResult, Contender, Report


def quality(report: Report) -> Iterator[Figure]:
    """Scores, and differences to the best model."""
    rows = [
        Range(c.label, series, c.quality.mean, c.quality.half, tuple(c.scores.values()))
        for series, c in everything(report)
    ]
    order = f"Mean over seeds, sorted by score: {_listed(report, lambda c: c.quality.mean)}."
    order += " The baselines, in grey, are listed after the models." if report.baselines else ""
    yield range_chart(f"Test {report.subject.metric_name}", order, rows, score_axis(report))
    yield _differences(report)


def _differences(report: Report) -> Figure:
    """How far each model and each baseline is behind the first model."""
    leader = report.ranked[0]
    confidence = format_value(report.verdict.corrected, "percent")
    leads = dict(report.verdict.margins)
    leads |= {baseline.name: report.lead_over(baseline) for baseline in report.baselines}
    margins = {n: (m.mean, m.half if m.telling else math.inf) for n, m in leads.items()}
    behind = [
        Range(c.label, series, *margins[c.name], _gaps(report, c))
        for series, c in everything(report)
        if c.name in margins and c is not leader
    ]
    single = format_value(report.verdict.confidence, "percent")
    if any(math.isfinite(row.half) for row in behind):
        text = (
            f"Differences seed by seed with {confidence} confidence intervals: "
            f"models whose interval includes zero cannot be distinguished from {leader.name}."
        )
        if report.baselines:
            text += f" The intervals of baselines have a confidence of {single}."
    else:
        text = "Differences seed by seed and their mean; too few seeds for confidence intervals."
    unit = report.subject.difference_unit
    title = f"{report.subject.metric_name}, worse by{f', {unit}' if unit else ''}"
    axis = Axis(title, report.subject.unit)
    return range_chart(f"Difference to {leader.name}", text, behind, axis, zero=True)


def _gaps(report: Report, other: Contender | BaselineResult) -> tuple[float, ...]:
    """How much worse another one is than the best model, seed by seed."""
    ours, theirs = report.ranked[0].scores, other.scores
    sign = 1.0 if report.subject.lower else -1.0
    return tuple(sign * (theirs[seed] - ours[seed]) for seed in sorted(set(ours) & set(theirs)))


def price(report: Report) -> Iterator[Figure]:
    """Quality against decode time, training time, and decode time and memory together."""
    yield from _front(report)
    element = report.subject.element
    costs: Sequence[tuple[str, Axis, Callable[[Contender | BaselineResult], float]]] = (
        (
            "Quality and decode time",
            Axis(f"decode time per {element}", "seconds", True, "low"),
            lambda c: c.decode_seconds,
        ),
        (
            "Quality and training time",
            Axis("training time", "seconds", True, "low"),
            lambda c: c.seconds,
        ),
    )
    for title, axis, cost in costs:
        priced = _prices(report, cost)
        if len(priced) < 2:
            continue
        front = report.pareto(priced)
        dots = [
            Dot(c.name, series, priced[c.name], c.quality.mean, _finite(c.quality.half))
            for series, c in everything(report)
            if c.name in priced
        ]
        text = f"On the Pareto front: {', '.join(front)}."
        yield dot_chart(title, text, dots, front, axis, score_axis(report))


def _front(report: Report) -> Iterator[Figure]:
    """Quality, the time of one element and memory in one figure."""
    times = _prices(report, lambda c: c.decode_seconds)
    sizes = _prices(report, lambda c: c.running_bytes)
    chosen = [(s, c) for s, c in everything(report) if c.name in times and c.name in sizes]
    if len(chosen) < 2:
        return
    front = report.pareto(times, sizes)
    dots = [Dot(c.name, s, times[c.name], c.quality.mean, size=sizes[c.name]) for s, c in chosen]
    listed = ", ".join(f"{name} ({format_value(sizes[name], 'bytes')})" for name in front)
    text = (
        "The larger a bubble, the more memory one stream needs for weights and state. Nothing "
        f"beats those with a ring in quality, time and memory together: {listed}."
    )
    element = report.subject.element
    yield dot_chart(
        "Quality, time and memory",
        text,
        dots,
        front,
        Axis(f"decode time per {element}", "seconds", True, "low"),
        score_axis(report),
        Axis("memory of one stream", "bytes"),
    )


def _prices(
    report: Report, cost: Callable[[Contender | BaselineResult], float]
) -> dict[str, float]:
    """The costs that are known and positive, by name."""
    priced = {c.name: cost(c) for c in report.everything}
    return {name: value for name, value in priced.items() if 0 < value < math.inf}


def learning(report: Report) -> Iterator[Figure]:
    """Validation scores by elements read and by time."""
    read = f"{report.subject.element}s read"
    lines = {
        read: (Axis(read, "count", True), 1),
        "training time": (Axis("training time", "seconds", True), 2),
    }
    for name, (axis, field) in lines.items():
        drawn = [Line(c.label, series, *_mean_curve(c, field)) for series, c in models(report)]
        drawn += baseline_levels(report, drawn)
        yield line_chart(
            f"Validation {report.subject.metric_name} by {name}",
            _learning_text(report),
            drawn,
            axis,
            score_axis(report),
        )


def _learning_text(report: Report) -> str:
    text = "Mean over seeds; the shaded area is the range of all seeds."
    if not report.baselines:
        return text
    return f"{text} The level line is the test score of {report.ranked_baselines[0].name}."


def _mean_curve(
    contender: Contender, field: int
) -> tuple[list[Point], list[tuple[float, float, float]]]:
    """The mean curve over seeds, at the points that all of them have, and its range."""
    shared = list(zip(*(run.curve for run in contender.runs), strict=False))
    points, band = [], []
    for at in shared:
        x = statistics.fmean(point[field] for point in at)
        scores = [point.score for point in at]
        points.append((x, statistics.fmean(scores)))
        band.append((x, min(scores), max(scores)))
    return points, band if len(contender.runs) > 1 else []


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _listed(report: Report, value: Callable[[Contender], float]) -> str:
    return ", ".join(
        f"{c.name} {format_value(value(c), report.subject.unit)}" for c in report.ranked
    )
