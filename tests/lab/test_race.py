"""Races are fair and resumable, declare ties, and refuse what cannot be raced before training."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threefold
from tests.surfaces.test_cli import here
from threefold.errors import LockedError, ThreefoldError
from threefold.lab.bench.measuring import costs
from threefold.lab.race.best import all_data
from threefold.lab.race.planning import PlannedModel, RacePlan, make_plan
from threefold.lab.race.probes import PROBE_COST
from threefold.lab.race.race import RaceFolder, compare, run_race
from threefold.lab.race.request import RaceRequest
from threefold.lab.race.result import command_line
from threefold.lab.race.runs import HashedBatches, train_run
from threefold.lab.race.significance import verdict
from threefold.lab.race.sizing import TOLERANCE
from threefold.lab.race.timing import (
    RUN_OVERHEAD,
    EvaluationLimits,
    StepTimes,
    few_steps_note,
    timetable,
)
from threefold.lab.race.tuning import RUNGS, TUNING_RATES, Tuner, rank_rates
from threefold.training.checkpoints import lock_folder
from threefold.training.data_cache import DataCache
from threefold.training.experiment import read_run
from threefold.training.training_data import open_data

TINY = {"width": 16, "depth": 1, "batch_size": 8}
ROOT = Path(__file__).parent.parent.parent


def text_file(folder: Path, words: int = 4000) -> Path:
    """A text with something to learn."""
    rng = random.Random(0)
    path = folder / "own.txt"
    path.write_text(" ".join(rng.choice(["the", "cat", "sat", "on", "mats"]) for _ in range(words)))
    return path


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A small race on a text, and its report."""
    folder = tmp_path_factory.mktemp("race")

    def all_costs(models: Any, lengths: Any, *, limit: float, **options: Any) -> Any:
        return costs(models, lengths, **options)  # at every length, however busy the machine is

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threefold.lab.race.race.costs", all_costs)
        report = compare(
            text_file(folder),
            ("gru", "attention"),
            time="30steps",
            seeds=2,
            folder=folder / "race",
            overrides=("data.length=32",),
            **TINY,
        )
    return folder, report


def test_a_race_is_fair(raced: tuple[Path, Any]) -> None:
    _, report = raced
    sizes = [c.parameters for c in report.contenders]
    assert max(sizes) - min(sizes) <= 2 * TOLERANCE * max(sizes)
    gru, attention = report.contenders
    for one, other in zip(gru.runs, attention.runs, strict=True):
        assert one.batches == other.batches  # the same batches in the same order
        assert one.steps == other.steps == 30 and one.tokens == other.tokens
        assert [m.steps for m in one.curve] == [m.steps for m in other.curve]
    assert gru.runs[0].batches != gru.runs[1].batches
    hashes = report.subject.hashes
    assert hashes["first 30 batches of seed 0"] == gru.runs[0].batches


def test_costs_and_other_lengths_are_measured(raced: tuple[Path, Any]) -> None:
    _, report = raced
    for contender in report.contenders:
        assert contender.runs[0].score < contender.runs[0].curve[0].score  # it learnt
        for field in ("training", "inference", "prefill", "decode", "state"):
            assert len(getattr(contender.cost, field)) >= 3, field
        assert [length for length, _ in contender.other_lengths] == [32, 64, 128, 256]
    assert "<svg" in report._repr_html_()


def test_what_is_measured_besides_scores_is_stored(raced: tuple[Path, Any]) -> None:
    folder, report = raced
    stored = json.loads((folder / "race" / "extras.json").read_text(encoding="utf-8"))
    for contender in report.contenders:
        found = contender.extras
        assert found == stored[contender.name]
        assert set(found["robustness"]) == {"replaced", "deleted"}
        assert found["calibration"]["form"] == "confidence"
        assert found["influence"][0][0] == 1 and found["influence"][-1][0] == 32
        assert found["disk_bytes"] > found["weight_bytes"] == 4 * contender.parameters
        assert ("worst" in found) == (contender is report.ranked[0])
    # The same examples and damages as the models have.
    ngrams = next(b for b in report.baselines if b.name == "n-grams")
    strengths = [x for x, _ in ngrams.extras["robustness"]["replaced"]]
    assert strengths == [x for x, _ in report.ranked[0].extras["robustness"]["replaced"]]
    assert ngrams.extras["robustness_of"] == report.ranked[0].extras["robustness_of"]


