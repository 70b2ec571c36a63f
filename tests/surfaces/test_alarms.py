"""Alarms of `threefold stream`: rates, stretches, calibrations that are kept, resumed streams."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threefold
from tests.surfaces.test_cli import good, refused
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import ThreefoldError
from threefold.lab.studies.alarms import AlarmStudy, area_under_curve, lines
from threefold.models.alarm_calibration import BODY, TAIL, CleanScores, Halves
from threefold.runtime.scores.alarms import STRETCH, AlarmLog

RATE, WINDOW = 0.01, 20


def series(rows: int, seed: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return 100 + 5 * np.sin(np.arange(rows) / 4) + random.standard_normal(rows)


def write(path: Path, values: Any) -> Path:
    path.write_text("\n".join(["flow", *(f"{value:.6f}" for value in values)]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("alarms")
    table = write(home / "train.csv", series(600, 0))
    settings = {"data.length": 12, "data.horizon": 1, "model.width": 16, "model.depth": 1}
    run = threefold.train(
        table, target="flow", mixers="gru", steps=5, folder=home / "run", settings=settings
    )
    return run.folder


@pytest.fixture
def workdir(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    threefold.load(trained).save("flow")
    write(tmp_path / "clean.csv", series(2000, 1))
    values = series(1200, 2)
    values[500] += 30  # a point
    values[800:830] += 2.5 * (-1) ** np.arange(30)  # a stretch of slightly odd values
    write(tmp_path / "new.csv", values)
    return tmp_path


ALARM = ("--alarm", str(RATE), "--window", str(WINDOW))


def test_planted_points_and_stretches_are_found_at_the_rate_that_was_asked_for(
    workdir: Path,
) -> None:
    said = good(
        "stream", "flow", "new.csv", *ALARM, "--calibrate", "clean.csv", "--output", "a.csv",
        "--json",
    )  # fmt: skip
    summary = json.loads(said)
    alarms = summary["alarms"]
    hit = [a for a in alarms if a["position"] <= 500 <= a["last_position"]]
    assert hit and "point" in hit[0]["kind"] and hit[0]["p_value"] < 1 / 1000
    odd = [a for a in alarms if STRETCH in a["kind"] and 800 <= a["last_position"] < 860]
    assert odd, alarms
    rates = summary["alarm_rates"]
    assert rates["asked"] == RATE and RATE / 2 <= rates["held_out"]["point"] <= 2 * RATE
    assert summary["alarm_count"] == len(alarms)
    # A later stream needs no clean file, and says the same; the model can still be saved over.
    good("stream", "flow", "new.csv", *ALARM, "--output", "b.csv")
    assert Path("a.csv").read_text() == Path("b.csv").read_text()
    threefold.load("flow").save("flow")
    assert threefold.load("flow").alarms is not None


def test_a_stream_in_two_parts_has_the_same_alarms(workdir: Path) -> None:
    options = (*ALARM, "--chunk-size", "64", "--json")
    whole = json.loads(
        good("stream", "flow", "new.csv", *options, "--calibrate", "clean.csv", "--output", "a.csv")
    )
    text = Path("new.csv").read_text().splitlines(keepends=True)
    Path("grown.csv").write_text("".join(text[:812]))  # inside a stretch
    parts = ("stream", "flow", "grown.csv", *options, "--output", "b.csv", "--state", "s")
    good(*parts)
    Path("flow/alarms.safetensors").unlink()  # the state has its own
    Path("grown.csv").write_text("".join(text))
    again = json.loads(good(*parts))
    assert Path("a.csv").read_bytes() == Path("b.csv").read_bytes()
    assert again["alarms"] == whole["alarms"] and again["alarm_rates"] == whole["alarm_rates"]


def test_too_few_clean_elements_are_refused_with_the_smallest_number(workdir: Path) -> None:
    write(workdir / "short.csv", series(100, 3))
    needed = 99 + 30 + 1  # 1/rate − 1, those to warm up, and the first, which has no forecast
    command = ("stream", "flow", "new.csv", "--alarm", "0.01", "--output", "o.csv")
    message = refused(*command, "--calibrate", "short.csv")
    assert f"which are {needed} elements" in message and not Path("o.csv").exists()
    write(workdir / "short.csv", series(needed, 3))
    good(*command, "--calibrate", "short.csv")
    message = refused("stream", "flow", "new.csv", "--alarm", "0.001")
    assert "on 99 clean elements" in message and "at least 999" in message
    write(workdir / "short.csv", series(90, 3))
    needed = 19 + 99 + 30 + 1  # a window of 100 is whole at the 100th score
    command = ("stream", "flow", "new.csv", "--alarm", "0.05", "--window", "100")
    message = refused(*command, "--calibrate", "short.csv", "--output", "p.csv")
    assert "0 can be compared in windows of 100; alarms at a rate of 0.05 need 19" in message
    assert f"which are {needed} elements; give more" in message and "ask for" not in message
    write(workdir / "short.csv", series(needed, 3))
    good(*command, "--calibrate", "short.csv", "--output", "p.csv")


def test_what_does_not_fit_is_refused(workdir: Path) -> None:
    begin = ("stream", "flow", "new.csv")
    assert "no calibration for alarms" in refused(*begin, "--alarm", "0.01")
    assert "expected a rate above 0" in refused(*begin, "--alarm", "2")
    assert "the mode is predict" in refused(*begin, "--mode", "predict", "--window", "5")
    assert "no rate of alarms" in refused(*begin, "--mode", "anomaly", "--calibrate", "clean.csv")
    good(*begin, "--alarm", "0.01", "--calibrate", "clean.csv", "--output", "a.csv")
    assert "calibrated for the window without a window" in refused(*begin, *ALARM)
    assert "context 12, now it is all" in refused(*begin, "--alarm", "0.01", "--context", "all")
    assert "with other weights" in refused(*begin, "--alarm", "0.01", "--weights", "int8")


def test_groups_keep_alarms(workdir: Path) -> None:
    model = threefold.load("flow")
    rows: list[dict[str, Any]] = []
    options: dict[str, Any] = {"alarm": RATE, "window": WINDOW, "calibrate": "clean.csv"}
    for scores in threefold.stream(model, "new.csv", group_size=100, **options):
        rows += scores.rows()
    single = [r for part in threefold.stream(model, "new.csv", **options) for r in part.rows()]
    for number, row in enumerate(rows):
        group = single[100 * number : 100 * number + 100]
        assert bool(row["alarm"]) == any(one["alarm"] for one in group)


def test_a_window_acts_on_tokens(tmp_path: Path) -> None:
    """The column is the mean of the last surprises, after those to warm up."""
    model = threefold.build(
        threefold.Spec(kind="language", mixers=("gru",), width=16, depth=1, vocabulary=256)
    )
    model.tokenizer = ByteTokenizer()
    text = bytes(np.random.default_rng(0).integers(97, 123, 400).tolist())
    rows = [r for p in threefold.stream(model, text, mode="anomaly", window=7) for r in p.rows()]
    surprises = [row["surprise"] for row in rows]
    assert all(row["window_score"] is None for row in rows[: 31 + 6])
    for t in range(31 + 6, 400):
        assert rows[t]["window_score"] == pytest.approx(np.mean(surprises[t - 6 : t + 1]))


# ------------------------------------------------------------------------------------ calibrations


def test_p_values_are_conformal() -> None:
    clean, new = np.array([3.0, 1.0, 2.0, 2.0]), np.array([0.5, 2.0, 2.5, 3.0, 9.0, np.nan])
    expected = [(1 + sum(c >= s for c in clean)) / 5 for s in new[:-1]]
    assert CleanScores.fit(clean).p_values(new[:-1]).tolist() == expected
    both = Halves.fit(clean).p_values(new)
    assert both[:-1].tolist() == expected and math.isnan(both[-1])


def test_many_scores_are_thinned_below_the_tail_and_rounded_up() -> None:
    values = np.random.default_rng(0).random(3 * TAIL)
    clean = CleanScores.fit(values)
    assert len(clean.scores) <= TAIL + BODY
    new = np.linspace(0.0, 1.0, 1001)
    exact = (1 + (values[None] >= new[:, None]).sum(1)) / (1 + len(values))
    found = clean.p_values(new)
    assert (found >= exact).all() and (found - exact).max() < 2 / BODY
    assert (found[new > 0.7] == exact[new > 0.7]).all()


def test_held_out_rates_need_two_long_halves() -> None:
    scores = np.random.default_rng(1).standard_normal(20_000)
    rate = Halves.fit(scores).held_out_rate(0.01)
    assert rate is not None and 0.007 < rate < 0.013
    assert Halves.fit(scores[:150]).held_out_rate(0.01) is None


def test_neighbours_are_one_alarm() -> None:
    class Judge:
        rate, window = 0.01, None

    log = AlarmLog(Judge())  # type: ignore[arg-type]
    chances = np.ones(100)
    chances[[20, 25, 34, 60]] = 0.001
    columns = {"position": range(100), "p_value": chances.tolist()}
    log.add({**columns, "alarm": ["point" if p < 1 else "" for p in chances]})
    assert [(a["position"], a["last_position"]) for a in log.alarms] == [(20, 34), (60, 60)]
    assert log.elements["point"] == 4 and log.judged == 100


def test_a_damaged_calibration_is_refused(workdir: Path) -> None:
    Path("flow/alarms.safetensors").write_bytes(Path("flow/model.safetensors").read_bytes())
    with pytest.raises(ThreefoldError, match="calibrate alarms again"):
        threefold.load("flow")


def test_the_study_finds_planted_clicks_and_tones() -> None:
    *_, row = lines(["sound"], AlarmStudy(steps=20, trained=2000, clean=2500))
    assert "| 10 of 10 |" in row
    with pytest.raises(ThreefoldError, match="unknown kind 'soud'"):
        list(lines(["soud"], AlarmStudy()))
    scores, labels = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, True, False, True])
    assert area_under_curve(scores, labels) == (1.5 + 2) / 4  # ties count half
