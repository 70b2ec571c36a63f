"""`python -m benchmarks`: a quick run from end to end, and checks that can fail."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import figure, mamba, other_models, peers, record, runner, table, weights
from benchmarks.measure import Comparison, Result, max_exponent, max_ratio, min_speedup, report
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
    paths = sorted(tmp_path.glob("*.json"))
    assert [path.stem.split("-")[-1] for path in paths] == ["default", "kept"]
    for path in paths:
        check_results(path, done.stdout, shlex.join(["python", "-m", "benchmarks", *arguments]))
        assert "<svg" in path.with_suffix(".svg").read_text()
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 6  # no temporary files are left
    measured = [{c["benchmark"] for c in json.loads(p.read_text())["comparisons"]} for p in paths]
    assert measured == [{"decode", "reservoir", "selective_scan"}, set(QUICK) - {"reservoir"}]


def check_results(path: Path, printed: str, command_line: str) -> None:
    """The JSON says how, when and where it was measured, and has every sample."""
    values = json.loads(path.read_text())
    run = values["run"]
    setting = path.stem.split("-")[-1]
    assert run["memory"] == (setting if sys.platform == "linux" else "default")
    assert run["command"] == command_line
    assert datetime.now(UTC) - datetime.fromisoformat(run["date"]) < timedelta(minutes=5)
    assert run["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", run["commit"])
    assert values["machine"]["cores"] == os.cpu_count()
    assert values["machine"]["torch"] == torch.__version__
    assert values["machine"]["threads"] == 1
    choice = library.current()
    assert values["machine"]["kernels"] == (choice.native.variant if choice.native else "reference")
    assert values["failures"] == {}
    assert all(limit["rate"] > 0 for limit in values["machine_limits"].values())
    for comparison in values["comparisons"]:
        assert comparison["title"] in printed
        for contender in comparison["contenders"].values():
            low, high = contender["quartiles"]
            assert 0 < low <= contender["median"] <= high
    assert any(comparison["targets"] for comparison in values["comparisons"])


def test_names_are_listed_and_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--list"])
    command.main()
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == runner.names()
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == (
        {"__init__", *runner.names()} | runner.HELPER_MODULES
    )
    for wrong, words in (
        (["decoding"], "unknown benchmark decoding; choose from: attention_crossing"),
        (["--threads", "0"], "--threads 0: expected 1 or more"),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *wrong])
        with pytest.raises(SystemExit, match=words):
            command.main()


def test_a_failing_benchmark_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def comparisons(module: ModuleType, quick: bool) -> Iterator[Comparison]:
        if module.__name__.endswith("decode"):
            raise AssertionError("they differ")
        yield Comparison("nothing", {"threefold": lambda: []}, rounds=1)

    monkeypatch.setattr(runner, "comparisons", comparisons)
    threads = torch.get_num_threads()
    job = runner.Job("default", ["decode", "selective_scan"], True, threads, tmp_path, "command")
    assert not runner.run(job)
    assert "FAILED decode: AssertionError: they differ" in capsys.readouterr().err
    (path,) = tmp_path.iterdir()  # nothing to draw
    values = json.loads(path.read_text())
    assert values["failures"] == {"decode": "AssertionError: they differ"}
    assert [comparison["title"] for comparison in values["comparisons"]] == ["nothing"]


def test_results_that_differ_are_not_measured() -> None:
    ours, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 1.001])
    comparison = Comparison(
        "sums", {"threefold": lambda: [ours], "peer": lambda: [wrong]}, rounds=1
    )
    with pytest.raises(AssertionError, match=r"sums: peer and threefold differ by 1\.0e-03"):
        comparison.measure()
    unchecked = Comparison("sums", comparison.contenders, rounds=1, unchecked=("peer",))
    assert set(unchecked.measure().medians) == {"threefold", "peer"}
    nothing = Comparison("sums", {"threefold": lambda: [ours], "peer": lambda: []}, rounds=1)
    with pytest.raises(ValueError, match="zip"):
        nothing.measure()


def test_slow_contenders_run_in_every_third_round() -> None:
    comparison = Comparison("x", {"a": lambda: [], "b": lambda: []}, rounds=7, slow=("b",))
    assert {name: len(samples) for name, samples in comparison.measure().samples.items()} == {
        "a": 7,
        "b": 3,
    }


def test_targets_are_met_or_not() -> None:
    samples = {"threefold": [2.0, 1.0, 3.0], "peer": [8.0], "slower": [9.0], "bound": [1.0]}
    targets = (
        min_speedup(4, "peer", "slower"),
        min_speedup(4.1, "peer", "slower"),
        max_ratio(2, "bound"),
        max_ratio(1.9, "bound"),
        max_exponent(1.5, "threefold", "peer", 4),
        max_exponent(0.9, "threefold", "peer", 4),
        min_speedup(2, "absent"),
    )
    result = Result("work", samples, targets)
    measured = [target.measured(result.medians) for target in targets]
    assert measured == pytest.approx([4, 4, 2, 2, 1, 1, None])
    marks = re.findall(r"^  ([✓✗–])", "\n".join(report(result)), re.MULTILINE)
    assert marks == ["✓", "✗", "✓", "✗", "✓", "✗", "–"]
    met = [target["met"] for target in record.result_json(result)["targets"]]
    assert met == [True, False, True, False, True, False, None]


def test_a_disturbed_machine_is_reported() -> None:
    undisturbed = Result("work", {"threefold": [1.0]}, slowdown=1.1)
    assert "measure again" not in "\n".join(report(undisturbed))
    disturbed = report(replace(undisturbed, slowdown=2.0))
    assert "2.0 times slower than at the start: measure again" in disturbed[-1]


def test_a_missing_peer_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    peers.installed.cache_clear()
    try:
        comparisons = list(other_models.quick())
        assert mamba.peer_models(mamba.threefold_model(mamba.TINY), "transformers", "mambapy") == {}
    finally:
        peers.installed.cache_clear()
    assert [comparison.title.split()[0] for comparison in comparisons] == ["LSTM"]
    assert capsys.readouterr().err.splitlines() == [
        f"skipped: {name} is not installed (pip install 'threefold[bench]')"
        for name in ("transformers", "mambapy")
    ]


def test_every_weight_is_copied() -> None:
    model = mamba.threefold_model(mamba.TINY)
    theirs = torch.nn.Module()
    theirs.embedding = torch.nn.Embedding(mamba.TINY.vocabulary, mamba.TINY.width)
    with pytest.raises(AssertionError, match=r"Module has no weight for norm\.weight"):
        weights.copy_weights(model, theirs, weights.MAMBA)
    assert weights.our_name("backbone.layers.3.mixer.x_proj.weight", weights.MAMBA) == (
        "stack.blocks.3.mixer.select.weight"
    )
    with pytest.raises(KeyError):
        weights.our_name("layers.3.mixer.unknown", weights.MAMBA)


def test_lines_cross_between_the_measured_lengths() -> None:
    linear = {256: 1.0, 1024: 4.0, 4096: 16.0}
    square = {256: 0.25, 1024: 4.0 / 0.5, 4096: 64.0}
    # The gap goes from log 4 to −log 2 while the length grows fourfold.
    assert figure.crossing(linear, square) == pytest.approx((256 * 4 ** (2 / 3), 4 ** (2 / 3)))
    assert figure.crossing(linear, linear | {256: 2.0}) is None


def test_each_memory_setting_has_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["mamba_prefill", "reservoir", "training_loop"]
    assert runner.plan(names, None) == {
        "default": ["mamba_prefill", "reservoir"],
        "kept": ["mamba_prefill", "training_loop"],
    }
    assert runner.plan(names, "both") == {"default": names, "kept": names}
    assert runner.plan(names, "kept") == {"kept": names}
    jobs = [runner.Job(memory, [], True, 1, Path(), "") for memory in ("default", "kept")]
    codes = {"default": 1, "kept": 0}
    monkeypatch.setattr(runner, "exit_code_in_child", lambda job: codes[job.memory])
    assert not runner.run_all(jobs)  # both ran, and the first failed
    codes["default"] = 0
    assert runner.run_all(jobs)
    codes["default"] = runner.INTERRUPTED
    assert not runner.run_all(jobs)


def test_memory_that_cannot_be_kept_is_recorded_as_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "keep_memory", lambda: False)
    assert runner.set_memory("kept") == "default"
    monkeypatch.setattr(runner, "keep_memory", lambda: True)
    for name in runner.KEPT_ENVIRONMENT:
        monkeypatch.setenv(name, "")  # restored after the test
    assert [runner.set_memory(memory) for memory in runner.MEMORY_SETTINGS] == ["default", "kept"]
    assert runner.KEPT_ENVIRONMENT.items() <= os.environ.items()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("memory", "kept"), [("default", False), ("kept", True)])
def test_child_processes_have_the_memory_setting(memory: str, kept: bool) -> None:
    child = (
        "import torch; from benchmarks.selective_scan import resident_bytes as now; "
        "before = now('VmRSS'); x = torch.ones(25_000_000); del x; print(now('VmRSS') - before)"
    )
    parent = (
        "import subprocess, sys; from benchmarks import runner; "
        f"effective = runner.set_memory({memory!r}); "
        f"out = subprocess.check_output([sys.executable, '-c', {child!r}], text=True); "
        "print(effective, out)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in runner.KEPT_ENVIRONMENT}
    out = subprocess.check_output(
        [sys.executable, "-c", parent], cwd=ROOT, env=environment, text=True
    )
    effective, growth = out.split()[-2:]
    if effective != memory:
        pytest.skip("this system cannot keep freed memory")
    assert (int(growth) > 50_000_000) is kept


def run_json(memory: str, peer: float, slowdown: float = 1.0) -> table.Run:
    """A run with one target and a comparison that has none."""
    machine = {"processor": "Test CPU", "cores": 4, "threads": 2, "kernels": "v3"}
    versions = {"python": "3.12", "torch": "2.13", "threefold": "0.1"}
    peer_versions = {"transformers": "5.0", "mambapy": None}
    details = {"date": "2026-01-02T03:04:05+00:00", "commit": "abc", "command": "python -m x"}
    targets = (min_speedup(6, "peer"), max_ratio(2, "absent"))
    results = [
        Result("prefill", {"threefold": [1.0], "peer": [peer]}, targets, slowdown=slowdown),
        Result("scan", {"threefold": [1.0], "plain": [12.0]}),
    ]
    header = record.Header(
        {**details, "memory": memory, "quick": False},
        {**machine, **versions, "peers": peer_versions},
        [],
    )
    return record.as_json(header, {"mamba_prefill": results}, {})


def test_the_table_has_both_memory_settings_and_a_caption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = [run_json("default", 7.3), run_json("kept", 3.4, slowdown=2.0)]
    runs[1]["comparisons"].pop()
    for number, run in enumerate(runs):
        record.write(tmp_path / f"{number}.json", run)
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    monkeypatch.setattr(sys, "argv", ["table", *paths])
    table.main()
    assert capsys.readouterr().out.splitlines() == [
        "Test CPU, 4 cores, torch threads: 2; 2026-01-02 (UTC); commit abc; `python -m x`; "
        "python 3.12, torch 2.13, threefold 0.1, transformers 5.0; kernels v3.",
        table.NOTE,
        "",
        "| work | figure | memory default | memory kept | target |",
        "|---|---|---|---|---|",
        "| prefill | times as fast as peer | 7.30 | **3.40** † | ≥ 6 |",
        "| scan | times as fast as plain | 12.0 | – |  |",
    ]
