"""Time columns: formats, steps, gaps, the stamps that come next, resampling."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from threefold.data.tables import Table, read_table
from threefold.data.time_formats import DATES, TimeFormat, format_time, seconds_in
from threefold.data.time_stamps import (
    TimeAxis,
    TimeFacts,
    describe_times,
    read_times,
    sort_by_time,
)
from threefold.data.time_steps import parse_step, resample
from threefold.errors import AmbiguousError, ThreefoldError, command_line


@pytest.fixture(autouse=True)
def _on_the_command_line() -> Iterator[None]:
    """Messages spell options as a shell takes them."""
    with command_line():
        yield


def column(cells: list[Any], name: str = "t") -> Table:
    return read_table({name: cells})


def facts_of(cells: list[Any], name: str = "t") -> TimeFacts:
    return describe_times(column(cells, name), name)


@pytest.mark.parametrize(
    ("cells", "step", "following"),
    [
        (["2024-01-31", "2024-02-29", "2024-03-31"], "1 month", ["2024-04-30", "2024-05-31"]),
        (["2024-01", "2024-02", "2024-03"], "1 month", ["2024-04", "2024-05"]),
        (["Oct 2024", "Nov 2024"], "1 month", ["Dec 2024", "Jan 2025"]),
        (["2023-10-01", "2024-01-01", "2024-04-01"], "3 months", ["2024-07-01", "2024-10-01"]),
        (["2023-02-01T00:00:00+01:00", "2023-03-01T00:00:00+01:00"], "1 month",
         ["2023-04-01T00:00:00+01:00", "2023-05-01T00:00:00+01:00"]),
        (["2020-02-29", "2021-02-28", "2022-02-28"], "1 year", ["2023-02-28", "2024-02-29"]),
        (["2024-02-28", "2024-02-29"], "1 day", ["2024-03-01", "2024-03-02"]),
        ([20240228, 20240229], "1 day", ["20240301", "20240302"]),
        (["31.12.2023 23:00", "31.12.2023 23:30"], "30 minutes",
         ["01.01.2024 00:00", "01.01.2024 00:30"]),
        (["2024-01-01T22:00:00Z", "2024-01-01T23:00:00Z"], "1 hour",
         ["2024-01-02T00:00:00Z", "2024-01-02T01:00:00Z"]),
        (["12/30/2023", "12/31/2023"], "1 day", ["01/01/2024", "01/02/2024"]),
        (["1/30/2024 1:00 PM", "1/31/2024 1:00 PM"], "1 day",
         ["2/1/2024 1:00 PM", "2/2/2024 1:00 PM"]),
        (["2024-01-01 00:00:00.000", "2024-01-01 00:00:00.250"], "0.25 seconds",
         ["2024-01-01 00:00:00.500", "2024-01-01 00:00:00.750"]),
        (["20240101T0000", "20240101T0010"], "10 minutes", ["20240101T0020", "20240101T0030"]),
        ([f"2024-01-{day:02d}" for day in (4, 5, 8, 9, 10, 11, 12, 15, 16, 17, 18, 19)],
         "1 weekday", ["2024-01-22", "2024-01-23"]),
        ([datetime.date(2024, 1, 1), datetime.date(2024, 1, 3)], "2 days",
         ["2024-01-05", "2024-01-07"]),
        ([datetime.datetime(2024, 1, 1, 0, tzinfo=datetime.UTC),
          datetime.datetime(2024, 1, 1, 1, tzinfo=datetime.UTC)], "1 hour",
         ["2024-01-01 02:00:00+00:00", "2024-01-01 03:00:00+00:00"]),
    ],
)  # fmt: skip
def test_next_stamps(cells: list[Any], step: str, following: list[str]) -> None:
    facts = facts_of(cells)
    axis = TimeAxis.from_dict(json.loads(json.dumps(facts.axis.to_dict())))
    assert axis == facts.axis and axis.regular and axis.step_name == step
    assert axis.next_stamps(facts.times[-1], 2) == following
    assert axis.stamp(len(cells) + 1) == following[1]
    assert axis.parse(following[0]) == axis.seconds(1, facts.times[-1])


@pytest.mark.parametrize(
    ("name", "cells", "following"),
    [
        ("YEAR", [1700, 1701, 1702], "1703"),
        ("timestamp", [1700000000, 1700000060], "1700000120"),
        ("timestamp", [1700000000.25, 1700000000.5], "1700000000.750"),
        ("timestamp", [1700000000000, 1700000060000], "1700000120000"),
    ],
)
def test_next_numbers(name: str, cells: list[int], following: str) -> None:
    facts = facts_of(cells, name)
    assert facts.axis.stamp(1, facts.times[-1]) == following


def test_stamps_that_python_rounds() -> None:
    """Thirds of a second in milliseconds: their median step alone would drift."""
    start = datetime.datetime(2024, 1, 1)
    moments = [start + datetime.timedelta(milliseconds=round(1000 * i / 3)) for i in range(1000)]
    facts = facts_of([moment.isoformat(timespec="milliseconds") for moment in moments])
    assert facts.axis.regular and not facts.gaps
    assert facts.axis.stamp(999) == moments[-1].isoformat(timespec="milliseconds")


def test_order_gaps_and_duplicates() -> None:
    days = [3, 1, 2, 2, 7, 8, 9]
    facts = facts_of([f"2024-05-{day:02d}" for day in days])
    assert not facts.sorted and not facts.axis.regular and facts.axis.step_name == "1 day"
    assert facts.duplicates == 1 and facts.first_duplicate == 4
    assert facts.gap_count == 1
    assert facts.gaps == [(5, "2024-05-03", "2024-05-07", 3)]
    table = sort_by_time(read_table({"t": [f"2024-05-{d:02d}" for d in days], "d": days}), "t")
    assert table.cells["d"] == sorted(days) and table.line_numbers == [2, 3, 4, 1, 5, 6, 7]


@pytest.mark.parametrize(
    ("stamps", "step", "following"),
    [
        (["03-29T00:00+01:00", "03-30T00:00+01:00", "03-31T00:00+01:00", "04-01T00:00+02:00"],
         "1 day", "2024-04-02T00:00+02:00"),
        (["03-01T00:00+01:00", "04-01T00:00+02:00", "05-01T00:00+02:00"],
         "1 month", "2024-06-01T00:00+02:00"),
        (["03-31T01:00+01:00", "03-31T03:00+02:00", "03-31T04:00+02:00"],
         "1 hour", "2024-03-31T05:00+02:00"),
    ],
)  # fmt: skip
def test_clocks_that_were_changed(stamps: list[str], step: str, following: str) -> None:
    facts = facts_of([f"2024-{stamp}" for stamp in stamps])
    assert facts.axis.regular and facts.axis.step_name == step and not facts.gaps
    assert facts.axis.stamp(1, facts.times[-1]) == following


def test_the_end_of_time() -> None:
    for cells in (["9999-12-30", "9999-12-31"], ["9999-11-01", "9999-12-01"]):
        with pytest.raises(ThreefoldError, match="is not in the years 1–9999"):
            facts_of(list(cells)).axis.stamp(9)


def test_gaps_in_months_and_weekdays() -> None:
    facts = facts_of(["2024-01-01", "2024-02-01", "2024-05-01", "2024-06-01"])
    assert facts.gaps == [(3, "2024-02-01", "2024-05-01", 2)] and not facts.axis.regular
    days = [4, 5, 8, 9, 10, 12, 15, 16, 17, 18, 19]  # without Thursday the 11th
    facts = facts_of([f"2024-01-{day:02d}" for day in days])
    assert facts.gaps == [(6, "2024-01-10", "2024-01-12", 1)]


def test_day_or_month_first_is_asked() -> None:
    table = column(["1/2/2024", "2/2/2024", "3/2/2024"])
    with pytest.raises(AmbiguousError, match="day or the month first") as info:
        read_times(table, "t")
    assert info.value.options == ["--set data.day_first=true", "--set data.day_first=false"]
    steps = {}
    for day_first in (True, False):
        axis = describe_times(table, "t", day_first=day_first).axis
        steps[day_first] = axis.step_name, axis.stamp(3)
    assert steps == {True: ("1 day", "4/2/2024"), False: ("1 month", "4/2/2024")}


def test_what_is_no_time() -> None:
    with pytest.raises(ThreefoldError, match=r"dict: the cells of t, such as 'a', are not times"):
        read_times(column(["a", "b"]), "t")
    with pytest.raises(ThreefoldError, match="all missing, are not times"):
        read_times(column(["", None]), "t")
    days = [f"2024-01-{day:02d}" for day in range(1, 31)]
    with pytest.raises(ThreefoldError, match=r"dict, row 3: t is '2024-01-32'; expected a time"):
        read_times(column([*days[:2], "2024-01-32", *days[3:]]), "t")
    with pytest.raises(ThreefoldError, match=r"dict, row 2: t, the time, is missing"):
        describe_times(column([days[0], None, days[2]]), "t")
    assert np.isnan(read_times(column([days[0], None, days[2]]), "t")).tolist() == [0, 1, 0]
    with pytest.raises(ThreefoldError, match="row 21: t is '2024-01-21T00:00Z'"):
        read_times(column([*days[:20], "2024-01-21T00:00Z", *days[21:]]), "t")


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])  # on busy machines
@given(
    st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2199, 1, 1)),
    st.sampled_from(DATES),
    st.sampled_from([" %H:%M:%S", "T%H:%M:%S.%6f%z", " %I:%M:%S %p", " %-H:%M:%S"]),
    st.sampled_from(["", "Z", "+05:30", "-0800"]),
)
def test_what_is_written_is_read(
    moment: datetime.datetime, date: str, clock: str, zone: str
) -> None:
    form = TimeFormat(date + clock, (zone or "Z") if "%z" in clock else "")
    if "%6f" not in clock:
        moment = moment.replace(microsecond=0)
    seconds = moment.replace(tzinfo=datetime.UTC).timestamp()
    assert seconds_in(format_time(seconds, form), form) == pytest.approx(seconds, abs=1e-5)


def test_resampling() -> None:
    times = np.array([200.0, 0, 10, 70])
    values = np.array([[7, 8], [1, 2], [3, np.nan], [5, 6]])
    begins, means = resample(times, values, "1min")
    assert begins.tolist() == [0, 60, 120, 180]
    np.testing.assert_array_equal(means, [[2, 2], [5, 6], [np.nan, np.nan], [7, 8]])
    begins, means = resample(
        read_times(column(["2024-01-05", "2024-03-07"]), "t"), np.ones(2), "1 month"
    )
    assert [format_time(b, TimeFormat("%Y-%m-%d")) for b in begins] == [
        "2024-01-01", "2024-02-01", "2024-03-01",
    ]  # fmt: skip
    np.testing.assert_array_equal(means, [1, np.nan, 1])
    with pytest.raises(ThreefoldError, match="expected at most"):
        resample(np.array([0, 1e9]), np.ones(2), "1s")


@pytest.mark.parametrize(
    ("text", "step"),
    [("15min", (900, 0)), ("1 h", (3600, 0)), ("day", (86400, 0)), ("2 Years", (0, 24)),
     (0.5, (0.5, 0)), ("quarter", (0, 3))],
)  # fmt: skip
def test_steps(text: str, step: tuple[float, int]) -> None:
    assert parse_step(text) == step


@pytest.mark.parametrize(
    "text", ["", "fortnight", "0 s", "-1h", "1.5 months", "1..2 s", "0 months"]
)
def test_steps_that_are_none(text: str) -> None:
    with pytest.raises(ThreefoldError, match="is not a step"):
        parse_step(text)
