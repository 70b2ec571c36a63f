"""The parts of a report from their JSON values, so that a page is drawn again without models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from threefold.lab.race.significance import Interval
from threefold.lab.report.results import (
    BaselineResult,
    BestModel,
    Contender,
    Cost,
    CurvePoint,
    RaceRun,
    Subject,
)

Values = Mapping[str, Any]


def read_subject(values: Values) -> Subject:
    """What the race was about."""
    listed = {name: tuple(values.get(name, ())) for name in ("matched", "notes", "story", "tuning")}
    return Subject(**{**values, **listed})


def read_contender(values: Values) -> Contender:
    """A contender with its runs and costs."""
    cost = {name: _points(points) for name, points in values["cost"].items()}
    parts = {
        "runs": tuple(map(_run, values["runs"])),
        "cost": Cost(**cost),
        "other_lengths": _points(values["other_lengths"]),
    }
    return Contender(**{**_without_quality(values), **parts})


def read_baseline(values: Values) -> BaselineResult:
    """A baseline with its scores."""
    results = tuple((int(seed), _number(score)) for seed, score in values["results"])
    return BaselineResult(**{**_without_quality(values), "results": results})


def read_best(values: Values | None) -> BestModel | None:
    """A saved model of the race, if there is one."""
    return None if values is None else BestModel(**values)


def read_interval(values: Values) -> Interval:
    """An interval; an endless one was stored as null."""
    half = values["half"]
    return Interval(**{**values, "half": math.inf if half is None else half})


def read_intervals(values: Mapping[str, Values]) -> dict[str, Interval]:
    """Intervals by name."""
    return {name: read_interval(item) for name, item in values.items()}


def _without_quality(values: Values) -> dict[str, Any]:
    """The values that are stored; the quality follows from the scores."""
    return {name: value for name, value in values.items() if name != "quality"}


def _run(values: Values) -> RaceRun:
    curve = tuple(CurvePoint(a, b, c, _number(score)) for a, b, c, score in values["curve"])
    return RaceRun(**{**values, "score": _number(values["score"]), "curve": curve})


def _points(points: Iterable[tuple[int, float | None]]) -> tuple[tuple[int, float], ...]:
    return tuple((int(length), _number(value)) for length, value in points)


def _number(value: float | None) -> float:
    """A number; null stands for one that was not finite."""
    return math.nan if value is None else float(value)
