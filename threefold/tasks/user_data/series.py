"""A user's time series: windows of a table's columns, and the values that follow them.

Each series is split by time: the first 70 per cent are for training, the next 10 for validation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.calendar import calendar_cycles
from threefold.data.preprocessing.categories import OneHot, column_values
from threefold.data.preprocessing.numbers import ABSURD, FillMissing, Standardise
from threefold.data.preprocessing.series_scales import SeriesScales
from threefold.data.tables import Table
from threefold.data.time_stamps import TimeAxis, TimeFacts, day_first_in, describe_times
from threefold.data.time_steps import parse_step, resample
from threefold.errors import ThreefoldError, option, option_name, setting
from threefold.tasks.forecasting import SPLIT_ENDS
from threefold.tasks.stored import Array
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Task, declare_user_task
from threefold.tasks.user_data.contexts import ContextChoice, default_context
from threefold.tasks.user_data.description import (
    DataDescription,
    absurd_notes,
    category_facts,
    list_names,
    list_options,
)
from threefold.tasks.user_data.questions import refuse_mixed_series
from threefold.tasks.user_data.roles import TableReading
from threefold.tasks.user_data.seasons import Stretches, naive_errors, season_of
from threefold.tasks.user_data.series_windows import (
    SeriesNote,
    SeriesWindows,
    TimeSeries,
    better_naive,
)
from threefold.tasks.user_data.settings import Reading, ReadSettings


def forecasting_task(table: Table, found: TableReading, reading: Reading) -> Task[Batch]:
    """SeriesWindows of all series of a table."""
    settings = reading.settings
    settings.allow_only(
        f"{table.name}, a time series",
        *("target", "features", "time_column", "series_column", "horizon", "length"),
        *("known_future", "missing", "header", "decimal", "resample", "day_first"),
    )
    chosen = (settings.features, settings.series_column, settings.resample, reading.preprocessing)
    if all(value is None for value in chosen):
        refuse_mixed_series(table, found.roles, found.facts)
    series = read_series(table, found, settings)
    if settings.missing == "refuse":
        refuse_missing(table, found, (*found.roles.targets, *found.roles.features))
    preprocessing = reading.preprocessing or fit_series(series, found, reading)
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
                f"in, or use {setting('data.missing', 'mask')} or carry",
            )


def read_series(table: Table, found: TableReading, settings: ReadSettings) -> list[TimeSeries]:
    """The series of a table, each sorted by time."""
    columns = (*found.roles.targets, *found.roles.features)
    matrix = column_values(table, columns, found.categories, settings.missing)
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
    notes = [] if facts.sorted else [SeriesNote(f"the rows were sorted by {found.roles.time}")]
    once = _said_once(facts.times, values)
    if len(once) < len(values):
        notes.append(_repeated_note(table, once))
        table, values = table.rows(once), values[once]
        facts = describe_times(table, found.roles.time, day_first=settings.day_first)
    order = np.argsort(facts.times, kind="stable")
    times, values, axis = facts.times[order], values[order], facts.axis
    stretch: Array | None = np.cumsum([0, *~facts.are_neighbours])
    if settings.resample is not None:
        times, values = resample(times, values, settings.resample)
        stretch = None
        axis = _resampled_axis(axis, times[0], settings.resample)
    else:
        notes += _gap_notes(facts)
    prefix = f"series {name}: " if name else ""
    told = tuple(SeriesNote(prefix + note.what, note.advice) for note in notes)
    return TimeSeries(name, values, axis, float(times[-1]), told, stretch, times)


def _said_once(times: Array, values: Array) -> list[int]:
    """The rows without those that say again, time and all, what an earlier one said."""
    rows = np.column_stack([times, values]).astype(np.float64)
    first: dict[bytes, int] = {}
    for index, row in enumerate(rows):
        first.setdefault(row.tobytes(), index)
    return list(first.values())


def _repeated_note(table: Table, once: list[int]) -> SeriesNote:
    gone = sorted(set(range(len(table))) - set(once))
    one, several = "1 row repeats an earlier one and is", "rows repeat earlier ones and are"
    what = one if len(gone) == 1 else f"{len(gone):,} {several}"
    return SeriesNote(f"{what} left out (the first at line {table.line_numbers[gone[0]]})")


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


def _gap_notes(facts: TimeFacts) -> list[SeriesNote]:
    """What is irregular about the times."""
    notes = []
    if facts.duplicates:
        name = option("series_column")
        notes.append(
            SeriesNote(
                f"{facts.duplicates:,} rows repeat a time with other numbers (the first at line "
                f"{facts.first_duplicate}), and are read as steps of their own",
                f"; if there are several series, name their column: {name}",
            )
        )
    advice = f" ({setting('data.resample', 'STEP')} makes them so)"
    if facts.gap_count:
        gap = facts.gaps[0]
        first = f"of {gap.steps} steps after {gap.after}"
        gaps = f"{facts.gap_count:,} gaps in time, the first {first}"
        gaps = f"one gap in time, {first}" if facts.gap_count == 1 else gaps
        what = f"{gaps}; rows are taken as equally spaced"
        notes.append(SeriesNote(what, advice))
    elif not facts.axis.regular:
        what = "the times are not equally spaced, but rows are taken as if they were"
        notes.append(SeriesNote(what, advice))
    return notes


def fit_series(
    series: Sequence[TimeSeries], found: TableReading, reading: Reading
) -> Preprocessing:
    """Scaling and filling, fitted to the first 70 per cent of every series, or to all of it."""
    settings, share = reading.settings, SPLIT_ENDS[0] if reading.split else 1.0
    columns = (*found.roles.targets, *found.roles.features)
    train = [part.head(share) for part in series]
    scale = _fit_scale(train, found, columns)
    scaled = [_scale_of(scale, part).apply(part.values) for part in train]
    fill = FillMissing.fit(np.concatenate(scaled), columns, settings.missing or "mask")
    encode = (OneHot.fit(columns, found.categories),) if found.categories else ()
    axis = series[0].axis
    believed = _believed(train, scaled, found)
    context = settings.length or _chosen_context(series, believed).length
    return Preprocessing(
        "forecaster",
        "table",
        Chain((scale, fill, *encode)),
        Chain((scale.select(found.roles.targets),)),
        found.roles,
        context=context,
        horizon=settings.horizon or max(1, context // 8),
        time_axis=None if axis is None else axis.to_dict(),
        resample=settings.resample,
        day_first=settings.day_first if axis is None else day_first_in(axis.format),
        header=settings.header,
        naive_errors=naive_errors(believed, (1, season_of(axis))),
        decimal=settings.decimal,
        calendar=_calendar(train),
        known_future=_known_future(found, settings),
    )


def _chosen_context(series: Sequence[TimeSeries], train: Sequence[Stretches]) -> ContextChoice:
    return default_context(min(len(part.values) for part in series), series[0].axis, train)


def _context_fact(
    series: Sequence[TimeSeries], windows: SeriesWindows, found: TableReading, reading: Reading
) -> tuple[str, list[str]]:
    """Why so many rows are read before a forecast, and a note of a season that does not fit."""
    if reading.settings.length is not None:
        return "as was set", []
    if reading.preprocessing is not None:
        return "as the model was trained", []
    train = [part.head(SPLIT_ENDS[0] if reading.split else 1.0) for part in series]
    scaled = [
        windows.preprocessing.of_series(p.name, p.values).inputs.find(Standardise).apply(p.values)
        for p in train
    ]
    choice = _chosen_context(series, _believed(train, scaled, found))
    return choice.reason, [choice.note] if choice.note else []


def _known_future(found: TableReading, settings: ReadSettings) -> tuple[str, ...]:
    """The inputs whose values to come are known when a forecast is made."""
    for name in settings.known_names:
        if name not in found.roles.features:
            inputs = list_names(found.roles.features) if found.roles.features else "none"
            what = "a target" if name in found.roles.targets else "not an input"
            raise ThreefoldError(
                f"{option_name('known_future')} names {name}, which is {what}; the inputs beside "
                f"the target are {inputs}"
            )
    return tuple(dict.fromkeys(settings.known_names))


def _calendar(train: Sequence[TimeSeries]) -> tuple[str, ...]:
    """The cycles that the first series repeats; all series have times, or none has."""
    times = train[0].times
    if times is None or len(times) < 2:
        return ()
    return calendar_cycles(train[0].axis, float(times[-1] - times[0]))


def _fit_scale(
    train: Sequence[TimeSeries], found: TableReading, columns: Sequence[str]
) -> Standardise | SeriesScales:
    """One scale, or one for each of several series."""
    if found.roles.series is None:
        all_rows = [part.values for part in train]
        return Standardise.fit(all_rows, columns, found.categories, robust=True)
    values = {part.name: part.values for part in train}
    return SeriesScales.fit(values, columns, found.categories)


def _scale_of(scale: Standardise | SeriesScales, part: TimeSeries) -> Standardise:
    return scale if isinstance(scale, Standardise) else scale.of(part.name)


def _believed(
    train: Sequence[TimeSeries], scaled: Sequence[Array], found: TableReading
) -> list[Stretches]:
    """The targets of every series, with NaN for what is absurd."""
    count = len(found.roles.targets)
    return [
        Stretches(np.where(np.abs(x) <= ABSURD, part.values, np.nan)[:, :count], part.stretch)
        for part, x in zip(train, scaled, strict=True)
    ]


def series_task(
    name: str, windows: SeriesWindows, description: DataDescription | None = None
) -> Task[Batch]:
    """The task of forecasting what follows each window."""
    chance, chance_name = better_naive(windows)
    return declare_user_task(
        name,
        windows.draw,
        kind="forecaster",
        domain="series",
        length=windows.context,
        sizes=tuple(len(windows.begins[split]) for split in SPLITS),
        metric="absolute_error",
        chance=chance,
        chance_name=chance_name,
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
    why, unfit = _context_fact(series, windows, found, reading)
    facts.append(("horizon", f"{windows.horizon} steps, from the last {windows.context}"))
    facts.append(("context", f"{windows.context} rows: {why}"))
    if roles.time is not None and series[0].axis is not None:
        facts.append(("time", f"column {roles.time}, one row every {series[0].axis.step_name}"))
    if known := windows.preprocessing.known_future:
        facts.append(("known future", f"{list_names(known)} of the rows that are forecast"))
    if windows.preprocessing.calendar:
        cycles = " and ".join(windows.preprocessing.calendar)
        facts.append(("calendar", f"the time within the {cycles}, from the time stamps"))
    if roles.series is not None:
        shown = f"{len(series)} in column {roles.series}, each on its own scale"
        facts.append(("series", f"{shown}; training reports errors in deviations of a series"))
    facts += category_facts(found.categories)
    facts += _missing_fact(found, fill)
    if found.dropped:
        texts = [f"{name} ({why})" for name, why in found.dropped.items()]
        facts.append(("not used", list_names(texts)))
    if reading.split:
        sizes = " / ".join(f"{len(windows.begins[split]):,}" for split in SPLITS)
        facts.append(("split", f"{sizes} windows (train / validation / test), by time"))
    notes = [
        *absurd_notes(_absurd_counts(windows, series)),
        *unfit,
        *_unseen_notes(windows.preprocessing, series),
        *table.notes,
        *("".join(note) for part in series for note in part.notes),
    ]
    otherwise = list_options(
        *("target", "features", "horizon", "time_column", "series_column", "kind")
    )
    otherwise += f", {setting('data.length', 'ROWS')}"
    return DataDescription(table.name, "forecaster", tuple(facts), tuple(notes[:5]), otherwise)


def _absurd_counts(windows: SeriesWindows, series: Sequence[TimeSeries]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for part in series:
        own = windows.preprocessing.of_series(part.name, part.values[: windows.context])
        counts.update(own.inputs.find(Standardise).absurd_counts([part.values]))
    return counts


def _unseen_notes(preprocessing: Preprocessing, series: Sequence[TimeSeries]) -> list[str]:
    """A note if series are not those of training."""
    new = [part.name for part in series if not preprocessing.knows_series(part.name)]
    if not new:
        return []
    return [
        f"{len(new):,} series were not in the training data ({list_names(new)}); each is scaled by "
        "its first rows"
    ]


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
    return [("missing", f"{counts}; {how} ({setting('data.missing', 'mask|carry|refuse')})")]
