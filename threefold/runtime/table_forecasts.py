"""Forecasts after the last row of a table, in original units, with quantiles and time stamps.

A model was trained to read `context` rows, so it reads the last ones of the table, whatever their
number.  Beyond the trained horizon its own forecasts become its inputs, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.numbers import ABSURD, FillMissing
from threefold.data.row_times import as_trained, other_clock, other_step
from threefold.data.tables import Table, read_table
from threefold.data.time_stamps import TimeAxis
from threefold.errors import AmbiguousError, ThreefoldError
from threefold.models.forecaster import Forecaster
from threefold.runtime.answers import Answers
from threefold.runtime.decoding import eval_mode
from threefold.runtime.future_rows import future_values, join_future, split_future
from threefold.tasks.user_data.series import read_series
from threefold.tasks.user_data.series_windows import TimeSeries
from threefold.tasks.user_data.settings import ReadSettings
from threefold.tasks.user_data.table import check_columns, known_reading

Array = NDArray[Any]
Read = TypeVar("Read")
MOST_STEPS, MOST_HORIZONS = 10_000, 1_000  # of a forecast: the larger one


def forecast_table(
    model: Any,
    preprocessing: Preprocessing,
    history: Any,
    horizon: int | None = None,
    future: Any = None,
) -> Answers:
    """Forecast the rows after those of a path, data frame, mapping or array of columns.

    future: the known inputs of the rows to forecast, if they do not follow the history.
    """
    steps = _checked_horizon(horizon, preprocessing.horizon or 1)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    table = _as_table(history, preprocessing)
    if future is not None:
        table = join_future(table, _as_table(future, preprocessing), preprocessing)
    for whole in history_series(preprocessing, table):
        series, later = split_future(preprocessing, whole)
        own = preprocessing.of_series(series.name, series.values)
        refuse_unknown_past(own, series)
        ahead = future_values(own, series, later, steps)
        levels, values = forecast_series(model, own, series, steps, ahead)
        rows += _rows(series, own, levels, values)
        notes += [*(note.what for note in series.notes), *_notes(own, series, steps)]
        if not preprocessing.knows_series(series.name):
            notes.append(
                f"series {series.name} was not in the training data; it is scaled by the "
                f"{len(series.values):,} rows of its history"
            )
    calibration = model.calibration
    notes = [*table.notes, *notes, *([] if calibration is None else calibration.notes)]
    return Answers(rows, notes=list(dict.fromkeys(notes)))


def _checked_horizon(horizon: int | None, trained: int) -> int:
    steps = trained if horizon is None else horizon
    most = max(MOST_STEPS, MOST_HORIZONS * trained)
    whole = isinstance(steps, Integral) and not isinstance(steps, bool)
    if not whole or not 1 <= steps <= most:
        given = f"{steps:,}" if whole else repr(steps)
        raise ThreefoldError(
            f"horizon is {given}; expected 1 to {most:,} steps (the model was trained to "
            f"forecast {trained:,})"
        )
    return int(steps)


def refuse_unknown_past(preprocessing: Preprocessing, series: TimeSeries) -> None:
    """Refuse a column without any number, and a context without any that the model needs."""
    masked = preprocessing.inputs.find(FillMissing).masked
    known, rows = _known(preprocessing, series), _context_rows(preprocessing, series)
    columns = (*preprocessing.roles.targets, *preprocessing.roles.features)
    prefix = f"series {series.name}: " if series.name else ""
    for number, name in enumerate(columns):
        is_target = name in preprocessing.roles.targets
        if not known[:, number].any() and (is_target or name not in masked):
            raise ThreefoldError(
                f"{prefix}column {name} has no usable number in any of its {len(known):,} rows; "
                f"{_what_is_needed(series.values[:, number])}"
            )
        needed = is_target and name not in masked
        if not known[-rows:, number].any() and (needed or not known[-rows:].any()):
            raise ThreefoldError(
                f"{prefix}column {name} has no usable number in the last {rows:,} rows, which are "
                "all that the model reads; fill them in, or leave them out to forecast from the "
                "last known row"
            )


def _what_is_needed(column: Array) -> str:
    """Why a column without usable numbers cannot be forecast, and what to do."""
    present = column[np.isfinite(column)]
    if not len(present):
        return "a forecast needs the values so far"
    return (
        f"they lie between {present.min():g} and {present.max():g}, which is more than "
        f"{ABSURD:,.0f} deviations from the training data; give them in the units of training, or "
        "train again"
    )


def _known(preprocessing: Preprocessing, series: TimeSeries) -> Array:
    """Where numbers are neither missing nor absurd."""
    known: Array = np.abs(preprocessing.inputs.steps[0].apply(series.values)) <= ABSURD
    return known


def _context_rows(preprocessing: Preprocessing, series: TimeSeries) -> int:
    return min(preprocessing.context or len(series.values), len(series.values))


def history_series(preprocessing: Preprocessing, history: Any) -> list[TimeSeries]:
    """The series of a table, with the columns that the model was trained on, in its order."""
    table = _as_table(history, preprocessing)
    check_columns(table, preprocessing.roles, with_labels=True)
    found = known_reading(table, preprocessing)
    policy = preprocessing.inputs.find(FillMissing).policy
    settings = ReadSettings(
        resample=preprocessing.resample, day_first=preprocessing.day_first, missing=policy
    )
    series = asked_of_model(preprocessing, lambda: read_series(table, found, settings))
    for part in series:
        check_times(table.name, preprocessing, part)
    return [_with_step(preprocessing, part) for part in series]


def _with_step(preprocessing: Preprocessing, series: TimeSeries) -> TimeSeries:
    """The series with the step of training if its rows are too few to show theirs."""
    axis, times = series.axis, series.times
    if preprocessing.time_axis is None or axis is None or times is None:
        return series
    trained = TimeAxis.from_dict(preprocessing.time_axis)
    return replace(series, axis=as_trained(trained, axis, times))


def asked_of_model(preprocessing: Preprocessing, read: Callable[[], Read]) -> Read:
    """What `read` returns; a doubt is answered by how the training data were, not asked back."""
    try:
        return read()
    except AmbiguousError as error:
        axis = preprocessing.time_axis
        example = "2024-01-31" if axis is None else TimeAxis.from_dict(axis).stamp(0)
        raise ThreefoldError(
            f"{error.what} The model was trained on times such as {example}; write them so"
        ) from error


def check_times(name: str, preprocessing: Preprocessing, series: TimeSeries) -> None:
    """Refuse rows whose step or clock is not that of training."""
    axis, times = series.axis, series.times
    if preprocessing.time_axis is None or axis is None or times is None:
        return
    trained = TimeAxis.from_dict(preprocessing.time_axis)
    problem = other_clock(trained, axis) if preprocessing.calendar else None
    if problem is None and len(times) >= 3:
        problem = other_step(trained, axis, times)
    if problem is not None:
        raise ThreefoldError(f"{name}: {problem}")


def _as_table(history: Any, preprocessing: Preprocessing) -> Table:
    if isinstance(history, (list, tuple)) and len(history) == 1:
        history = history[0]
    if isinstance(history, np.ndarray) or _is_numbers(history):
        names = (*preprocessing.roles.targets, *preprocessing.roles.features)
        array = np.asarray(history, np.float64)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2 or array.shape[1] != len(names):
            raise ThreefoldError(
                f"the history has the shape {array.shape}; expected [rows, {len(names)}]: "
                f"{', '.join(names)}"
            )
        return read_table({name: array[:, i] for i, name in enumerate(names)})
    if isinstance(history, Table):
        return history
    usual = preprocessing.decimal
    header = preprocessing.has_header
    return read_table(history, header=header, usual_decimal=usual, of_model=True)


def _is_numbers(history: Any) -> bool:
    return isinstance(history, (list, tuple)) and bool(history) and not isinstance(history[0], str)


def forecast_series(
    model: Forecaster,
    preprocessing: Preprocessing,
    series: TimeSeries,
    steps: int,
    ahead: Array | None = None,
) -> tuple[list[float | None], Array]:
    """Levels (None: the point forecast) and values [steps, targets, levels] in original units.

    ahead: the rows to forecast, as far as they are known (`future_values`); default: what follows
    the last target of the series.
    """
    if ahead is None:
        series, future = split_future(preprocessing, series)
        ahead = future_values(preprocessing, series, future, steps)
    context, targets = preprocessing.context or len(series.values), len(preprocessing.roles.targets)
    encoded, count = _encoded(preprocessing, series, ahead), len(series.values)
    rows = torch.from_numpy(encoded[max(0, count - context) : count]).to(model.device, model.dtype)
    known = [place - targets for place in preprocessing.known_places]
    known += range(
        encoded.shape[1] - targets - preprocessing.current_size, encoded.shape[1] - targets
    )
    blocks: list[Tensor] = []
    state, done = None, 0
    last_inputs = rows[-1:, targets:]
    with torch.no_grad(), eval_mode(model):
        while done < steps:
            exogenous = rows[None, :, targets:] if model.exogenous else None
            forecast, state = model(rows[None, :, :targets], state, exogenous=exogenous, last=True)
            blocks.append(forecast[0, -1])
            point = model.point_forecast(forecast[0, -1])
            others = last_inputs.repeat(len(point), 1)
            first = count + done
            later = encoded[first : first + len(point), targets:]
            others[:, known] = torch.from_numpy(later[:, known]).to(others)
            rows = torch.cat([point, others], -1)
            done += len(point)
    outputs = torch.cat(blocks)[:steps]
    levels, scaled = forecast_levels(model, outputs)
    invert = preprocessing.outputs.invert
    return levels, np.stack([invert(part) for part in scaled], -1)


def _encoded(preprocessing: Preprocessing, series: TimeSeries, ahead: Array) -> Array:
    """The inputs of the history and of the rows to forecast."""
    times = None
    if preprocessing.calendar and series.times is not None:
        axis = series.axis
        assert axis is not None  # the times were read with it
        later = [axis.seconds(step, after=series.last) for step in range(1, len(ahead) + 1)]
        times = np.concatenate([series.times, later])
    rows: Array = preprocessing.encode_rows(np.concatenate([series.values, ahead]), times)
    return rows


def forecast_levels(model: Forecaster, outputs: Tensor) -> tuple[list[float | None], list[Array]]:
    """The point forecast first, then the calibrated levels beside it."""
    point, quantiles = model.bands(outputs)
    return named_levels(model, point, quantiles)


def named_levels(
    model: Forecaster, point: Array, quantiles: Array
) -> tuple[list[float | None], list[Array]]:
    """The point forecast first, as the level None, then the levels beside it."""
    chosen = [(i, q) for i, q in enumerate(model.levels) if q != 0.5]
    return [None, *(q for _, q in chosen)], [point, *(quantiles[..., i] for i, _ in chosen)]


def _rows(
    series: TimeSeries, preprocessing: Preprocessing, levels: list[float | None], values: Array
) -> list[dict[str, Any]]:
    rows = []
    for step, row in enumerate(values.tolist(), 1):
        answer: dict[str, Any] = {"series": series.name} if series.name else {}
        answer["step"] = step
        if series.axis is not None:
            answer["time"] = series.stamp(step)
        for name, numbers in zip(preprocessing.roles.targets, row, strict=True):
            for level, number in zip(levels, numbers, strict=True):
                answer[name if level is None else f"{name}_q{level:g}"] = number
        rows.append(answer)
    return rows


def _notes(preprocessing: Preprocessing, series: TimeSeries, steps: int) -> list[str]:
    notes = []
    trained, context = preprocessing.horizon or 1, preprocessing.context or 1
    if steps > trained:
        others = set(preprocessing.roles.features) - set(preprocessing.known_future)
        held = "; the other inputs keep their last values" if others else ""
        notes.append(
            f"the model was trained to forecast {trained} steps; later steps are forecast from its "
            f"own forecasts, and their quantiles are too narrow{held}"
        )
    absurd = np.abs(preprocessing.inputs.steps[0].apply(series.values)) > ABSURD
    if absurd.any():
        row, column = np.argwhere(absurd)[0].tolist()
        names = (*preprocessing.roles.targets, *preprocessing.roles.features)
        notes.append(
            f"{int(absurd.sum())} numbers are far outside the training data and are read as "
            f"missing; the first is {series.values[row, column]:g} in column {names[column]}"
        )
    notes += _missing_notes(preprocessing, series)
    if len(series.values) < context:
        notes.append(
            f"the history has {len(series.values)} rows; the model was trained to read {context}, "
            "so this forecast is less certain than its evaluation says"
        )
    return notes


def _missing_notes(preprocessing: Preprocessing, series: TimeSeries) -> list[str]:
    """Missing numbers in the context, in columns that lacked none in training."""
    fill = preprocessing.inputs.find(FillMissing)
    rows = _context_rows(preprocessing, series)
    missing = (~_known(preprocessing, series))[-rows:].sum(0).tolist()
    counts = {
        name: count
        for name, count in zip(fill.columns, missing, strict=True)
        if count and name not in fill.masked and fill.policy == "mask"
    }
    listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    if not counts:
        return []
    return [
        f"numbers are missing in the last {rows:,} rows, which the model reads ({listed}), and "
        "were replaced by the last value; the training data had none missing there"
    ]
