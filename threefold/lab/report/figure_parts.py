"""What the figures of a report have in common: axes, the number of each series, level lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from threefold.drawing.axes import Axis
from threefold.drawing.charts import Line
from threefold.drawing.series_style import BASELINE
from threefold.lab.report.report import BaselineResult, Contender, Report


def score_axis(report: Report) -> Axis:
    """The axis of the task's metric."""
    subject = report.subject
    better = "low" if subject.lower else "high"
    least = -math.inf if subject.metric == "loss" else 0.0  # a density may be above 1
    return Axis(subject.metric_with_unit, subject.unit, better=better, least=least)


def models(report: Report) -> Iterator[tuple[int, Contender]]:
    """The contenders with the numbers of their series, best first."""
    yield from enumerate(report.ranked)


def baselines(report: Report) -> Iterator[tuple[int, BaselineResult]]:
    """The baselines with the numbers of their series, best first."""
    yield from enumerate(report.ranked_baselines, BASELINE)


def everything(report: Report) -> list[tuple[int, Contender | BaselineResult]]:
    """Contenders and baselines with the numbers of their series."""
    return [*models(report), *baselines(report)]


def baseline_levels(report: Report, lines: Sequence[Line]) -> list[Line]:
    """The test score of the best baseline, as a level line under others."""
    places = [x for line in lines for x, _ in line.points]
    if not report.baselines or not places:
        return []
    series, best = next(baselines(report))
    level = best.quality.mean
    return [Line(best.name, series, [(min(places), level), (max(places), level)])]
