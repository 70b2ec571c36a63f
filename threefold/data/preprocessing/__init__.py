"""What stands between a user's data and the tensors of a model, saved with the model.

    raw input   →  inputs.apply  →  model  →  outputs.invert  →  answer
    "I loved it"   bytes, truncated           class 1            "positive"
    temp, flow     scaled, gaps filled        forecast           flow in its own units

Training fits the steps to the training split; evaluation, prediction and streams apply the same
steps, read from the model's folder, so that no use can scale or order its columns differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.atomic_files import json_text
from threefold.data.preprocessing.calendar import calendar_columns, calendar_size
from threefold.data.preprocessing.categories import OneHot
from threefold.data.preprocessing.numbers import FillMissing
from threefold.data.preprocessing.series_scales import SeriesScales
from threefold.data.preprocessing.steps import Step, read_step
from threefold.data.preprocessing.text import Labels
from threefold.data.time_stamps import TimeAxis
from threefold.errors import ThreefoldError

__all__ = ["FORMS", "Chain", "Preprocessing", "Roles"]

FILE = "preprocessing.json"
VERSION = 1
FORMS = {  # of one input, and what many of them are called
    "text": "texts",
    "file": "texts",
    "words": "tagged words",
    "tokens": "tokens",
    "table": "tables",
    "row": "rows of numbers",
    "series": "sequences of numbers",
    "sound": "sounds",
    "image": "images",
}


@dataclass(frozen=True)
class Roles:
    """Which column of a table plays which part; empty where the data are not a table."""

    texts: tuple[str, ...] = ()  # joined by a line break
    label: str | None = None
    targets: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None  # rows with one value of it are one sequence
    series: str | None = None  # rows with one value of it are one series
    image: str | None = None  # files of images


@dataclass(frozen=True)
class Chain:
    """Steps that are applied one after another, and inverted in the opposite order."""

    steps: tuple[Step, ...] = ()

    def apply(self, data: Any) -> Any:
        """Raw data → arrays."""
        for step in self.steps:
            data = step.apply(data)
        return data

    def invert(self, data: Any) -> Any:
        """Arrays → the user's units."""
        for step in reversed(self.steps):
            data = step.invert(data)
        return data

    def find(self, kind: type[Any]) -> Any:
        """The step of a class, None if there is none."""
        return next((step for step in self.steps if isinstance(step, kind)), None)

    def to_list(self) -> list[dict[str, Any]]:
        """The steps as JSON values."""
        return [step.to_dict() for step in self.steps]


