"""Rows that a stream must read as training and forecasts do: numbers, repeats, clocks, files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import threefold
from tests.surfaces.test_cli import here
from tests.surfaces.test_stream import lines
from threefold import ThreefoldError
from threefold.data.cells import number_of_one_cell
from threefold.runtime.stream_job import StreamJob
from threefold.runtime.streaming import stream

COUNT = 200
HEADER = "when;load;temp"
SMALL = {"data.horizon": 2, "data.length": 8, "model.width": 16, "model.depth": 1}


def german(number: float) -> str:
    """1.234,50"""
    return f"{number:,.2f}".translate(str.maketrans(",.", ".,"))


def row(hour: int, zone: str = "") -> str:
    when = f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00{zone}"
    return f"{when};{german(1200 + 300 * math.sin(hour / 4))};{german(math.cos(hour / 4))}"


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A forecaster of numbers such as 1.234,50, which reads the hour of the day."""
    folder = tmp_path_factory.mktemp("load")
    path = write(folder / "load.csv", [row(hour) for hour in range(COUNT)])
    run = threefold.train(
        path, target="load", mixers="gru", steps=3, folder=folder / "run", settings=SMALL
    )
    assert run.model.preprocessing.decimal == "," and run.model.preprocessing.calendar
    return run


def answers(run: Any, path: Path, **options: Any) -> list[dict[str, Any]]:
    return [answer for part in stream(run.model, path, **options) for answer in part.rows()]


def test_thousands_are_read_as_in_training(load: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "new.csv", [row(hour) for hour in range(40)])
    streamed, forecast = answers(load, path)[-1], load.model.predict(path)
    assert streamed["missing"] == ""
    assert streamed["load+1"] == pytest.approx(forecast[0]["load"], rel=1e-5)


@pytest.mark.parametrize(
    ("cell", "decimal", "comma", "number"),
    [
        ("1.234,50", ",", False, 1234.5),
        ("1.234", ",", False, 1234.0),
        ("1,234.50", ".", False, 1234.5),
        ("1,001", ".", False, 1001.0),
        ("1234.5", ",", False, None),
        ("1.234,50", None, False, 1234.5),
        ("1,234,567", None, False, 1234567.0),
        ("0,5", None, False, 0.5),
        ("1,001", None, True, 1.001),
        ("1,001", None, False, None),  # either sign: told as not usable
        ("1.001", None, False, 1.001),
        (3, ",", False, 3.0),
    ],
)
def test_numbers_of_one_cell(
    cell: Any, decimal: str | None, comma: bool, number: float | None
) -> None:
    assert number_of_one_cell(cell, decimal, comma=comma) == number


def test_the_first_odd_cell_is_shown(load: Any, tmp_path: Path) -> None:
    rows = [row(hour) for hour in range(20)]
    rows[11] = rows[11].rpartition(";")[0] + ";0.25"
    rows[12] = rows[12].replace(";", ";\0", 1)
    write(tmp_path / "odd.csv", rows)
    done = here("stream", str(load.folder), str(tmp_path / "odd.csv"))
    assert "2 rows had missing or absurd values (load 1, temp 1)" in done.stderr
    assert (
        "odd.csv:13: column temp is '0.25'; the model was trained on numbers with a decimal comma, "
        "and a stream reads only these, not a decimal point; write it as 0,25, and all others so, "
        "or give the whole table to predict or forecast, which read both" in done.stderr
    )


@pytest.mark.parametrize("command", ["predict", "forecast"])
def test_no_message_proposes_a_setting_that_the_command_lacks(
    load: Any, tmp_path: Path, command: str
) -> None:
    rows = [row(hour) for hour in range(20)]
    rows[11] = rows[11].rpartition(";")[0] + ";0.25"
    path = write(tmp_path / "mixed.csv", rows)
    with pytest.raises(ThreefoldError) as python:
        load.model.predict(path)
    shell = here(command, str(load.folder), str(path)).stderr
    for message in (str(python.value), shell):
        assert "mixed.csv:13: temp is '0.25'; this column is read with a decimal comma" in message
        assert "write all its numbers so: 12,5" in message
        assert "--set" not in message and "settings" not in message


def test_a_row_that_is_repeated_is_no_step(load: Any, tmp_path: Path) -> None:
    rows = [row(hour) for hour in range(30)]
    once, twice = write(tmp_path / "a.csv", rows), write(tmp_path / "b.csv", [*rows, rows[-1]])
    assert answers(load, twice) == answers(load, once)
    assert list(load.model.predict(twice)) == list(load.model.predict(once))
    said = "1 row repeats an earlier one and is left out (the first at line 32)"
    assert said in load.model.predict(twice).notes
    done = here("stream", str(load.folder), str(twice))
    assert "1 row repeats the row before, time and all, and was left out" in done.stderr