def test_files_of_a_race(raced: tuple[Path, Any]) -> None:
    folder, report = raced
    place = folder / "race"
    for name in ("report.html", "report.md", "report.json", "race.json", "costs.json"):
        assert (place / name).is_file()
    model = threefold.load(place / "runs" / "gru-1" / "model")
    assert model.parameter_count == report.contenders[0].parameters
    examples = np.load(place / "runs" / "gru-1" / "examples.npy")
    score = report.contenders[0].scores[1]
    assert examples[:, 0].sum() / examples[:, 1].sum() == pytest.approx(score, rel=1e-5)


def test_the_best_model_is_used_in_another_process(raced: tuple[Path, Any]) -> None:
    folder, report = raced
    place, best = folder / "race", report.best
    losses = {
        seed: json.loads((place / "runs" / f"{best.name}-{seed}" / "result.json").read_text())
        for seed in (0, 1)
    }
    assert best.name == report.ranked[0].name
    assert best.seed == min(losses, key=lambda seed: losses[seed]["loss"])
    ours, run = (
        threefold.load(path) for path in (place, place / "runs" / f"{best.name}-{best.seed}")
    )
    weights = zip(ours.parameters(), run.parameters(), strict=True)
    assert all(one.equal(other) for one, other in weights)
    # The printed command, with the folder of the race in place of best/ as well.
    command = shlex.split(best.command)
    assert command[:3] == ["threefold", "generate", str(place / "best")]
    for chosen in (command[1:], ["generate", str(place), *command[3:]]):
        done = subprocess.run(
            [sys.executable, "-m", "threefold", *chosen], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0 and len(done.stdout) > 50, done.stderr
    unfinished = folder / "unfinished"
    unfinished.mkdir()
    (unfinished / "race.json").write_text("{}")
    with pytest.raises(ThreefoldError, match="no best model yet, because it has not finished"):
        threefold.load(unfinished)


def test_the_best_model_is_trained_on_all_data(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    rows = [f"the film was {word},{word}" for word in ("great", "awful")] * 40
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    place = tmp_path / "race"
    options = {"time": "4steps", "seeds": 1, "folder": place, "baselines": "simple"}
    report = compare(path, ("gru",), then_train="6steps", **options, **TINY)  # type: ignore[arg-type]
    assert report.best is not None and report.best.refitted == "6steps"
    assert report.best.command == f"threefold predict {place / 'best'} {path}"
    refitted, raced = (threefold.load(place / name) for name in ("best", "runs/gru-0/model"))
    weights = zip(refitted.parameters(), raced.parameters(), strict=True)
    assert not all(one.equal(other) for one, other in weights)
    config = json.loads((place / "race.json").read_text())
    assert config["request"]["time"] == "4steps"
    assert (
        len(all_data(read_run(place / "refit-6steps"), None).task.rows("train", range(80)).targets)
        == 80
    )
    assert "trained on all data for 6steps after the race" in (place / "report.md").read_text()
    # Without a duration it stays.
    again = compare(path, ("gru",), **options, **TINY)  # type: ignore[arg-type]
    assert again.best == report.best
    kept = threefold.load(place)
    assert all(a.equal(b) for a, b in zip(kept.parameters(), refitted.parameters(), strict=True))
    with pytest.raises(ThreefoldError, match="then_train is 'soon', expected a duration"):
        compare(path, ("gru",), then_train="soon", **options, **TINY)  # type: ignore[arg-type]


def test_finished_runs_are_not_repeated(
    raced: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = raced

    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("threefold.training.experiment.train", never)
    monkeypatch.setattr("threefold.lab.race.extras.load", never)
    monkeypatch.setattr("threefold.lab.race.timing.train", never)
    again = compare(
        folder / "own.txt",
        ("gru", "attention"),
        time="30steps",
        seeds=2,
        folder=folder / "race",
        overrides=("data.length=32",),
        **TINY,
    )
    assert again.to_dict() == report.to_dict()
    with pytest.raises(ThreefoldError, match=r"different settings: .*seeds was 2 and is now 3"):
        compare(
            folder / "own.txt",
            ("gru", "attention"),
            time="30steps",
            seeds=3,
            folder=folder / "race",
            overrides=("data.length=32",),
            **TINY,
        )


def without_timings(values: Any) -> Any:
    """The values of a report without measured times."""
    timed = {"seconds", "cost", "sentence", "fit_seconds", "element_seconds"}
    if isinstance(values, dict):
        return {k: without_timings(v) for k, v in values.items() if k not in timed}
    if isinstance(values, list):
        if len(values) == 4 and isinstance(values[2], float):  # a point of a curve
            return [values[0], values[1], values[3]]
        return [without_timings(item) for item in values]
    return values


def start_race(
    folder: Path, place: str, rank: int = 0, seeds: str = "2", time: str = "30steps"
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "threefold", "compare", "own.txt", "--mixers", "gru,attention",
        "--time", time, "--seeds", seeds, "--set", "data.length=32", "--width", "16",
        "--depth", "1", "--batch-size", "8", "--folder", place,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "OMP_NUM_THREADS": "1"}
    environment |= {"RANK": str(rank), "WORLD_SIZE": "2"}  # as torchrun does
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def kill_now_and_then(folder: Path, place: str, kills: int, seed: int) -> int:
    """Start a race repeatedly, killing it at a random time after its plan is made."""
    rng = random.Random(seed)
    done = 0
    for _ in range(kills):
        process = start_race(folder, place)
        while process.poll() is None and not (folder / place / "race.json").is_file():
            time.sleep(0.02)
        end = time.monotonic() + rng.uniform(0, 1)
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        done += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for process in [start_race(folder, place, rank) for rank in (0, 1)]:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    return done


def test_killed_at_random_and_spread_over_ranks_the_report_is_the_same(
    raced: tuple[Path, Any],
) -> None:
    """THREEFOLD_KILLS=10 is the full test; at the end two processes share the remaining runs."""
    folder, report = raced
    kills = int(os.environ.get("THREEFOLD_KILLS", "2"))
    assert kill_now_and_then(folder, "killed", kills, seed=kills) >= min(1, kills)
    found = json.loads((folder / "killed" / "report.json").read_text(encoding="utf-8"))
    expected = json.loads(report.to_json())
    for values in (found, expected):  # Python was given the full path
        for key in ("command", "versions"):
            del values["subject"][key]
        for key in ("folder", "command"):
            del values["best"][key]
    assert without_timings(found) == without_timings(expected)


def test_killed_with_seeds_auto_the_looks_are_the_same(tmp_path: Path) -> None:
    text_file(tmp_path)
    reports = []
    for place, kill in (("undisturbed", False), ("killed", True)):
        process = start_race(tmp_path, place, seeds="auto", time="4steps")
        if kill:
            while process.poll() is None and not list(tmp_path.glob("killed/runs/gru-1/*")):
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            process = start_race(tmp_path, place, seeds="auto", time="4steps")
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
        reports.append(json.loads((tmp_path / place / "report.json").read_text(encoding="utf-8")))
    for values in reports:
        del values["best"]
    assert without_timings(reports[0]) == without_timings(reports[1])
    assert [look["seeds"] for look in reports[0]["looks"]][:2] == [2, 3]


def tied(repetition: int, seeds: int = 3) -> bool:
    """Whether a model that races against itself, under two names, ends in a tie."""
    options = {"data": "parity", "mixers": ("a=gru", "b=gru"), "time": "12steps", "seeds": seeds}
    request = RaceRequest(**options, overrides=("data.options={trained=[1, 8], tested=[9, 16]}",))  # type: ignore[arg-type]
    model = {"mixers": ["gru"], "width": 16, "depth": 1, "channel": "none", "parameters": 1}
    plan = RacePlan(
        request,
        tuple(PlannedModel(name=n, steps=12, **model) for n in ("a", "b")),  # type: ignore[arg-type]
        target=1,
        valid_examples=16,
        test_examples=256,
    )
    scores: dict[str, dict[int, float]] = {"a": {}, "b": {}}
    for name in scores:
        for seed in range(seeds):
            config = plan.config(name, seeds * repetition + seed)
            done = train_run(plan, config, None, lambda *_: None)
            scores[name][seed] = done.run.score
    return verdict(scores, lower=False, resolution=1 / 256).kind == "tie"


def test_a_model_against_itself_is_a_tie() -> None:
    """In at least 19 of 20 races, as expected of verdicts at 99 % confidence."""
    assert sum(map(tied, range(20))) >= 19


def test_learning_rates_with_equal_losses_keep_the_default_first() -> None:
    assert rank_rates({1e-3: 2.30, 3e-3: 2.31, 1e-2: 2.305, 3e-4: 2.299}, 3e-3)[0] == 3e-3
    assert rank_rates({1e-3: 2.30, 3e-3: 1.31, 1e-2: 0.905, 3e-4: 2.299}, 3e-3) == [
        *(1e-2, 3e-3, 3e-4, 1e-3)
    ]
    assert rank_rates({1e-3: math.inf, 1e-2: math.inf, 3e-3: math.inf}, 3e-3)[0] == 3e-3
    assert rank_rates({1e-3: -2.0, 1e-2: -1.0}, 1e-2)[0] == 1e-3


def test_tuning_halves(tmp_path: Path) -> None:
    report = compare(
        text_file(tmp_path, 1500),
        ("gru",),
        time="16steps",
        seeds=1,
        tune=True,
        folder=tmp_path / "race",
        overrides=("data.length=16",),
        width=48,
        depth=1,
        batch_size=8,
    )
    found = report.contenders[0]
    assert found.learning_rate in TUNING_RATES and found.dropout in (0.0, 0.1)
    target = json.loads((tmp_path / "race" / "race.json").read_text())["target"]
    assert abs(found.parameters - target) <= TOLERANCE * target
    assert report.subject.tuning[0].startswith(f"gru: learning rate {found.learning_rate:g}; width")
    assert "What `--tune` chose" in (tmp_path / "race" / "report.md").read_text()
    runs = sorted(path.name for path in (tmp_path / "race" / "tuning").glob("gru-*"))
    assert len([name for name in runs if "rung0" in name]) == RUNGS[0][0] == len(TUNING_RATES)
    assert len([name for name in runs if "rung1" in name]) == RUNGS[1][0] == 2
    shapes = [name for name in runs if "shape" in name]
    assert shapes and all(name.endswith("x2") for name in shapes)  # a depth of 1 cannot be halved
    assert [name for name in runs if "dropout" in name] == ["gru-dropout-0.1"]
    assert report.subject.tuned


def tuning_plan(folder: Path) -> RacePlan:
    settings = ("data.length=16",)
    data = str(text_file(folder, 1500))
    return make_plan(RaceRequest(data, ("gru",), "16steps", overrides=settings, **TINY))


def test_only_divergence_counts_as_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threefold.lab.race.tuning.TUNING_RATES", (1e30, 3e-3))
    plan = tuning_plan(tmp_path)
    tuned = Tuner(plan, tmp_path / "tuning", lambda *_: None, DataCache()).tune("gru")
    assert tuned.learning_rate == 3e-3
    result = tmp_path / "tuning" / "gru-rung0-1e+30" / "result.json"
    assert json.loads(result.read_text(encoding="utf-8")) == {"loss": None}


def test_a_lock_while_tuning_is_not_divergence(tmp_path: Path) -> None:
    plan, first = tuning_plan(tmp_path), tmp_path / "tuning" / f"gru-rung0-{TUNING_RATES[0]:g}"
    with lock_folder(first), pytest.raises(LockedError, match="in use by another process"):
        Tuner(plan, tmp_path / "tuning", lambda *_: None, DataCache()).tune("gru")
    assert not (first / "result.json").exists()


def test_a_full_disk_while_tuning_is_not_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    plan = tuning_plan(tmp_path)
    monkeypatch.setattr("threefold.data.atomic_files.Disk.write", full)
    with pytest.raises(ThreefoldError, match="No space left"):
        Tuner(plan, tmp_path / "tuning", lambda *_: None, DataCache()).tune("gru")
    assert not list((tmp_path / "tuning").glob("*/result.json"))


def test_the_data_of_a_race_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int | None] = []

    def counted(settings: Any, source: Any) -> Any:
        opened.append(settings.length)
        return open_data(settings, source=source)

    monkeypatch.setattr("threefold.training.data_cache.open_data", counted)
    settings = ("data.length=16",)
    compare(text_file(tmp_path), ("gru",), time="2steps", seeds=2, overrides=settings, **TINY)
    assert opened == [16, 32, 64, 128]  # the training length, and three others


def test_steps_in_a_given_time() -> None:
    """Training, evaluations and the overhead of all runs fill the time, and no more."""
    taken = {"fast": StepTimes(0.01, 0.01), "slow": StepTimes(0.03, 0.02)}
    for match in ("parameters", "time"):
        request = RaceRequest("parity", ("gru",), "100s", match, seeds=2)
        table = timetable(request, taken, 90.0)
        # Measuring what a score does not say is planned as a share of a run without its overhead.
        probes = PROBE_COST * sum(seconds - RUN_OVERHEAD for seconds in table.seconds.values())
        assert 88.0 < 2 * sum(table.seconds.values()) + probes <= 90.0
        # The splits have only this many batches: the rest is for training.
        small = timetable(request, taken, 90.0, EvaluationLimits(4, 5))
        assert (small.valid, small.test) == (4, 5) and small.steps["slow"] > table.steps["slow"]
        if match == "parameters":
            assert table.steps["fast"] == table.steps["slow"]
        else:
            assert table.seconds["fast"] == pytest.approx(table.seconds["slow"], rel=0.01)
    assert timetable(request, taken, 0.5).steps["slow"] == 1  # all costs but the steps themselves
    few = few_steps_note(request, taken, timetable(request, taken, 2.0))
    assert few.startswith('note: time="100s" allows only 1') and few.endswith("would allow 100")
    assert few_steps_note(request, taken, timetable(request, taken, 90.0)) == ""
    with pytest.raises(ThreefoldError, match=r"too short for one step of slow .* time=\"1s\""):
        timetable(RaceRequest("parity", ("gru",), "0.01s", seeds=2), taken, 0.01)


def test_a_plan_is_restored_from_its_file() -> None:
    request = RaceRequest("recall", ("gru", "both=mamba+attention"), "5steps", **TINY)
    plan = make_plan(request)
    assert RacePlan.from_json(json.dumps(plan.to_dict())) == plan
    assert [c.depth for c in plan.contenders] == [1, 2]
    assert "both=mamba+attention" in command_line(plan, open_data("recall"))


@pytest.mark.parametrize("version", [None, 2, 4])
def test_races_of_another_format_are_refused(version: int | None, tmp_path: Path) -> None:
    request = RaceRequest("recall", ("gru",), "5steps", **TINY)
    plan = {**make_plan(request).to_dict(), "format_version": version}
    values = {key: value for key, value in plan.items() if value is not None}
    (tmp_path / "race.json").write_text(json.dumps(values))
    with pytest.raises(ThreefoldError, match="older version of Threefold; choose another folder"):
        run_race(request, RaceFolder(tmp_path), lambda _: None)


def test_a_smaller_evaluation_is_a_random_sample() -> None:
    """Files are often sorted by class, so their first rows would all be of one class."""
    found = open_data("recall", batch_size=8)
    some, again = (list(found.limited(40).pieces("test")) for _ in range(2))
    assert [len(rows.inputs) for rows in some] == [8] * 5
    assert all(a.inputs.equal(b.inputs) for a, b in zip(some, again, strict=True))
    whole = list(found.limited(10**9).pieces("test"))
    assert sum(len(rows.inputs) for rows in whole) == found.task.size("test")
    assert not some[0].inputs.equal(whole[0].inputs)


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    from threefold.data.loaders import Windows

    tokens = np.arange(100) % 7
    HashedBatches(Windows(tokens, 2, 8), tmp_path)(0)
    HashedBatches(Windows(tokens, 2, 8), tmp_path)(0)
    with pytest.raises(ThreefoldError, match="the batch of step 0 differs"):
        HashedBatches(Windows(tokens + 1, 2, 8), tmp_path)(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("recall", "--mixers", "gru,mambo"), "unknown mixer 'mambo'; did you mean 'mamba'?"),
        (("recall", "--mixers", "gru,gru"), "'gru' is listed twice"),
        (
            ("recal", "--mixers", "gru"),
            "neither a file nor a task has this name; did you mean 'recall'?",
        ),
        (("recall", "--mixers", "gru,fnet"), "fnet cannot do recall: "),
        (
            ("digits8-images", "--mixers", "gla,convolutional"),
            "a convolutional model has none; race the mixers with --kind vision",
        ),
        (
            ("digits8-images", "--mixers", "gla", "--kind", "swin"),
            "the test score of a swin model that is trained on digits8-images",
        ),
        (("recall", "--mixers", "gru", "--time", "soon"), "expected a duration such as 10m"),
        (("recall", "--mixers", "gru", "--time", "0.001s"), "too short for one step of gru"),
        (("recall", "--time", "5steps", "--match", "time"), "expected a time, e.g. 10m"),
        (("recall", "--set", "length=32"), "unknown key 'length'; did you mean 'data.length'"),
        (
            ("recall", "--set", "training.steps=3"),
            "in a race (training.steps=3): use --time, e.g. 500steps",
        ),
        (("recall", "--set", "model.mixers.mamba.stat_size=3"), "did you mean 'state_size'"),
        (("small.txt", "--mixers", "gru"), "small.txt"),
        (("recall", "--mixers", "gru", "--batch-size", "30000"), "fewer than one batch of 30000"),
        (("recall", "--mixers", "gru", "--folder", "small.txt"), "small.txt is a file; choose"),
        (("recall", "--mixers", "gru", "--set", "lenght=5"), "unknown key 'lenght'"),
    ],
)
def test_bad_input(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text("too small")
    done = here("compare", *arguments, "--width", "16", "--depth", "1")
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
