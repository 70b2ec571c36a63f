"""Alarms of a stream: elements and stretches whose scores are rare on a clean stretch.

    point     the score of an element (surprise of a token, standardised residual of a row)
    stretch   the mean of the last `window` scores, compared with such means

The first 30 scores of a series are not judged: a model that has read nothing is surprised by
everything.  A missing value has no score, and is left out of means.  Alarms that follow each other
within a window (at least 10 elements) have one cause, and are listed as one.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from threefold.models.alarm_calibration import AlarmCalibration
from threefold.runtime.scores.grouping import PLACES
from threefold.runtime.scores.scorers import WARM_UP, Columns, Scorer

Array = NDArray[Any]
JOINED = 10  # elements from one alarm to the next of the same cause, at least
LISTED = 1000  # alarms of a summary; all are counted
POINT, STRETCH, NONE = "point", "stretch", ""
DETAILS = ("series", *PLACES, "text", "word", "column")  # of an alarm in the summary


class Judge(Protocol):
    """What is done with scores: collected from a clean stretch, or compared with it."""

    def columns(self, points: Array, stretches: Array) -> Columns:
        """Columns for the output; NaN where a score is not judged."""


class CollectingJudge:
    """Collects the scores of a clean stretch."""

    def __init__(self) -> None:
        self._points: list[Array] = []
        self._stretches: list[Array] = []

    def columns(self, points: Array, stretches: Array) -> Columns:
        """No columns."""
        self._points.append(points[~np.isnan(points)])
        self._stretches.append(stretches[~np.isnan(stretches)])
        return {}

    @property
    def points(self) -> Array:
        """The scores of elements."""
        return np.concatenate([np.zeros(0), *self._points])

    @property
    def stretches(self) -> Array:
        """The means over windows."""
        return np.concatenate([np.zeros(0), *self._stretches])


class AlarmJudge:
    """Alarms where a p-value is at most `rate`."""

    def __init__(self, calibration: AlarmCalibration, rate: float, window: int | None) -> None:
        self.calibration, self.rate, self.window = calibration, rate, window

    def columns(self, points: Array, stretches: Array) -> Columns:
        """p_value, window_p_value (with a window) and alarm."""
        chances = self.calibration.points.p_values(points)
        columns: Columns = {"p_value": chances.tolist()}
        alarms = np.where(chances <= self.rate, POINT, NONE)
        if self.window is not None and self.calibration.stretches is not None:
            means = self.calibration.stretches.p_values(stretches)
            columns["window_p_value"] = means.tolist()
            alarms = np.where((means <= self.rate) & (alarms == NONE), STRETCH, alarms)
        return {**columns, "alarm": alarms.tolist()}

    def held_out(self) -> dict[str, float | None]:
        """The rates of alarms on held-out parts of the clean stretch."""
        rates = {POINT: self.calibration.points.held_out_rate(self.rate)}
        if self.window is not None and self.calibration.stretches is not None:
            rates[STRETCH] = self.calibration.stretches.held_out_rate(self.rate)
        return rates


class WindowScorer(Scorer):
    """The columns of an anomaly scorer, means over windows, and what a judge says of both."""

    def __init__(self, scorer: Scorer, window: int | None, judge: Judge | None) -> None:
        assert scorer.compared is not None  # of an anomaly scorer
        self.scorer, self.window, self.judge = scorer, window, judge
        self.reduction, self.compared = scorer.reduction, scorer.compared
        self.known = 0  # scores so far
        self.last = np.zeros(0)  # the last window − 1 scores that are judged, or fewer

    def columns(self, elements: Tensor, before: Tensor | None, outputs: Tensor) -> Columns:
        columns = self.scorer.columns(elements, before, outputs)
        values = np.array(columns[self.compared or ""], np.float64)
        known = ~np.isnan(values)
        numbers = self.known + np.cumsum(known)
        self.known = int(numbers[-1])
        points = np.where(numbers > WARM_UP, values, np.nan)
        means = self._means(points)
        if self.window is not None:
            columns["window_score"] = means.tolist()
        return columns if self.judge is None else {**columns, **self.judge.columns(points, means)}

    def see(self, inputs: Tensor) -> None:
        self.scorer.see(inputs)

    def _means(self, points: Array) -> Array:
        """The mean of the last `window` scores at each; NaN where there are not as many."""
        means, known = np.full(len(points), np.nan), np.flatnonzero(~np.isnan(points))
        if self.window is None or not len(known):
            return means
        scores = np.concatenate([self.last, points[known]])
        if len(scores) >= self.window:
            # A copy, so that every sum is taken in the same order.
            windows = np.ascontiguousarray(sliding_window_view(scores, self.window))
            means[known[-len(windows) :]] = windows.mean(-1)
        self.last = scores[max(0, len(scores) - self.window + 1) :]
        return means

    def state(self) -> list[float]:
        inner = self.scorer.state()
        return [len(inner), *inner, self.known, *self.last.tolist()]

    def restore(self, state: list[float]) -> None:
        end = 1 + int(state[0])
        self.scorer.restore(state[1:end])
        self.known, self.last = int(state[end]), np.array(state[end + 1 :], np.float64)


class AlarmLog:
    """The alarms of a stream so far, neighbours as one."""

    CARRIED = ("count", "judged", "elements", "alarms", "seen", "open")

    def __init__(self, judge: AlarmJudge) -> None:
        self.judge = judge
        self.count = 0  # alarms
        self.judged = 0  # elements
        self.elements = {POINT: 0, STRETCH: 0}  # with an alarm
        self.alarms: list[dict[str, Any]] = []
        self.seen: dict[str, int] = {}  # elements, by series
        self.open: dict[str, list[int]] = {}  # by series: element and place of the last alarm

    def add(self, columns: Columns) -> None:
        """Add the elements of a chunk, before they are grouped."""
        limit, means = self.judge.rate, columns.get("window_p_value")
        series, chances = columns.get("series"), np.array(columns["p_value"])
        self.judged += int((~np.isnan(chances)).sum())
        self.elements[POINT] += int((chances <= limit).sum())
        self.elements[STRETCH] += 0 if means is None else int((np.array(means) <= limit).sum())
        for row, kind in enumerate(columns["alarm"]):
            name = "" if series is None else series[row]
            self.seen[name] = self.seen.get(name, 0) + 1
            if kind != NONE:
                self._add(name, kind, columns, row)

    def _add(self, name: str, kind: str, columns: Columns, row: int) -> None:
        number, position = self.seen[name], columns["position"][row]
        chance = columns["p_value" if kind == POINT else "window_p_value"][row]
        last, place = self.open.get(name, (-np.inf, 0))
        if number - last > max(JOINED, self.judge.window or 0):
            place, self.count = self.count, self.count + 1
            if place < LISTED:
                details = {key: columns[key][row] for key in DETAILS if key in columns}
                alarm = {"kind": kind, **details, "last_position": position, "p_value": chance}
                self.alarms.append(alarm)
        elif place < LISTED:
            alarm = self.alarms[place]
            alarm["last_position"] = position
            alarm["p_value"] = min(alarm["p_value"], chance)
            alarm["kind"] = kind if alarm["kind"] == kind else f"{POINT} and {STRETCH}"
        self.open[name] = [number, place]

    def state(self) -> dict[str, Any]:
        """All counts, as JSON."""
        return copy.deepcopy({name: vars(self)[name] for name in self.CARRIED})

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the result of `state`."""
        for name in self.CARRIED:
            setattr(self, name, copy.deepcopy(state[name]))

    def summary(self) -> dict[str, Any]:
        """The alarms, and their rates beside the one that was asked for."""
        held_out = self.judge.held_out()
        judged = max(1, self.judged)
        rates = {kind: self.elements[kind] / judged for kind in held_out}
        return {
            "alarm_count": self.count,
            "alarms": self.alarms,
            "alarm_rates": {
                "asked": self.judge.rate,
                "this_stream": rates,
                "held_out": held_out,
                "clean_elements": self.judge.calibration.points.count,
            },
        }