def test_new_rows_may_begin_with_rows_that_were_read(load: Any, tmp_path: Path) -> None:
    rows = [row(hour) for hour in range(40)]
    write(tmp_path / "first.csv", rows[:25])
    write(tmp_path / "second.csv", rows[15:])
    whole = answers(load, write(tmp_path / "whole.csv", rows))
    words = ["--output", str(tmp_path / "o.jsonl"), "--state", str(tmp_path / "s")]
    folder = str(load.folder)
    here("stream", folder, str(tmp_path / "first.csv"), *words)
    words += ["--continue-with", "new"]
    done = here("stream", folder, str(tmp_path / "second.csv"), *words)
    assert done.returncode == 0
    assert "10 rows are not later than the last row of the input before, and were left" in (
        done.stderr
    )
    given = lines(tmp_path / "o.jsonl")
    assert [answer["time"] for answer in given] == [answer["time"] for answer in whole]
    assert given[-1]["load+1"] == pytest.approx(whole[-1]["load+1"], rel=1e-5)
    # A repeated row of the last input is told for that input only.
    done = here("stream", folder, str(write(tmp_path / "more.csv", [row(40)])), *words)
    assert "left out" not in done.stderr


def test_times_of_another_clock_are_refused(load: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "zoned.csv", [row(hour, "+02:00") for hour in range(30)])
    what = "the new times in column when have a zone and those of training have none"
    for use in (load.model.predict, lambda path: answers(load, path)):
        with pytest.raises(ThreefoldError, match=what):
            use(path)


@pytest.mark.parametrize("state", [True, False])
def test_a_refused_stream_leaves_no_files(load: Any, tmp_path: Path, state: bool) -> None:
    (tmp_path / "a.csv").write_text("when;temp\n2024-01-01 00:00;3\n")
    words = ["--state", str(tmp_path / "s")] * state
    output = tmp_path / "o.csv"
    done = here(
        "stream", str(load.folder), str(tmp_path / "a.csv"), "--output", str(output), *words
    )
    assert done.returncode == 2 and "the column load is missing" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_what_a_killed_stream_leaves_is_not_in_the_way(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write(tmp_path / "a.csv", [row(hour) for hour in range(60)]))
    here("stream", str(load.folder), path, "--output", str(tmp_path / "whole.jsonl"))
    output = tmp_path / "o.jsonl"
    output.touch()  # killed before the first chunk
    words = ["stream", str(load.folder), path, "--output", str(output)]
    words += ["--state", str(tmp_path / "s"), "--chunk-size", "8"]
    save, saved = StreamJob.save, []

    def killed(job: StreamJob) -> None:
        if saved:
            raise MemoryError
        saved.append(save(job))

    with monkeypatch.context() as patch:
        patch.setattr(StreamJob, "save", killed)
        with pytest.raises(MemoryError):
            here(*words)
    done = here(*words)
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("horizon", ["3", 2.5, True, 0])
def test_horizons_that_are_no_numbers_of_rows(load: Any, tmp_path: Path, horizon: Any) -> None:
    path = write(tmp_path / "a.csv", [row(hour) for hour in range(30)])
    with pytest.raises(ThreefoldError, match=rf"horizon is {horizon!r}; expected 1 to 10,000"):
        load.model.predict(path, horizon=horizon)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"folder": 3}, "folder is 3; expected a path"),
        ({"settings": ["data.length"]}, "settings: expected a mapping"),
        ({"target": 1.5}, "target is 1.5; expected names"),
    ],
)
def test_arguments_of_other_types_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ThreefoldError, match=what):
        threefold.train({"x": list(range(50))}, steps=1, **options)


def test_paths_of_other_types_are_refused(load: Any) -> None:
    calls: list[Any] = [
        lambda: threefold.load(3),  # type: ignore[arg-type]
        lambda: threefold.evaluate(3, "a.csv"),  # type: ignore[arg-type]
        lambda: threefold.predict(3, "a.csv"),  # type: ignore[arg-type]
        lambda: load.model.save(3),
        lambda: load.plot(3),
        lambda: threefold.load_state(None, load.model),  # type: ignore[arg-type]
        lambda: threefold.WordVectors.load(3),  # type: ignore[arg-type]
        lambda: threefold.compare("copying", ["gru"], folder=3),  # type: ignore[arg-type]
        lambda: threefold.load("a\0b"),
    ]
    for call in calls:
        with pytest.raises(ThreefoldError, match=r"is (3|None|'a.*b'); expected a path"):
            call()
