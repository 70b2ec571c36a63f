"""Figures of speed and memory at growing lengths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Figure, Line, line_chart
from threefold.lab.report.figure_parts import baselines, models
from threefold.lab.report.report import BaselineResult, Report
from threefold.lab.report.results import longest_common


def speed(report: Report) -> Iterator[Figure]:
    """Throughput of training and inference."""
    rate = f"{report.subject.element}s per second"
    yield _cost(report, "Training throughput", "training", rate, "count", "high")
    yield _cost(report, "Inference throughput", "inference", rate, "count", "high")


def streaming(report: Report) -> Iterator[Figure]:
    """The time to read a prompt, and of each element after it."""
    yield _cost(report, "Prefill time", "prefill", "time to read a prompt", "seconds", "low")
    yield _cost(
        report, "Decode time", "decode", f"time per {report.subject.element}", "seconds", "low"
    )


def memory(report: Report) -> Iterator[Figure]:
    """Memory of training, and of the state."""
    yield _cost(report, "Peak training memory", "memory", "peak memory", "bytes", "low")
    yield _cost(report, "State size", "state", "state per stream", "bytes", "low")


def _cost(report: Report, title: str, field: str, quantity: str, unit: str, better: str) -> Figure:
    lines = [Line(c.name, series, getattr(c.cost, field)) for series, c in models(report)]
    text = _best_at(lines, better, f"{report.subject.element}s")
    simple = _baseline_points(report, BASELINE_COSTS[field]) if field in BASELINE_COSTS else []
    if simple and text:
        lines += simple
        text += " Baselines are single points at the length of the data, measured in batches."
    lengths = sorted({x for line in lines for x, _ in line.points})
    return line_chart(
        title,
        text,
        lines,
        Axis(f"length, {report.subject.element}s", "count", True, at=tuple(lengths)),
        Axis(quantity, unit, True, better),
    )


def _best_at(lines: Sequence[Line], better: str, elements: str) -> str:
    """Which model is best at the longest length at which all were measured."""
    measured = [line for line in lines if line.points]
    found = longest_common([[(int(x), y) for x, y in line.points] for line in measured])
    if found is None:
        return "The models were measured at different lengths." if measured else ""
    length, values = found
    best = (max if better == "high" else min)(values)
    names = [line.name for line, value in zip(measured, values, strict=True) if value == best]
    return f"Best model at {length:,} {elements}: {names[0]}." if len(names) == 1 else EQUAL


EQUAL = "At the longest length that all have, several models are equal and best."


# The costs that are also known of baselines.
BASELINE_COSTS: dict[str, Callable[[BaselineResult], float]] = {
    "inference": lambda b: 1 / b.decode_seconds,
    "decode": lambda b: b.decode_seconds,
}


def _baseline_points(report: Report, cost: Callable[[BaselineResult], float]) -> list[Line]:
    known = [(series, b.name, cost(b)) for series, b in baselines(report)]
    return [
        Line(name, series, [(report.subject.length, value)])
        for series, name, value in known
        if 0 < value < math.inf
    ]
