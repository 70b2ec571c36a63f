"""Forecasts that know some inputs of the rows to come: training, forecasts, and what is refused."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import threefold
from threefold.cli.app import app
from threefold.errors import ThreefoldError

SETTINGS = {"model.width": 16, "model.depth": 1, "data.length": 12}
KNOWN = ["temp", "holiday"]
ROWS, HORIZON = 700, 4


def columns(shop: int = 0) -> dict[str, list[Any]]:
    """A flow that follows the temperature and the holiday of its own row."""
    random = np.random.default_rng(shop)
    temp, is_holiday = random.standard_normal(ROWS), random.random(ROWS) < 0.2
    flow = 20 + 3 * temp + 5 * is_holiday + 0.05 * random.standard_normal(ROWS)
    hours = np.datetime64("2024-03-01T00:00") + np.arange(ROWS).astype("timedelta64[h]")
    return {
        "time": [str(hour).replace("T", " ") for hour in hours],
        "flow": flow.tolist(),
        "temp": temp.tolist(),
        "other": random.standard_normal(ROWS).tolist(),
        "holiday": ["yes" if day else "no" for day in is_holiday],
    }


def part(begin: int, end: int, *without: str) -> dict[str, list[Any]]:
    return {n: column[begin:end] for n, column in columns().items() if n not in without}


@cache
def trained(known: str | None = "temp,holiday") -> Any:
    return threefold.train(
        part(0, 600), target="flow", horizon=HORIZON, mixers="gru", steps=3, settings=SETTINGS,
        known_future=known,
    )  # fmt: skip


def error(answers: Any, begin: int = 600) -> float:
    flows = np.array([answer["flow"] for answer in answers])
    return float(np.abs(flows - columns()["flow"][begin : begin + len(flows)]).mean())


def test_the_filter_and_the_network_read_the_future() -> None:
    with_future, without = trained(), trained(None)
    assert with_future.summary["linear_start"]["name"] == "ridge"
    assert with_future.test.metric < 0.15 < 1.0 < without.test.metric
    # temp, two categories: of each of the rows to come.
    assert with_future.model.exogenous == without.model.exogenous + 3 * HORIZON
    evaluation = threefold.evaluate(with_future, part(0, 600))
    assert evaluation["mae"] < 0.15


@pytest.mark.parametrize("steps", [1, HORIZON, 10])
def test_rows_below_the_history_are_those_of_a_table_of_their_own(steps: int) -> None:
    model = trained().model
    below = part(0, 600 + steps)
    below["flow"] = [*below["flow"][:600], *[None] * steps]
    answers = model.predict(below, horizon=steps)
    assert len(answers) == steps and error(answers) < 0.3
    alone = model.predict(part(0, 600), horizon=steps, future=part(590, 650, "flow", "other"))
    assert [a["time"] for a in alone] == [a["time"] for a in answers] == columns()["time"][600:600 + steps]  # fmt: skip  # noqa: E501
    if steps % HORIZON == 0:  # else the rows behind the last step are known in one of them only
        assert list(alone) == list(answers)
    changed = {**below, "temp": [*below["temp"][:-1], below["temp"][-1] + 2]}
    moved = model.predict(changed, horizon=steps)[-1]["flow"] - answers[-1]["flow"]
    assert moved == pytest.approx(6, abs=0.5)


@pytest.mark.parametrize(
    ("future", "words"),
    [
        (None, "0 rows after the last value of flow"),
        ((600, 602), "2 rows after the last value of flow"),
        ((601, 620), "the 1st row after the last value of flow should be at 2024-03-26 00:00"),
    ],
)
def test_missing_future_rows_are_refused(future: tuple[int, int] | None, words: str) -> None:
    rows = None if future is None else part(*future, "flow", "other")
    with pytest.raises(ThreefoldError, match=words):
        trained().model.predict(part(0, 600), future=rows)


def test_incomplete_future_rows_are_refused() -> None:
    rows = part(600, 604, "flow")
    rows["temp"][2] = None
    with pytest.raises(ThreefoldError, match="temp has no usable number in the 3rd row"):
        trained().model.predict(part(0, 600), future=rows)
    with pytest.raises(ThreefoldError, match="column holiday is missing; future rows need temp"):
        trained().model.predict(part(0, 600), future=part(600, 604, "holiday"))


def test_what_has_no_known_future_refuses_it() -> None:
    with pytest.raises(ThreefoldError, match="trained without known future inputs"):
        trained(None).model.predict(part(0, 600), future=part(600, 604))
    with pytest.raises(ThreefoldError, match="known_future names flow, which is a target"):
        threefold.train(part(0, 600), target="flow", known_future="flow", steps=1)
    with pytest.raises(ThreefoldError, match="no column 'tmp'; did you mean 'temp'"):
        threefold.train(part(0, 600), target="flow", known_future=["tmp"], steps=1)
    with pytest.raises(ThreefoldError, match="reads temp, holiday of rows to come"):
        threefold.stream(trained().model, part(0, 600))


def test_several_series_have_futures_of_their_own() -> None:
    shops = [columns(shop) for shop in range(2)]
    joined = {name: [*shops[0][name], *shops[1][name]] for name in shops[0]}
    joined["shop"] = ["a"] * ROWS + ["b"] * ROWS
    run = threefold.train(
        joined, target="flow", series_column="shop", horizon=2, mixers="gru", steps=1,
        settings=SETTINGS, known_future=KNOWN,
    )  # fmt: skip
    below = {**joined, "flow": [*shops[0]["flow"][:-2], None, None, *shops[1]["flow"][:-2], None, None]}  # fmt: skip  # noqa: E501
    answers = run.model.predict(below)
    flows = {(a["series"], a["step"]): a["flow"] for a in answers}
    for number, name in enumerate("ab"):
        for step in (1, 2):
            truth = shops[number]["flow"][ROWS - 3 + step]
            assert flows[name, step] == pytest.approx(truth, abs=0.5)


def test_the_command_line_and_a_saved_model(tmp_path: Path) -> None:
    write(tmp_path / "flow.csv", part(0, 600))
    write(tmp_path / "weather.csv", part(600, 606, "flow", "other"))
    run = CliRunner().invoke
    options = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    trained_run = run(app, [
        "train", str(tmp_path / "flow.csv"), "--target", "flow", "--horizon", "4", "--steps", "2",
        "--mixers", "gru", "--known-future", "temp,holiday", "--folder", str(tmp_path / "run"),
        *options,
    ])  # fmt: skip
    assert trained_run.exit_code == 0, trained_run.output
    assert "temp, holiday of the rows that are forecast" in " ".join(trained_run.output.split())
    answers = run(app, ["forecast", str(tmp_path / "run"), str(tmp_path / "flow.csv"), "--future",
                        str(tmp_path / "weather.csv"), "--horizon", "6", "--json"])  # fmt: skip
    assert answers.exit_code == 0, answers.output
    start = answers.stdout.index("[")
    assert error(json.loads(answers.stdout[start:])) < 0.3
    refused = run(app, ["forecast", str(tmp_path / "run"), str(tmp_path / "flow.csv")])
    assert refused.exit_code != 0


def write(path: Path, table: dict[str, list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
