"""Rows of a table as inputs of a model: columns by name, and what is carried from row to row.

For each series: the last known value of each column, the time, the step of time that is being
averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.categories import OneHot
from threefold.data.preprocessing.numbers import ABSURD, FillMissing, Standardise
from threefold.data.preprocessing.series_scales import SeriesScales
from threefold.data.row_times import RowTimes
from threefold.data.stream_bins import OpenBin
from threefold.data.stream_encoders import Elements
from threefold.data.time_stamps import TimeAxis
from threefold.data.time_steps import parse_step
from threefold.runtime.scores.grouping import Columns
from threefold.runtime.stream_inputs import Array, Prepared, SeriesRows, StreamReader, Tallies
from threefold.runtime.stream_notes import oddities

GAP = 1.5  # steps of time between two rows, from which it is a gap


@dataclass
class SeriesMemory:
    """What is carried from row to row of one series."""

    last: Array  # the last known number of each column, standardised
    time: float | None = None  # of the last row
    bin: OpenBin = field(default_factory=OpenBin)
    calendar: float | None = None  # the last time that was read

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        times = {"time": self.time, "calendar": self.calendar}
        return {"last": self.last.tolist(), **times, "bin": self.bin.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> SeriesMemory:
        """The memory that `to_dict` described."""
        last, bins = np.array(values["last"]), OpenBin(**values["bin"])
        return cls(last, values["time"], bins, values.get("calendar"))


class RowReader(StreamReader):
    """Rows of a table: standardised, missing numbers filled, in the order of training.

    policy: stop, carry or mask.  horizon: number of later time stamps to write, 0 for none.
    """

    def __init__(
        self, model: Any, columns: Sequence[str], preprocessing: Preprocessing | None, policy: str
    ) -> None:
        super().__init__(model)
        self.columns, self.policy = tuple(columns), policy
        self.horizon = 0
        chain = None if preprocessing is None else preprocessing.inputs
        self.scales: Standardise | SeriesScales | None = None
        if chain is not None:
            self.scales = chain.find(Standardise) or chain.find(SeriesScales)
        self.encode: OneHot | None = None if chain is None else chain.find(OneHot)
        known: FillMissing | None = None if chain is None else chain.find(FillMissing)
        self.fill = known or FillMissing(self.columns, "carry")
        self.limit = ABSURD if self.scales is not None else np.inf
        self.times: RowTimes | None = None
        self.named_series, self.step, has_time = False, None, False
        if preprocessing is not None:
            roles = preprocessing.roles
            self.named_series = (roles.series or roles.group) is not None
            has_time = roles.time is not None
            if has_time and preprocessing.time_axis is not None:
                trained = TimeAxis.from_dict(preprocessing.time_axis)
                self.times = RowTimes(
                    trained,
                    preprocessing.day_first,
                    checked=preprocessing.resample is None,
                    timed=bool(preprocessing.calendar),
                )
            self.step = (
                None if preprocessing.resample is None else parse_step(preprocessing.resample)
            )
        self.has_time = has_time
        self.calendar_of = None  # moments to inputs, if the model reads them
        if preprocessing is not None and preprocessing.calendar:
            self.calendar_of = preprocessing.calendar_of
        self.single = not self.named_series and self.step is None
        self.memories: dict[str, SeriesMemory] = {}
        self.counts: Counter[str] = Counter()  # lines and rows with something to tell
        self.missing: Counter[str] = Counter()  # by column
        self.stamps: dict[float, str] = {}  # of the moments written last

    @property
    def axis(self) -> TimeAxis | None:
        """The times, as the stream writes them."""
        return None if self.times is None else self.times.axis

    def segments(self, elements: Elements) -> Iterator[SeriesRows]:
        rows = np.flatnonzero(~elements["skipped"])
        self.counts["skipped"] += len(elements) - len(rows)
        if not self.named_series:
            yield SeriesRows("", rows.tolist())
            return
        groups: dict[str, list[int]] = {}
        for row in rows.tolist():
            groups.setdefault(elements["series"][row], []).append(row)
        for name, chosen in groups.items():
            yield SeriesRows(name, chosen)

    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared | None:
        rows, order = elements[list(segment.rows)], segment.rows
        if not len(rows):
            return None
        memory = self.memories.setdefault(segment.series, SeriesMemory(np.zeros(len(self.columns))))
        numbers, times = rows["numbers"], rows["time"].tolist()
        moments = [None if self.axis is None else self.axis.parse(time) for time in times]
        missing = self._note_missing(numbers)
        if self.step is not None:
            numbers, moments, order = self._averaged(memory, numbers, moments, order)
            times = [self._stamp(moment) for moment in moments]
            missing = ["" for _ in order]
            if not len(order):
                return None
        else:
            self._check_times(memory, moments)
        scaled = self.scaled(numbers, segment.series)
        inputs, memory.last = self.fill.fill(scaled, memory.last, self.limit)
        if self.policy == "carry":
            inputs[:, len(self.columns) :] = 0.0
        inputs = inputs if self.encode is None else self.encode.apply(inputs)
        if self.calendar_of is not None:
            inputs = np.hstack([inputs, self.calendar_of(self._known_moments(memory, moments))])
        columns: Columns = {"series": [segment.series] * len(order)} if self.named_series else {}
        columns |= self._time_columns(times, moments)
        columns |= {"missing": missing} if self.policy != "stop" else {}
        values = torch.from_numpy(np.where(np.abs(scaled) <= self.limit, scaled, np.nan))
        return Prepared(self._numbers(inputs), values.to(self.model.device), columns, order)

    def scaled(self, numbers: Array, series: str = "") -> Array:
        """Rows as the model reads them, on the scale of their series."""
        scales = self.scales
        scale = scales.of(series) if isinstance(scales, SeriesScales) else scales
        return numbers if scale is None else scale.apply(numbers)

    def _known_moments(self, memory: SeriesMemory, moments: Sequence[float | None]) -> Array | None:
        """The time of each row, or of the row before one without; None if no row has any."""
        if self.axis is None:
            return None
        known = []
        for moment in moments:
            memory.calendar = memory.calendar if moment is None else moment
            known.append(self.axis.first if memory.calendar is None else memory.calendar)
        return np.array(known)

    def _note_missing(self, numbers: Array) -> list[str]:
        """The names of the columns that are missing in each row."""
        gone = np.isnan(numbers)
        self.counts["rows"] += len(numbers)
        self.counts["missing"] += int(gone.any(1).sum())
        counts = gone.sum(0).tolist()
        self.missing.update({n: c for n, c in zip(self.columns, counts, strict=True) if c})
        return [
            ";".join(name for name, is_gone in zip(self.columns, row, strict=True) if is_gone)
            for row in gone.tolist()
        ]

    def _averaged(
        self, memory: SeriesMemory, numbers: Array, moments: Sequence[float | None], order: Any
    ) -> tuple[Array, list[float | None], list[int]]:
        """The steps of time that rows complete."""
        assert self.step is not None  # only called then
        rows: list[Array] = []
        begins: list[float | None] = []
        chosen: list[int] = []
        for row, moment, place in zip(numbers, moments, order, strict=True):
            complete = None if moment is None else memory.bin.add(moment, row, self.step)
            if complete is None:
                self.counts["untimed" if moment is None else "unsorted"] += 1
            for begin, means in complete or ():
                rows.append(means)
                begins.append(begin)
                chosen.append(place)
        return np.array(rows).reshape(-1, len(self.columns)), begins, chosen

    def _check_times(self, memory: SeriesMemory, moments: Sequence[float | None]) -> None:
        """Count rows that are not in the order of time, and gaps between them."""
        if self.axis is None:
            return
        regular = not (self.axis.months or self.axis.weekdays)
        for moment in moments:
            if moment is None:
                self.counts["untimed"] += 1
                continue
            if memory.time is not None and moment <= memory.time:
                self.counts["unsorted"] += 1
            elif memory.time is not None and regular:
                self.counts["gaps"] += moment - memory.time > GAP * self.axis.step
            memory.time = moment

    def _time_columns(self, times: Sequence[str], moments: Sequence[float | None]) -> Columns:
        if not self.has_time:
            return {}
        columns: Columns = {"time": list(times)}
        axis = self.axis
        for step in range(1, self.horizon + 1):
            columns[f"time+{step}"] = [
                "" if m is None or axis is None else self._stamp(axis.seconds(step, after=m))
                for m in moments
            ]
        return columns

    def _stamp(self, moment: float | None) -> str:
        """A moment as the table writes it; those that were written last are kept."""
        if moment is None or self.axis is None:
            return ""
        stamp = self.stamps.get(moment)
        if stamp is None:
            if len(self.stamps) > 1 << 12:
                self.stamps.clear()
            stamp = self.stamps[moment] = self.axis.format_time(moment)
        return stamp

    def state(self) -> dict[str, Any]:
        return {
            "memories": {name: memory.to_dict() for name, memory in self.memories.items()},
            **self.tallies(),
            "told_before": self.told_before,
            "times": None if self.times is None else self.times.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        memories = state["memories"].items()
        self.memories = {name: SeriesMemory.from_dict(values) for name, values in memories}
        self.counts, self.missing = Counter(state["counts"]), Counter(state["missing"])
        self.told_before = state.get("told_before", {})
        times = state.get("times")
        if self.times is not None and times is not None:
            self.times.restore(times)

    def tallies(self) -> Tallies:
        return {"counts": dict(self.counts), "missing": dict(self.missing)}

    def summary(self) -> dict[str, Any]:
        names = {
            "missing": "rows_with_missing_values",
            "skipped": "unreadable_lines",
            "unsorted": "rows_out_of_order",
            "untimed": "rows_without_a_time",
            "gaps": "gaps_in_time",
        }
        counts = self.counts - Counter(self.told_before.get("counts"))
        missing = self.missing - Counter(self.told_before.get("missing"))
        told: dict[str, Any] = {name: counts[key] for key, name in names.items() if counts[key]}
        if missing:
            told["missing_values"] = dict(missing)
        if not told:
            return {}
        masked = self.fill.masked if self.policy == "mask" else None
        unseen = [n for n in self.columns if self.missing[n] == self.counts["rows"] > 0]
        return {**told, "notes": oddities(counts, missing, masked, self.step is not None, unseen)}
