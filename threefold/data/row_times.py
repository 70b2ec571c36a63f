"""The times of new rows beside those of training: how they are written, and how far apart they are.

trained on     2024-01-01 00:00, 2024-01-01 01:00, …    one row every hour
a stream of    28.02.2024 06:00, 28.02.2024 07:00, …    is read, and written, in its own format
a stream of    2024-01-01 00:00, 2024-01-01 00:15, …    is refused
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from statistics import median
from typing import Any

import numpy as np

from threefold.data.cells import is_missing, shown
from threefold.data.time_formats import TimeFormat, detect_format
from threefold.data.time_stamps import Floats, TimeAxis, near_step
from threefold.errors import ThreefoldError, setting

FIRST_ROWS = 5  # of a series, by which its step is judged
FEW_STEPS = 0.1  # the share of steps as long as in training, below which rows are refused


def other_clock(trained: TimeAxis, found: TimeAxis) -> str | None:
    """What is wrong with times of which only these or those of training have a zone."""
    if trained.has_zone == found.has_zone:
        return None
    with_zone, without = ("the new times", "those of training")[:: 1 if found.has_zone else -1]
    return (
        f"{with_zone} in column {trained.name} have a zone and {without} have none, so that the "
        f"hour of the day is not known, which the model reads; write them as in training, such as "
        f"{trained.stamp(0)}"
    )


def as_trained(trained: TimeAxis, found: TimeAxis, times: Floats) -> TimeAxis:
    """The axis of rows too few to show a step, which is that of training; else the one found."""
    if len(np.unique(times)) > 2:
        return found
    kept = replace(trained, format=found.format, zone=found.zone, first=found.first)
    return replace(kept, day=found.day if found.months else trained.day)


def other_step(trained: TimeAxis, found: TimeAxis, times: Floats) -> str | None:
    """What is wrong with rows that are further apart, or closer, than those of training.

    times: of the rows, in order.  A model that was trained on rows with gaps reads others.
    """
    if not (trained.regular or trained.steady) or near_step(np.array(found.step), trained.step):
        return None
    same = near_step(np.diff(times), trained.step)
    if not trained.regular and np.sum(same) > FEW_STEPS * len(same):
        return None
    return (
        f"one row every {found.step_name} in column {trained.name}, but the model was trained on "
        f"one every {trained.step_name}; give rows of that step, or train with "
        f"{setting('data.resample', 'STEP')}, which averages the rows of any table"
    )


class RowTimes:
    """The times of a stream of rows: `axis` is that of training, written as the stream writes it.

    checked: whether the step must be that of training.  timed: whether the model reads the clock.
    """

    def __init__(
        self, trained: TimeAxis, day_first: bool | None, *, checked: bool, timed: bool
    ) -> None:
        self.trained, self.axis = trained, trained
        self.day_first, self.checked, self.timed = day_first, checked, timed
        self.is_chosen = False  # the format
        self.first_times: dict[str, list[float]] = {}  # of each series
        self.last_rows: dict[str, list[Any]] = {}  # of each series: time and numbers
        self.continued: list[str] = []  # series of which no later row has come since `restart`
        self.repeated = self.read_before = 0  # rows of this input that are left out

    def choose_format(self, cells: Sequence[str]) -> None:
        """Find the format from the first cells of a stream, unless it is known."""
        known = [cell for cell in cells if not is_missing(cell)]
        if self.is_chosen or not known:
            return
        axis = self.trained
        if not all(self.trained.parse(cell) is not None for cell in known):
            form = detect_format(self.trained.name, known)
            if form is not None:
                axis = replace(axis, format=self._text_of(form, known[0]), zone=form.zone)
        problem = other_clock(self.trained, axis) if self.timed else None
        if problem is not None:
            raise ThreefoldError(problem)
        self.axis, self.is_chosen = axis, True

    def _text_of(self, form: TimeFormat, cell: str) -> str:
        """The format; of several, that of training or the one that was chosen there."""
        texts = (form.text, *form.others)
        chosen = [text for text in texts if _date_of(text) == _date_of(self.trained.format)]
        if self.day_first is not None:
            chosen += [t for t in texts if (t.index("d") < t.index("m")) == self.day_first]
        if len(texts) == 1 or chosen:
            return [*chosen, *texts][0]
        raise ThreefoldError(
            f"{self.trained.name}: is {shown(cell)} written with the day or the month first? the "
            f"model was trained on times such as {self.trained.stamp(0)}; write them so"
        )

    def was_read(self, series: str, cell: str, numbers: Sequence[float]) -> bool:
        """Whether a row is to be left out: it repeats the one before it, or was read before.

        A new input may begin with rows that the one before it had; they end at the first later row.
        """
        if is_missing(cell):
            return False
        row = [cell, [None if isnan(number) else number for number in numbers]]
        last = self.last_rows.get(series)
        if last == row and series not in self.continued:
            self.repeated += 1
            return True
        if last is not None and series in self.continued:
            time, before = self.axis.parse(cell), self.axis.parse(last[0])
            if time is not None and before is not None and time <= before:
                self.read_before += 1
                return True
            self.continued.remove(series)
        self.last_rows[series] = row
        return False

    def restart(self) -> None:
        """Expect rows of a new input, which continues the one so far."""
        self.continued = list(self.last_rows)
        self.repeated = self.read_before = 0

    def notes(self) -> list[str]:
        """What is to be told of rows that were left out."""
        told = []
        if count := self.repeated:
            what = "1 row repeats" if count == 1 else f"{count:,} rows repeat"
            told.append(f"{what} the row before, time and all, and {_was(count)} left out")
        if count := self.read_before:
            what = "1 row is" if count == 1 else f"{count:,} rows are"
            told.append(
                f"{what} not later than the last row of the input before, and {_was(count)} left "
                "out"
            )
        return told

    def check_step(self, series: str, cell: str) -> None:
        """Refuse a series whose first rows are further apart, or closer, than those of training."""
        times = self.first_times.setdefault(series, [])
        if not self.checked or len(times) >= FIRST_ROWS:
            return
        time = self.axis.parse(cell)
        if time is None or (times and time <= times[-1]):
            return
        times.append(time)
        if len(times) == FIRST_ROWS:
            step = median(np.diff(times).tolist())
            found = replace(self.axis, step=step, months=0, weekdays=False)
            problem = other_step(self.trained, found, np.array(times))
            if problem is not None:
                raise ThreefoldError(problem)

    def state(self) -> dict[str, Any]:
        """What is known, as JSON."""
        return {
            "format": [self.axis.format, self.axis.zone] if self.is_chosen else None,
            "first_times": {name: list(times) for name, times in self.first_times.items()},
            "last_rows": dict(self.last_rows),
            "left_out": [list(self.continued), self.repeated, self.read_before],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the result of `state`; a format that has been found is kept."""
        if state["format"] is not None:
            text, zone = state["format"]
            self.axis, self.is_chosen = replace(self.trained, format=text, zone=zone), True
        self.first_times = {name: list(times) for name, times in state["first_times"].items()}
        self.last_rows = dict(state.get("last_rows", {}))
        continued, self.repeated, self.read_before = state.get("left_out", ([], 0, 0))
        self.continued = list(continued)


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _date_of(form: str) -> str:
    """The part of a format that says the date, such as %d/%m/%Y."""
    return form.replace("%-", "%")[:8]
