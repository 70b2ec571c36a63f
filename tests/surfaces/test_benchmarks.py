"""`python -m benchmarks`: a quick run from end to end, and that its judgements can fail."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import figure, mamba, other_models, peers, record, weights
from benchmarks.measure import Race, Result, at_least, at_most, exponent, report
from threefold.kernels import library

ROOT = Path(__file__).parent.parent.parent
QUICK = ("attention_crossing", "decode", "reservoir", "selective_scan")


def test_a_quick_run_writes_json_and_a_figure(tmp_path: Path) -> None:
    arguments = ["--quick", "--threads", "1", "--out", str(tmp_path), *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    values = json.loads(path.read_text())
    assert values["machine"]["torch"] == torch.__version__
    assert values["machine"]["threads"] == 1
    choice = library.current()
    assert values["machine"]["kernels"] == (choice.native.variant if choice.native else "reference")
    assert values["failures"] == {}
    assert {race["benchmark"] for race in values["races"]} == set(QUICK)
    assert all(roof["rate"] > 0 for roof in values["roofs"].values())
    for race in values["races"]:
        assert race["title"] in done.stdout
        for contender in race["contenders"].values():
            low, high = contender["quartiles"]
            assert 0 < low <= contender["median"] <= high
    assert any(race["targets"] for race in values["races"])
    svg = path.with_suffix(".svg").read_text()
    assert "<svg" in svg
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 3  # nothing is left beside them


def test_names_are_listed_and_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list"])
    command.main()
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == command.names()
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == (
        {"__init__", *command.names()} | command.TOOLS
    )
    for wrong, words in (
        (["decoding"], "no benchmark decoding; known: attention_crossing"),
        (["--threads", "0"], "--threads 0: expected 1 or more"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *wrong])
        with pytest.raises(SystemExit, match=words):
            command.main()


def test_a_failing_benchmark_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def races(module: ModuleType, quick: bool) -> Iterator[Race]:
        if module.__name__.endswith("decode"):
            raise AssertionError("they differ")
        yield Race("nothing", {"threefold": lambda: []}, rounds=1)

    monkeypatch.setattr(command, "races", races)
    assert not command.run(["decode", "selective_scan"], quick=True, out=tmp_path)
    assert "FAILED decode: AssertionError: they differ" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()  # nothing to draw
    values = json.loads(path.read_text())
    assert values["failures"] == {"decode": "AssertionError: they differ"}
    assert [race["title"] for race in values["races"]] == ["nothing"]


def test_results_that_differ_are_not_measured() -> None:
    ours, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 1.001])
    race = Race("sums", {"threefold": lambda: [ours], "peer": lambda: [wrong]}, rounds=1)
    with pytest.raises(AssertionError, match=r"sums: peer and threefold differ by 1\.0e-03"):
        race.measure()
    apart = Race("sums", race.contenders, rounds=1, apart=("peer",))
    assert set(apart.measure().medians) == {"threefold", "peer"}
    nothing = Race("sums", {"threefold": lambda: [ours], "peer": lambda: []}, rounds=1)
    with pytest.raises(ValueError, match="zip"):
        nothing.measure()


def test_slow_contenders_run_in_every_third_round() -> None:
    race = Race("x", {"a": lambda: [], "b": lambda: []}, rounds=7, seldom=("b",))
    assert {name: len(samples) for name, samples in race.measure().samples.items()} == {
        "a": 7,
        "b": 3,
    }


def test_targets_are_met_or_not() -> None:
    samples = {"threefold": [2.0, 1.0, 3.0], "peer": [8.0], "slower": [9.0], "bound": [1.0]}
    targets = (
        at_least(4, "peer", "slower"),
        at_least(4.1, "peer", "slower"),
        at_most(2, "bound"),
        at_most(1.9, "bound"),
        exponent(1.5, "threefold", "peer", 4),
        exponent(0.9, "threefold", "peer", 4),
        at_least(2, "absent"),
    )
    result = Result("work", samples, targets)
    measured = [target.measured(result.medians) for target in targets]
    assert measured == pytest.approx([4, 4, 2, 2, 1, 1, None])
    marks = re.findall(r"^  ([✓✗–])", "\n".join(report(result)), re.MULTILINE)
    assert marks == ["✓", "✗", "✓", "✗", "✓", "✗", "–"]
    met = [target["met"] for target in record.race_json(result)["targets"]]
    assert met == [True, False, True, False, True, False, None]


def test_a_disturbed_machine_is_said() -> None:
    calm = Result("work", {"threefold": [1.0]}, pulse=1.1)
    assert "measure it again" not in "\n".join(report(calm))
    assert "2.0 times slower here" in report(replace(calm, pulse=2.0))[-1]


def test_a_missing_peer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    peers.installed.cache_clear()
    try:
        races = list(other_models.quick())
        assert mamba.others(mamba.ours(mamba.TINY), "transformers", "mambapy") == {}
    finally:
        peers.installed.cache_clear()
    assert [race.title.split()[0] for race in races] == ["LSTM"]
    assert capsys.readouterr().err.splitlines() == [
        f"skipped: {name} is not installed (pip install 'threefold[bench]')"
        for name in ("transformers", "mambapy")
    ]


def test_every_weight_has_a_place() -> None:
    model = mamba.ours(mamba.TINY)
    theirs = torch.nn.Module()
    theirs.embedding = torch.nn.Embedding(mamba.TINY.vocabulary, mamba.TINY.width)
    with pytest.raises(AssertionError, match=r"Module has no place for norm\.weight"):
        weights.give(model, theirs, weights.MAMBA)
    assert weights.ours_of("backbone.layers.3.mixer.x_proj.weight", weights.MAMBA) == (
        "stack.blocks.3.mixer.select.weight"
    )
    with pytest.raises(KeyError):
        weights.ours_of("layers.3.mixer.unknown", weights.MAMBA)


def test_lines_cross_between_the_measured_lengths() -> None:
    linear = {256: 1.0, 1024: 4.0, 4096: 16.0}
    square = {256: 0.25, 1024: 4.0 / 0.5, 4096: 64.0}
    # The gap goes from log 4 to −log 2 while the length grows fourfold.
    assert figure.crossing(linear, square) == pytest.approx((256 * 4 ** (2 / 3), 4 ** (2 / 3)))
    assert figure.crossing(linear, linear | {256: 2.0}) is None