@dataclass(frozen=True)
class Preprocessing:
    """Steps for the inputs and outputs of a model, and where in a table they are found."""

    kind: str  # of the model
    form: str  # of one input: one of FORMS
    inputs: Chain = field(default_factory=Chain)
    outputs: Chain = field(default_factory=Chain)
    roles: Roles = field(default_factory=Roles)
    context: int | None = None  # rows of a table that a forecast was trained to read
    horizon: int | None = None  # rows that it forecasts
    time_axis: dict[str, Any] | None = None  # how time stamps continue
    resample: str | None = None  # the step to which rows were averaged
    day_first: bool | None = None  # in dates such as 01/02/2024
    header: bool | None = None  # whether tables have a line of names, if that was said
    # By number of rows m: the mean |y_t − y_{t−m}| of each target in the training data.
    naive_errors: dict[str, Any] | None = None
    decimal: str | None = None  # the decimal sign of tables, if that was said
    calendar: tuple[str, ...] = ()  # cycles of the time stamps that a forecaster reads
    carried: bool = False  # whether a stream carries the state, as training did
    known_future: tuple[str, ...] = ()  # features whose values of the forecast rows are inputs

    @property
    def has_header(self) -> bool:
        """Whether new tables have a line of names: the model looks for its columns by name."""
        return True if self.header is None else self.header

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the model's order."""
        step = self.outputs.find(Labels)
        return () if step is None else step.names

    @property
    def thresholds(self) -> dict[str, float]:
        """The probabilities from which labels are answered, by name, if they are set."""
        step = self.outputs.find(Labels)
        pairs = () if step is None else zip(step.names, step.thresholds, strict=False)
        return {name: threshold for name, threshold in pairs if threshold is not None}

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Preprocessing:
        """The same, with other thresholds of labels; with none the likeliest is answered."""
        if thresholds == self.thresholds:
            return self
        steps = tuple(
            (step.with_thresholds(thresholds) if thresholds else replace(step, thresholds=()))
            if isinstance(step, Labels)
            else step
            for step in self.outputs.steps
        )
        return replace(self, outputs=Chain(steps))

    def encode_rows(self, rows: Any, times: Any = None) -> Any:
        """Rows [n, columns] of one series as a forecaster reads them, with calendar and future.

        times: of the rows, in seconds since 1970; needed if there is a calendar.
        """
        inputs = self.inputs.apply(rows)
        parts = [inputs, *([self.calendar_of(times)] if self.calendar else [])]
        if self.known_future:
            parts.append(self._future_of(inputs))
        return np.hstack(parts) if len(parts) > 1 else inputs

    def _future_of(self, inputs: Any) -> Any:
        """At each row the known columns of the next `horizon` rows; the last row is repeated."""
        places = np.arange(len(inputs))[:, None] + np.arange(1, (self.horizon or 1) + 1)
        known = inputs[:, self.known_places]
        return known[np.minimum(places, len(inputs) - 1)].reshape(len(inputs), -1)

    @property
    def known_places(self) -> list[int]:
        """The inputs that belong to the columns of `known_future`, categories and all."""
        fill = self.inputs.find(FillMissing)
        plain = [name for name in fill.columns if name not in self.categories]
        places = [plain.index(name) for name in self.known_future if name in plain]
        begin = len(plain) + len(fill.masked)
        for name in (n for n in fill.columns if n in self.categories):
            size = len(self.categories[name])
            places += range(begin, begin + size) if name in self.known_future else ()
            begin += size
        return places

    @property
    def current_size(self) -> int:
        """The number of last inputs of which only the newest row counts: calendar and future."""
        future = (self.horizon or 1) * len(self.known_places) if self.known_future else 0
        return self.calendar_size + future

    def calendar_of(self, times: Any) -> Any:
        """The calendar [n, calendar_size] of moments, on the clock of the training data."""
        if times is None or self.time_axis is None:
            raise ThreefoldError(
                f"the model reads the calendar ({', '.join(self.calendar)}), but the rows have no "
                f"times; give them in the column {self.roles.time}"
            )
        return calendar_columns(times, self.calendar, TimeAxis.from_dict(self.time_axis))

    @property
    def calendar_size(self) -> int:
        """The number of inputs that tell the time, the last ones."""
        return calendar_size(self.calendar)

    def of_series(self, name: str, history: Any = None) -> Preprocessing:
        """The same for one series, if each has its own scale.

        history: its rows [n, columns], by which a series is scaled that training has not seen.
        """
        scales = self.inputs.find(SeriesScales)
        if scales is None:
            return self
        scale = scales.of(name, history)
        chains = (self.inputs, self.outputs)
        inputs, outputs = (
            Chain(tuple(scale.select(s.columns) if isinstance(s, SeriesScales) else s
                        for s in chain.steps))
            for chain in chains
        )  # fmt: skip
        return replace(self, inputs=inputs, outputs=outputs)

    def knows_series(self, name: str) -> bool:
        """Whether training has seen a series, or its name does not matter."""
        scales = self.inputs.find(SeriesScales)
        return scales is None or name in scales.scales

    @property
    def categories(self) -> dict[str, list[str]]:
        """The categories of columns of categories."""
        step = self.inputs.find(OneHot)
        return {} if step is None else step.categories

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        values.update(inputs=self.inputs.to_list(), outputs=self.outputs.to_list())
        return {"format_version": VERSION, **values, "roles": asdict(self.roles)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocessing:
        """Read what `to_dict` returned."""
        values = dict(values)
        version = values.pop("format_version", None)
        if version != VERSION:
            raise ThreefoldError(
                f"format {version!r}, but this version of Threefold reads format {VERSION}; train "
                "the model again, or use the version that wrote it"
            )
        try:
            for name in ("inputs", "outputs"):
                values[name] = Chain(tuple(map(read_step, values[name])))
            for name in ("calendar", "known_future"):
                values[name] = tuple(values.get(name, ()))
            roles = {key: _as_tuple(value) for key, value in values["roles"].items()}
            return cls(**{**values, "roles": Roles(**roles)})
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ThreefoldError):
                raise
            raise ThreefoldError(f"damaged ({error}); save the model again") from error

    def write(self, folder: Path) -> None:
        """Write preprocessing.json."""
        (folder / FILE).write_text(json_text(self.to_dict()), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Preprocessing | None:
        """Read preprocessing.json of a folder; None if it has none."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
        except ThreefoldError as error:
            raise ThreefoldError(f"{path}: {error}") from error
        except (ValueError, AttributeError, RecursionError) as error:
            raise ThreefoldError(f"{path}: not JSON, or damaged ({error})") from error


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
