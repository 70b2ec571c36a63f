"""Which model a race recommends: the best sequence model, or a simple method that costs less.

A sequence model has to earn its cost: a simple method that it does not beat clearly, over seeds and
over test examples, or only by a trifle, is recommended instead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from threefold.lab.report.results import BaselineResult, Contender

if TYPE_CHECKING:
    from threefold.lab.report.report import Report

TRIFLE = 0.005  # share of the errors of a baseline; a model that avoids fewer is as good as it


def recommended(report: Report) -> Contender | BaselineResult:
    """The best baseline if no model is clearly better, else the cheapest of the best models."""
    if best_relation(report) not in ("", "better"):
        return report.ranked_baselines[0]
    if report.verdict.kind != "tie":
        return report.ranked[0]
    tied = {report.verdict.leader, *report.verdict.rivals}
    known = [c for c in report.ranked if c.name in tied and c.decode_seconds < math.inf]
    return min(known, key=lambda c: c.decode_seconds) if known else report.ranked[0]


def best_relation(report: Report) -> str:
    """How the best model compares with the best baseline; "" without baselines."""
    return relation_to(report, report.ranked_baselines[0]) if report.baselines else ""


def relation_to(report: Report, baseline: BaselineResult) -> str:
    """How the best model compares with a baseline.

    better, worse, equal (to within a trifle), never better (in any run) or unclear.
    """
    margin = report.lead_over(baseline)
    if (margin.settled or math.isinf(margin.half)) and margin.mean < 0:
        return "worse"
    share = saved_share(report, baseline)
    if share is not None and abs(share) < TRIFLE:
        return "equal"
    if margin.settled or math.isinf(margin.half):
        over_examples = report.baseline_margins.get(baseline.name)
        sure = over_examples is None or over_examples.positive
        return "better" if margin.mean > 0 and sure else "unclear"
    return "never better" if _never_better(report, baseline) else "unclear"


def saved_share(report: Report, baseline: BaselineResult) -> float | None:
    """The share of a baseline's errors that the best model avoids; None if errors have no zero."""
    ours, theirs = report.ranked[0].quality.mean, baseline.quality.mean
    if ours == theirs:
        return 0.0
    if report.subject.metric in ("accuracy", "exact"):
        ours, theirs = 1 - ours, 1 - theirs
    elif not report.subject.lower:
        return None
    return 1 - ours / theirs if theirs > 0 else None


def _never_better(report: Report, baseline: BaselineResult) -> bool:
    """Whether each run of the best model is worse than the baseline with the same seed."""
    sign = 1.0 if report.subject.lower else -1.0
    ours, theirs = report.ranked[0].scores, baseline.scores
    return all(sign * (ours[seed] - theirs[seed]) > 0 for seed in theirs if seed in ours)
