"""History and forecast as one chart, with the band between the outer quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from threefold.data.preprocessing import Preprocessing
from threefold.data.tables import Table
from threefold.data.time_formats import zone_offset
from threefold.drawing.axes import Axis
from threefold.drawing.charts import Line, line_chart
from threefold.drawing.page import standalone
from threefold.drawing.time_ticks import time_axis
from threefold.runtime.answers import Answers
from threefold.runtime.future_rows import split_future
from threefold.runtime.table_forecasts import history_series
from threefold.tasks.user_data.series_windows import TimeSeries

HISTORY_STEPS = 4  # times the number of forecast steps are drawn before them


def draw_forecast(preprocessing: Preprocessing, history: Table | Any, answers: Answers) -> str:
    """An SVG of the first target of the first series: what was, and what is forecast."""
    series, _ = split_future(preprocessing, history_series(preprocessing, history)[0])
    target = preprocessing.roles.targets[0]
    rows = [row for row in answers if row.get("series", series.name) == series.name]
    known = series.values[-HISTORY_STEPS * max(len(rows), 8) :, 0]
    before, after, across = _positions(series, len(known), [row["step"] for row in rows])
    past = [(x, float(v)) for x, v in zip(before, known, strict=True) if np.isfinite(v)]
    future = [(x, row[target]) for x, row in zip(after, rows, strict=True)]
    quantiles = [name for name in rows[0] if name.startswith(f"{target}_q")]
    low, high = min(quantiles, key=_level), max(quantiles, key=_level)
    band = [(x, row[low], row[high]) for x, row in zip(after, rows, strict=True)]
    if np.isfinite(known[-1]):  # the forecast begins where the history ends
        future, band = [past[-1], *future], [(*past[-1], past[-1][1]), *band]
    lines = [Line(target, 0, past), Line("forecast", 1, future, band=band)]
    note = f"The band lies between the quantiles {_level(low):g} and {_level(high):g}."
    title = f"Forecast of {target}{f' of {series.name}' if series.name else ''}"
    return standalone(line_chart(title, note, lines, across, Axis(target, "number")))


def _positions(
    series: TimeSeries, known: int, steps: list[int]
) -> tuple[list[float], list[float], Axis]:
    """Where the last known rows and the forecast steps are drawn: by time, else by number."""
    axis, times = series.axis, series.times
    if axis is None or times is None:
        before = [float(i - known + 1) for i in range(known)]
        return before, [float(step) for step in steps], Axis("steps from the last row")
    east = zone_offset(axis.zone)
    before = [float(moment) + east for moment in times[-known:]]
    after = [axis.seconds(step, after=float(times[-1])) + east for step in steps]
    return before, after, time_axis(axis.name, before[0], after[-1])


def _level(name: str) -> float:
    return float(name.rpartition("_q")[2])
