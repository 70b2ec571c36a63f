"""The index of a series and how it goes on: times, periods, numbers, or positions.

What is kept of an index are a few JSON values, so that a pickled forecaster contains no objects of
pandas; pandas is imported only to make an index for those who gave one.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from threefold.errors import ThreefoldError

SEVERAL = (
    "a SequenceForecaster reads one series, with one column or several that belong together; make "
    "each series a column (y.unstack(…)), fit one forecaster for each, or train one model of all: "
    "`threefold train FILE --series-column NAME`, threefold.train(…, series_column=NAME)"
)


def check_one_series(data: Any, name: str) -> None:
    """Refuse a mapping or a list of several series, which would be read as rows."""
    if hasattr(data, "keys") and not hasattr(data, "columns") and not hasattr(data, "index"):
        raise ThreefoldError(f"{name} is a {type(data).__name__} of series: {SEVERAL}")
    if isinstance(data, (list, tuple)) and len(data):
        lengths = {np.shape(row)[:1] for row in data if not isinstance(row, (list, tuple))}
        # Rows of a table have as many numbers as there are columns: few, and all the same.
        if lengths - {()} and (len(lengths) > 1 or len(data) < max(lengths)[0]):
            raise ThreefoldError(f"{name} is a list of {len(data)} series: {SEVERAL}")


def describe_index(index: Any) -> dict[str, Any]:
    """The end of an index of pandas and its step, as JSON values."""
    kind = type(index).__name__
    if kind == "MultiIndex":
        names = ", ".join(str(name) for name in index.names)
        raise ThreefoldError(f"the index of y has several levels ({names}): {SEVERAL}")
    name = None if index.name is None else str(index.name)
    if kind == "PeriodIndex":
        return {"kind": "period", "last": str(index[-1]), "freq": index.freqstr, "name": name}
    if kind == "DatetimeIndex":
        freq = index.freqstr or (index.inferred_freq if len(index) > 2 else None)
        if freq is None and len(index) > 2:
            _warn_uneven("times")
        step = None if len(index) < 2 else float(np.median(np.diff(index.asi8)))
        scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[index.unit]
        zone = None if index.tz is None else str(index.tz)
        return {
            "kind": "time",
            "last": index[-1].isoformat(),
            "freq": freq,
            "seconds": None if step is None else step * scale,
            "zone": zone,
            "name": name,
        }
    if not np.issubdtype(getattr(index, "dtype", object), np.number):
        raise ThreefoldError(
            f"the index of y is a {kind} of {getattr(index, 'dtype', 'objects')}; expected times, "
            "periods or numbers: use y.reset_index(drop=True)"
        )
    steps = np.diff(np.asarray(index, np.float64))
    step = float(np.median(steps)) if len(steps) else 1.0
    if len(steps) and not np.allclose(steps, step):
        _warn_uneven("numbers")
    return {"kind": "number", "last": float(index[-1]), "step": step, "name": name}


def _warn_uneven(what: str) -> None:
    warnings.warn(
        f"the {what} of the index are not equally spaced, but rows are taken as if they were; the "
        "forecasts continue with the usual step (y.resample(…) or y.asfreq(…) makes them even)",
        stacklevel=5,
    )


def check_order(index: Any) -> None:
    """Refuse an index whose times do not increase."""
    if not index.is_monotonic_increasing or not index.is_unique:
        raise ThreefoldError(
            "the index of y is not increasing; sort it (y.sort_index()) and remove repeated times"
        )


def continue_index(description: dict[str, Any], steps: int) -> Any:
    """The next entries of an index."""
    import pandas

    name = description["name"]
    if description["kind"] == "period":
        first = pandas.Period(description["last"], freq=description["freq"]) + 1
        return pandas.period_range(first, periods=steps, freq=description["freq"], name=name)
    if description["kind"] == "number":
        last, step = description["last"], description["step"]
        values = last + step * np.arange(1, steps + 1)
        whole = float(last).is_integer() and float(step).is_integer()
        return pandas.Index(values.astype(np.int64) if whole else values, name=name)
    last = pandas.Timestamp(description["last"])
    if last.tzinfo is not None and description["zone"]:
        last = last.tz_convert(description["zone"])
    if description["freq"] is not None:
        freq = description["freq"]
    elif description["seconds"] is not None:
        freq = pandas.Timedelta(seconds=description["seconds"])
    else:
        raise ThreefoldError("a single time has no step; give y with at least two rows")
    return pandas.date_range(last, periods=steps + 1, freq=freq, name=name)[1:]
