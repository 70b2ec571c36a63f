"""A user's time series: windows of a table's columns, and the values that follow them.

Each series is split by time: the first 70 per cent are for training, the next 10 for validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.numbers import ABSURD, FillMissing, Standardise
from threefold.data.tables import Table
from threefold.data.time_stamps import TimeAxis, TimeFacts, describe_times
from threefold.data.time_steps import parse_step, resample
from threefold.errors import ThreefoldError
from threefold.tasks.forecasting import SPLIT_ENDS
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.description import DataDescription, absurd_notes, list_names
from threefold.tasks.user_data.roles import TableReading
from threefold.tasks.user_data.seasons import naive_errors, season_of
from threefold.tasks.user_data.settings import Reading, ReadSettings

LONGEST_CONTEXT = 128  # by default


@dataclass(frozen=True)
class TimeSeries:
    """Rows of one series in the order of time; NaN is missing."""

    name: str
    values: Array  # [time, targets and features]
    axis: TimeAxis | None = None
    last: float = 0.0  # the time of the last row, in seconds since 1970
    notes: tuple[str, ...] = ()

    def stamp(self, step: int) -> str | None:
        """The time stamp some steps after the last row, as the table writes it."""
        return None if self.axis is None else self.axis.stamp(step, after=self.last)


def forecasting_task(table: Table, found: TableReading, reading: Reading) -> Task[Batch]:
    """SeriesWindows of all series of a table."""
    settings = reading.settings
    settings.allow_only(
        f"{table.name}, a time series",
        *("target", "features", "time_column", "series_column", "horizon", "length"),
        *("missing", "header", "decimal", "resample", "day_first"),
    )
    series = read_series(table, found, settings)
    if settings.missing == "refuse":
        refuse_missing(table, found, (*found.roles.targets, *found.roles.features))
    preprocessing = reading.preprocessing or fit_series(series, found.roles, reading)
    windows = SeriesWindows(series, preprocessing, split=reading.split)
    return series_task(table.name, windows, _describe(table, found, series, windows, reading))


def refuse_missing(table: Table, found: TableReading, columns: Sequence[str]) -> None:
    """Refuse the first missing cell of columns of numbers."""
    for name in columns:
        facts = found.facts[name]
        if facts.missing:
            raise table.error(
                facts.first_missing,
                f"{name} is missing (as are {facts.missing - 1:,} more of its cells); fill them "
                "in, or use --set data.missing=mask or carry",
            )


def read_series(table: Table, found: TableReading, settings: ReadSettings) -> list[TimeSeries]:
    """The series of a table, each sorted by time."""
    columns = (*found.roles.targets, *found.roles.features)
    matrix = np.stack([table.numbers(name) for name in columns], 1)
    if found.roles.series is None:
        return [_one_series("", table, matrix, found, settings)]
    names = np.array(table.labels(found.roles.series))
    groups = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    return [
        _one_series(name, table.rows(rows.tolist()), matrix[rows], found, settings)
        for name, rows in groups.items()
    ]


def _one_series(
    name: str, table: Table, values: Array, found: TableReading, settings: ReadSettings
) -> TimeSeries:
    if found.roles.time is None:
        return TimeSeries(name, values)
    facts = describe_times(table, found.roles.time, day_first=settings.day_first)
    order = np.argsort(facts.times, kind="stable")
    times, values, axis = facts.times[order], values[order], facts.axis
    notes = [] if facts.sorted else [f"the rows were sorted by {found.roles.time}"]
    if settings.resample is not None:
        times, values = resample(times, values, settings.resample)
        axis = _resampled_axis(axis, times[0], settings.resample)
    else:
        notes += _gap_notes(facts)
    prefix = f"series {name}: " if name else ""
    return TimeSeries(name, values, axis, float(times[-1]), tuple(prefix + note for note in notes))


def _resampled_axis(axis: TimeAxis, first: float, step: str) -> TimeAxis:
    length = parse_step(step)
    return replace(
        axis,
        first=float(first),
        step=length.seconds or axis.step,
        months=length.months,
        day=1,
        weekdays=False,
        regular=True,
    )


def _gap_notes(facts: TimeFacts) -> list[str]:
    """What is irregular about the times."""
    notes = []
    if facts.duplicates:
        notes.append(
            f"{facts.duplicates:,} rows repeat a time (the first at line {facts.first_duplicate}); "
            "if there are several series, name their column: --series-column"
        )
    if facts.gap_count:
        gap = facts.gaps[0]
        notes.append(
            f"{facts.gap_count:,} gaps in time, the first of {gap.steps} steps after {gap.after}; "
            "rows are taken as equally spaced (--set data.resample=STEP makes them so)"
        )
    elif not facts.axis.regular:
        notes.append(
            "the times are not equally spaced, but rows are taken as if they were "
            "(--set data.resample=STEP makes them so)"
        )
    return notes


def fit_series(series: Sequence[TimeSeries], roles: Roles, reading: Reading) -> Preprocessing:
    """Scaling and filling, fitted to the first 70 per cent of every series, or to all of it."""
    settings, share = reading.settings, SPLIT_ENDS[0] if reading.split else 1.0
    columns = (*roles.targets, *roles.features)
    train = [part.values[: int(len(part.values) * share)] for part in series]
    scale = Standardise.fit(train, columns)
    fill = FillMissing.fit(scale.apply(np.concatenate(train)), columns, settings.missing or "mask")
    known = [np.where(np.abs(scale.apply(part)) <= ABSURD, part, np.nan) for part in train]
    shortest = min(len(part.values) for part in series)
    context = settings.length or max(1, min(LONGEST_CONTEXT, shortest // 20))
    axis = series[0].axis
    return Preprocessing(
        "forecaster",
        "table",
        Chain((scale, fill)),
        Chain((scale.select(roles.targets),)),
        roles,
        context=context,
        horizon=settings.horizon or max(1, context // 8),
        time_axis=None if axis is None else axis.to_dict(),
        resample=settings.resample,
        day_first=settings.day_first,
        header=settings.header,
        naive_errors=naive_errors(
            [part[:, : len(roles.targets)] for part in known], (1, season_of(axis))
        ),
        decimal=settings.decimal,
    )


class SeriesWindows:
    """Contexts and the values that follow, standardised, of every split."""

    def __init__(
        self, series: Sequence[TimeSeries], preprocessing: Preprocessing, split: bool
    ) -> None:
        self.preprocessing, self.series = preprocessing, tuple(series)
        self.context, self.horizon = preprocessing.context or 1, preprocessing.horizon or 1
        count = len(preprocessing.roles.targets)
        values = [part.values for part in series]
        # The row at which each series begins in the joined ones, and where the last one ends.
        self.offsets = np.cumsum([0, *map(len, values)])
        self.inputs = np.concatenate([preprocessing.inputs.apply(part) for part in values])
        targets = np.concatenate([preprocessing.outputs.apply(v[:, :count]) for v in values])
        self.targets = np.where(np.abs(targets) <= ABSURD, targets, np.nan)
        self.begins = {name: self._begins(values, name, split) for name in SPLITS}

    def _begins(self, values: Sequence[Array], split: str, cut: bool) -> Numbers:
        """The rows at which a forecast of a split begins, in all series together."""
        begins, offset = [], 0
        for part in values:
            low, high = _bounds(len(part), split) if cut else (0, len(part))
            first = max(low, self.context)
            begins.append(np.arange(first, high - self.horizon + 1) + offset)
            offset += len(part)
        after = np.concatenate(begins)[:, None] + np.arange(self.horizon)
        rows: Numbers = after[np.isfinite(self.targets[after]).any((1, 2)), 0]
        if not len(rows):
            raise ThreefoldError(
                f"{offset} time steps are too few for a context of {self.context} and a horizon of "
                f"{self.horizon}: {split} has no window; give more rows, or a smaller length "
                "(--set data.length=N) or horizon (--horizon N)"
            )
        return rows

    def draw(self, split: str, numbers: Numbers) -> Batch:
        """The windows with these numbers; missing targets are NaN."""
        begins = self.begins[split][numbers][:, None]
        inputs = self.inputs[begins + np.arange(-self.context, 0)]
        targets = self.targets[begins + np.arange(self.horizon)]
        return make_batch(inputs, targets[..., 0] if targets.shape[-1] == 1 else targets)

    @property
    def error_scale(self) -> float:
        """The deviation of a single target: errors in original units."""
        scale = self.preprocessing.outputs.find(Standardise)
        return scale.deviation[0] if len(scale.columns) == 1 else 1.0

    def last_value_error(self) -> float:
        """The mean error on the test split of repeating the last value, in original units."""
        begins, filled = self.begins["test"], self.inputs[:, : self.targets.shape[1]]
        future = self.targets[begins[:, None] + np.arange(self.horizon)]
        return float(np.nanmean(np.abs(future - filled[begins - 1][:, None]))) * self.error_scale


def _bounds(length: int, split: str) -> tuple[int, int]:
    ends = [0, *(int(length * part) for part in SPLIT_ENDS), length]
    position = SPLITS.index(split)
    return ends[position], ends[position + 1]


def series_task(
    name: str, windows: SeriesWindows, description: DataDescription | None = None
) -> Task[Batch]:
    """The task of forecasting what follows each window."""
    return declare_user_task(
        name,
        windows.draw,
        kind="forecaster",
        domain="series",
        length=windows.context,
        sizes=tuple(len(windows.begins[split]) for split in SPLITS),
        metric="absolute_error",
        chance=windows.last_value_error(),
        features=windows.inputs.shape[1],
        error_scale=windows.error_scale,
        preprocessing=lambda: windows.preprocessing,
        description=description,
        windows=windows,
    )


def _describe(
    table: Table,
    found: TableReading,
    series: Sequence[TimeSeries],
    windows: SeriesWindows,
    reading: Reading,
) -> DataDescription:
    roles, fill = found.roles, windows.preprocessing.inputs.find(FillMissing)
    facts = [
        ("target", list_names(roles.targets)),
        ("inputs", list_names((*roles.targets, *roles.features))),
    ]
    facts.append(("horizon", f"{windows.horizon} steps, from the last {windows.context}"))
    if roles.time is not None and series[0].axis is not None:
        facts.append(("time", f"column {roles.time}, one row every {series[0].axis.step_name}"))
    if roles.series is not None:
        facts.append(("series", f"{len(series)} in column {roles.series}"))
    facts += _missing_fact(found, fill)
    if found.dropped:
        texts = [f"{name} ({why})" for name, why in found.dropped.items()]
        facts.append(("not used", list_names(texts)))
    if reading.split:
        sizes = " / ".join(f"{len(windows.begins[split]):,}" for split in SPLITS)
        facts.append(("split", f"{sizes} windows (train / validation / test), by time"))
    scale = windows.preprocessing.inputs.find(Standardise)
    absurd = absurd_notes(scale.absurd_counts([part.values for part in series]))
    notes = [*absurd, *table.notes, *(note for part in series for note in part.notes)]
    otherwise = "--target, --features, --horizon, --time-column, --series-column, --kind"
    return DataDescription(table.name, "forecaster", tuple(facts), tuple(notes[:5]), otherwise)


def _missing_fact(found: TableReading, fill: FillMissing) -> list[tuple[str, str]]:
    columns = (*found.roles.targets, *found.roles.features)
    missing = [(n, found.facts[n].missing) for n in columns if found.facts[n].missing]
    if not missing:
        return []
    how = {
        "mask": "filled with the last value, and marked in a column of 0 and 1",
        "carry": "filled with the last value",
        "refuse": "refused",
    }[fill.policy]
    counts = ", ".join(f"{name} {count:,}" for name, count in missing)
    return [("missing", f"{counts}; {how} (--set data.missing=mask|carry|refuse)")]
