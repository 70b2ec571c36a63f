"""The figures of a report: quality, quality against cost, learning curves, speed and memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence

from threefold.drawing.axes import Axis
from threefold.drawing.charts import (
    Dot,
    Figure,
    Line,
    Mark,
    Point,
    Range,
    dot_chart,
    line_chart,
    range_chart,
)
from threefold.drawing.text import format_value
from threefold.lab.report.report import BaselineResult, Contender, Report

# (slug of the section, its title, its introduction)
SECTIONS = (
    (
        "quality",
        "Quality",
        "Pale dots are seeds, the marker is their mean, the bar its 99 % confidence interval.",
    ),
    (
        "price",
        "Quality against cost",
        "Nothing beats those on the dashed line, the Pareto front, in both quality and cost.",
    ),
    (
        "learning",
        "Learning curves",
        "Validation scores by the amount of data and by the training time.",
    ),
    ("speed", "Speed", "Throughput of training and of inference at growing sequence lengths."),
    (
        "streaming",
        "Prefill and decode",
        "The time to read a prompt, and the time per element after it, with batch size 1.",
    ),
    (
        "memory",
        "Memory",
        "The peak memory of a training step with batch size 1, and the state of one stream.",
    ),
    ("lengths", "Longer sequences", "The trained models on sequences longer than in training."),
)


def figures(report: Report) -> list[Figure]:
    """All figures for which there are numbers, in the order of the page."""
    return [figure for section, _, _ in SECTIONS for figure in section_figures(report, section)]


def section_figures(report: Report, section: str) -> list[Figure]:
    """The figures of one section."""
    return [figure for figure in DRAWN[section](report) if figure.rows]


def _score_axis(report: Report) -> Axis:
    subject = report.subject
    better = "low" if subject.lower else "high"
    return Axis(subject.metric_name, subject.unit, better=better)


def _quality(report: Report) -> Iterator[Figure]:
    rows = [
        Range(c.label, series, c.quality.mean, c.quality.half, tuple(c.scores.values()))
        for series, c in enumerate(report.everything)
    ]
    order = f"Mean over seeds, sorted by score: {_listed(report, lambda c: c.quality.mean)}."
    order += " The baselines are listed after the models." if report.baselines else ""
    yield range_chart(
        f"Test {report.subject.metric_name}",
        order,
        rows,
        _score_axis(report),
    )
    yield _differences(report)


def _differences(report: Report) -> Figure:
    """How far each model is behind the first one."""
    leader = report.ranked[0]
    confidence = format_value(report.verdict.corrected, "percent")
    behind = [_behind(report, leader, series) for series in range(1, len(report.ranked))]
    return range_chart(
        f"Difference to {leader.name}",
        f"Differences seed by seed with {confidence} confidence intervals: "
        f"models whose interval includes zero cannot be distinguished from {leader.name}.",
        behind,
        Axis(f"{report.subject.metric_name}, worse by", report.subject.unit),
        zero=True,
    )


def _behind(report: Report, leader: Contender, series: int) -> Range:
    """How much worse a model is than the leader, seed by seed."""
    other, sign = report.ranked[series], 1.0 if report.subject.lower else -1.0
    seeds = sorted(set(leader.scores) & set(other.scores))
    gaps = tuple(sign * (other.scores[seed] - leader.scores[seed]) for seed in seeds)
    margin = report.verdict.margins[other.name]
    return Range(other.label, series, margin.mean, margin.half, gaps)


def _price(report: Report) -> Iterator[Figure]:
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
        priced = {c.name: cost(c) for c in report.everything}
        if not all(0 < price < math.inf for price in priced.values()):
            continue
        front = report.pareto(priced)
        dots = [
            Dot(c.name, series, priced[c.name], c.quality.mean, _finite(c.quality.half))
            for series, c in enumerate(report.everything)
        ]
        text = f"On the Pareto front: {', '.join(front)}."
        yield dot_chart(title, text, dots, front, axis, _score_axis(report))


def _learning(report: Report) -> Iterator[Figure]:
    read = f"{report.subject.element}s read"
    lines = {
        read: (Axis(read, "count", True), 1),
        "training time": (Axis("training time", "seconds", True), 2),
    }
    for name, (axis, field) in lines.items():
        drawn = [
            Line(c.label, series, *_mean_curve(c, field)) for series, c in enumerate(report.ranked)
        ]
        drawn += _best_baseline(report, drawn)
        yield line_chart(
            f"Validation {report.subject.metric_name} by {name}",
            "Mean over seeds; the shaded area is the range of all seeds.",
            drawn,
            axis,
            _score_axis(report),
        )


def _best_baseline(report: Report, lines: Sequence[Line]) -> list[Line]:
    """The test score of the best baseline, as a level line."""
    places = [x for line in lines for x, _ in line.points]
    if not report.baselines or not places:
        return []
    best = report.ranked_baselines[0]
    level = best.quality.mean
    ends = [(min(places), level), (max(places), level)]
    return [Line(best.name, len(report.contenders), ends, note="baseline")]


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


def _speed(report: Report) -> Iterator[Figure]:
    rate = f"{report.subject.element}s per second"
    yield _cost(report, "Training throughput", "training", rate, "count", "high")
    yield _cost(report, "Inference throughput", "inference", rate, "count", "high")


def _streaming(report: Report) -> Iterator[Figure]:
    yield _cost(report, "Prefill time", "prefill", "time to read a prompt", "seconds", "low")
    yield _cost(
        report, "Decode time", "decode", f"time per {report.subject.element}", "seconds", "low"
    )


def _memory(report: Report) -> Iterator[Figure]:
    yield _cost(report, "Peak training memory", "memory", "peak memory", "bytes", "low")
    yield _cost(report, "State size", "state", "state per stream", "bytes", "low")


def _cost(report: Report, title: str, field: str, quantity: str, unit: str, better: str) -> Figure:
    lines = [Line(c.name, series, getattr(c.cost, field)) for series, c in enumerate(report.ranked)]
    lengths = sorted({x for line in lines for x, _ in line.points})
    ends = {line.name: line.points[-1][1] for line in lines if line.points}
    best = (max if better == "high" else min)(ends, key=lambda n: ends[n]) if ends else "none"
    return line_chart(
        title,
        f"Best at the longest length: {best}.",
        lines,
        Axis(f"length, {report.subject.element}s", "count", True, at=tuple(lengths)),
        Axis(quantity, unit, True, better),
    )


def _lengths(report: Report) -> Iterator[Figure]:
    lines = [Line(c.name, series, c.other_lengths) for series, c in enumerate(report.ranked)]
    lengths = sorted({x for line in lines for x, _ in line.points})
    yield line_chart(
        f"Test {report.subject.metric_name} at other lengths",
        f"Trained on {report.subject.length:,} {report.subject.element}s, not trained further.",
        lines,
        Axis(f"length, {report.subject.element}s", "count", True, at=tuple(lengths)),
        _score_axis(report),
        [Mark(report.subject.length, None, "training length")] if lengths else [],
    )


DRAWN: dict[str, Callable[[Report], Iterator[Figure]]] = {
    "quality": _quality,
    "price": _price,
    "learning": _learning,
    "speed": _speed,
    "streaming": _streaming,
    "memory": _memory,
    "lengths": _lengths,
}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _listed(report: Report, value: Callable[[Contender], float]) -> str:
    return ", ".join(
        f"{c.name} {format_value(value(c), report.subject.unit)}" for c in report.ranked
    )
