"""The sections of a report: titles, introductions and figures, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from threefold.drawing.charts import Figure
from threefold.lab.report import cost_figures, quality_figures, trust_figures
from threefold.lab.report.example_views import example_figures
from threefold.lab.report.report import Report


class ReportSection(NamedTuple):
    """A part of the page."""

    slug: str
    title: str
    text: str
    draw: Callable[[Report], Iterator[Figure]]


SECTIONS = (
    ReportSection(
        "quality",
        "Quality",
        "Pale dots are seeds, the marker is their mean, the bar its 99 % confidence interval.",
        quality_figures.quality,
    ),
    ReportSection(
        "price",
        "Quality against cost",
        "Nothing beats those on the Pareto front, drawn as rings or as a dashed line, in quality "
        "and cost together.",
        quality_figures.price,
    ),
    ReportSection(
        "calibration",
        "How sure the models may be",
        "Whether what a model calls likely happens as often as it says.",
        trust_figures.calibration,
    ),
    ReportSection(
        "robustness",
        "When the inputs get worse",
        "The trained models on damaged and on longer inputs, which they have not seen in training.",
        trust_figures.robustness,
    ),
    ReportSection(
        "influence",
        "How far back the models look",
        "If replacing an element does not change the answer, the model does not use that element.",
        trust_figures.influence,
    ),
    ReportSection(
        "examples",
        "The most wrong answers",
        "Where the best model fails; look here for mistakes in the data and for cases that the "
        "training data lack.",
        example_figures,
    ),
    ReportSection(
        "learning",
        "Learning curves",
        "Validation scores by the amount of data and by the training time.",
        quality_figures.learning,
    ),
    ReportSection(
        "speed",
        "Speed",
        "Throughput of training and of inference at growing sequence lengths.",
        cost_figures.speed,
    ),
    ReportSection(
        "streaming",
        "Prefill and decode",
        "The time to read a prompt, and the time per element after it, with batch size 1.",
        cost_figures.streaming,
    ),
    ReportSection(
        "memory",
        "Memory",
        "The peak memory of a training step with batch size 1, and the state of one stream.",
        cost_figures.memory,
    ),
)


def figures(report: Report) -> list[Figure]:
    """All figures for which there are numbers, in the order of the page."""
    return [figure for section in SECTIONS for figure in section_figures(report, section)]


def section_figures(report: Report, section: ReportSection) -> list[Figure]:
    """The figures of one section for which there are numbers."""
    return [figure for figure in section.draw(report) if figure.rows]
