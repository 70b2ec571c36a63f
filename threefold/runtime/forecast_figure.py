"""History and forecast as one chart, with the band between the outer quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from threefold.data.preprocessing import Preprocessing
from threefold.data.tables import Table
from threefold.drawing.axes import Axis
from threefold.drawing.charts import Line, line_chart
from threefold.drawing.page import standalone
from threefold.runtime.answers import Answers
from threefold.runtime.table_forecasts import history_series

HISTORY_STEPS = 4  # times the number of forecast steps are drawn before them


def draw_forecast(preprocessing: Preprocessing, history: Table | Any, answers: Answers) -> str:
    """An SVG of the first target of the first series: what was, and what is forecast."""
    series = history_series(preprocessing, history)[0]
    target = preprocessing.roles.targets[0]
    rows = [row for row in answers if row.get("series", series.name) == series.name]
    known = series.values[-HISTORY_STEPS * max(len(rows), 8) :, 0]
    past = [(float(i - len(known) + 1), float(v)) for i, v in enumerate(known) if np.isfinite(v)]
    future = [(float(row["step"]), row[target]) for row in rows]
    quantiles = [name for name in rows[0] if name.startswith(f"{target}_q")]
    low, high = min(quantiles, key=_level), max(quantiles, key=_level)
    band = [(float(row["step"]), row[low], row[high]) for row in rows]
    lines = [Line(target, 0, past), Line("forecast", 1, future, band=band)]
    note = f"The band lies between the quantiles {_level(low):g} and {_level(high):g}."
    axes = Axis("steps from the last row"), Axis(target, "number")
    return standalone(line_chart(f"Forecast of {target}", note, lines, *axes))


def _level(name: str) -> float:
    return float(name.rpartition("_q")[2])
