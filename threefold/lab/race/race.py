"""Which sequence model suits my data?  A race: plan, rounds of runs, costs, report, best model.

race.json    the plan, made once                 costs.json      what each model costs
runs/        one run folder per model and seed   report.html     and .md, .json, figures/
tuning/      short runs with --tune              baselines.json  simple models beside them
best/        the best model, ready to use        refit-10m/      with --then-train 10m
best-baseline/  the best baseline, if the race recommends it
extras.json  what else was measured of each model
baseline-examples.npz  scores of the baselines on each test example

Every process that is given the same folder trains the runs that are still free, so a race can be
spread over ranks (`torchrun … -m threefold compare …`) or shells without any communication: a run
is protected by a lock that ends with its process.
"""

from __future__ import annotations

import json
import os
import time as clock_time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from threefold.data.atomic_files import write_json
from threefold.data.readers import checked_path
from threefold.errors import LockedError, option_name
from threefold.lab.bench.measuring import costs
from threefold.lab.race.baselines import run_baselines
from threefold.lab.race.best import all_data, keep_best, refit
from threefold.lab.race.best_baseline import keep_baseline
from threefold.lab.race.extras import sizes_of, with_extras
from threefold.lab.race.folder import (
    BASELINES,
    COSTS,
    POLL_SECONDS,
    TUNING,
    RaceFolder,
    Say,
    default_folder,
    load_or_make_plan,
    race_folder,
    wait_for_lock,
)
from threefold.lab.race.planning import RacePlan, make_plan
from threefold.lab.race.request import DEFAULT_MIXERS, RaceRequest
from threefold.lab.race.result import (
    baseline_margins,
    make_report,
    model_spec,
    resolution,
    write_examples,
)
from threefold.lab.race.rounds import Rounds, Standing
from threefold.lab.race.runs import FinishedRun, train_run
from threefold.lab.race.test_set import Examples
from threefold.lab.race.timing import MEASURING_SHARES, PAGE_SECONDS, RaceClock, using_threads
from threefold.lab.race.tuning import Tuner, describe_choice
from threefold.lab.report.report import BaselineResult, Cost, Report
from threefold.models.table import build
from threefold.tasks.user_data.datasets import batch_size_of
from threefold.training.api import data_name
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.durations import parse_duration
from threefold.training.training_data import TrainingData

MAX_COST_LENGTH = 16_384  # elements at which costs are measured
MAX_COST_LENGTH_SEQ2SEQ = 4096  # these store a weight for each pair of source and target tokens
FEWEST_MEASURING = 3.0  # seconds for costs, however late it is


def compare(
    data: Any,
    mixers: str | Sequence[str] = DEFAULT_MIXERS,
    *,
    time: str = "10m",
    match: str = "parameters",
    seeds: int | str = 3,
    tune: bool = False,
    folder: str | os.PathLike[str] | None = None,
    width: int = 64,
    depth: int = 2,
    parameters: int | None = None,
    learning_rate: float = 3e-3,
    batch_size: int | None = None,
    baselines: str = "strong",
    early_stop: bool = True,
    then_train: str | None = None,
    overrides: Sequence[str] = (),
    say: Say = lambda _: None,
) -> Report:
    """Race sequence models on a task or on your own data, and report which one suits them.

    data: a path, a task's name, or data in memory as in `threefold.train`: data frames, arrays, a
    Task, a torch Dataset.  batch_size: default 16, or that of a DataLoader.
    The report is displayed by notebooks and has `sentence`, `verdict`, `to_dict()` and
    `save(folder)`.  With a `folder` an interrupted race can be continued, and the best model is in
    best/.  seeds="auto" trains more seeds until the verdict is clear or the time is over;
    `early_stop` spares models that are clearly behind further seeds; `then_train` trains the best
    model on all data for this long.  `overrides` are further settings, such as "data.length=512" or
    "model.mixers.mamba.state_size=64"; `say` receives progress messages.  `baselines`: strong,
    simple or none.
    """
    names = tuple(mixers.split(",")) if isinstance(mixers, str) else tuple(mixers)
    source = None if isinstance(data, (str, os.PathLike)) else data
    name = data_name(os.fspath(data) if source is None else data)
    request = RaceRequest(
        name, names, time, match, seeds, tune, width, depth, parameters, learning_rate,
        batch_size or batch_size_of(source) or 16, tuple(overrides), baselines, early_stop,
    )  # fmt: skip
    if folder is not None:
        path = checked_path("folder", folder, ", or None to write nothing")
        return run_race(request, RaceFolder(path), say, source, then_train)
    with TemporaryDirectory(prefix="threefold-race-") as temporary:
        report = run_race(request, RaceFolder(Path(temporary)), say, source, then_train)
        return replace(report, best=None)  # its folder is gone


def run_race(
    request: RaceRequest,
    folder: RaceFolder,
    say: Say,
    source: Any = None,
    then_train: str | None = None,
) -> Report:
    """Run a race, or the part of it that is not finished yet; source: data in memory."""
    if then_train is not None:
        parse_duration(then_train, option_name("then_train"))
    return Race(request, folder, say, source).run(then_train)


@dataclass(frozen=True)
class Race:
    """A race under way in this process."""

    request: RaceRequest
    folder: RaceFolder
    say: Say
    source: Any = None
    clock: RaceClock = field(default_factory=RaceClock)

    def run(self, then_train: str | None = None) -> Report:
        """Everything, from the plan to the best model."""
        cache = DataCache(self.source)
        with race_folder(self.folder.path):
            plan = self._plan(cache)
        planned = plan
        with nullcontext() if plan.threads is None else using_threads(plan.threads):
            plan = self._tuned(plan, cache)
            report = self._race(plan, cache)
        if plan is not planned:
            chosen = tuple(describe_choice(planned, c) for c in plan.contenders)
            report = replace(report, subject=replace(report.subject, tuning=chosen))
        if not self.folder.writes_report:
            return report
        if then_train is not None and report.best is not None:
            refit(plan, report.best, self.folder, then_train, self.say, self.source)
            config = plan.config(report.best.name, 0)
            report = replace(report, best=replace(report.best, refitted=then_train))
            every = all_data(config, self.source)
            report = self._with_baseline(plan, report, every, then_train)
        report.save(self.folder.path)
        return report

    def _race(self, plan: RacePlan, cache: DataCache) -> Report:
        """The runs, and what is measured after them."""
        data = cache.open(plan.config(plan.contenders[0].name, 0).data)
        rounds = Rounds(plan, data.task.lower, resolution(plan, data))
        standing, finished = self._train_all(plan, rounds, cache)
        if not self.folder.writes_report:
            return make_report(plan, standing, finished, {}, data)
        results = measure_baselines(plan, data, self.folder.path, self.say)
        measured = measure_costs(plan, data, self.folder.path, self.say, self._measuring(finished))
        report = make_report(plan, standing, finished, measured, data)
        report = with_extras(report, plan, data, self.folder.path, self.folder.run, self.say)
        best = keep_best(plan, report, finished, self.folder, data)
        report = replace(report, baselines=results, best=best)
        report = replace(
            report, baseline_margins=baseline_margins(report, finished, self.folder.path)
        )
        if best.refitted:  # in another process, before this one
            data = all_data(plan.config(best.name, 0), self.source)
        return self._with_baseline(plan, report, data, best.refitted)

    def _with_baseline(
        self, plan: RacePlan, report: Report, data: TrainingData, refitted: str
    ) -> Report:
        """The report with the best baseline, saved if the race recommends it."""
        kept = keep_baseline(report, self.folder, data, plan.test_examples, refitted)
        return replace(report, best_baseline=kept)

    def _plan(self, cache: DataCache) -> RacePlan:
        def fit(data: TrainingData, examples: int, limit: float) -> None:
            if self.folder.writes_report:
                fit_baselines(self.request, data, examples, self.folder.path, self.say, limit)

        def rehearse(plan: RacePlan) -> float:
            name, taken = plan.contenders[0].name, 0.0
            with TemporaryDirectory(prefix="threefold-race-") as place:
                for seed in (0, 1):  # the first one also warms up
                    clock, run_folder = RaceClock(), Path(place) / f"{name}-{seed}"
                    train_run(plan, plan.config(name, seed), run_folder, lambda *_: None, cache)
                    taken = clock.elapsed
            return taken

        def make() -> RacePlan:
            return make_plan(self.request, self.say, cache, self.clock, fit, rehearse)

        return load_or_make_plan(self.request, self.folder.path, self.say, make)

    def _tuned(self, plan: RacePlan, cache: DataCache) -> RacePlan:
        """The plan with tuned contenders, if the request says so."""
        if not self.request.tune:
            return plan
        tuned = []
        with wait_for_lock(self.folder.path / TUNING, self.say):
            for planned in plan.contenders:

                def progress(done: float, loss: float, name: str = planned.name) -> None:
                    self.say(f"tuning {name}: {done:.0%}, loss {loss:.3f}")

                tuner = Tuner(plan, self.folder.path / TUNING, progress, cache)
                tuned.append(tuner.tune(planned.name))
        return replace(plan, contenders=tuple(tuned))

    def _train_all(
        self, plan: RacePlan, rounds: Rounds, cache: DataCache
    ) -> tuple[Standing, dict[tuple[str, int], FinishedRun]]:
        """Every run by (name, seed): trains those that are free and waits for other processes."""
        finished: dict[tuple[str, int], FinishedRun] = {}
        told: set[str] = set()
        while True:
            timed = replace(rounds, taken={run: r.run.seconds for run, r in finished.items()})
            standing = timed.standing({run: r.run.score for run, r in finished.items()})
            for name in standing.stopped:
                if name not in told:
                    self.say(f"finished with {name}: it is clearly behind and gets no further seed")
                    told.add(name)
            if not standing.missing:
                return standing, finished
            if not self._train_missing(plan, standing, finished, cache):
                self.say("waiting for runs of other processes")
                clock_time.sleep(POLL_SECONDS)

    def _train_missing(
        self,
        plan: RacePlan,
        standing: Standing,
        finished: dict[tuple[str, int], FinishedRun],
        cache: DataCache,
    ) -> bool:
        """Train the free runs of a round; whether there was one."""
        before = len(finished)
        for name, seed in standing.missing:
            title = f"run {len(finished) + 1}{expected_runs(plan, standing)}: {name}, seed {seed}"
            config = plan.config(name, seed)
            run_folder = self.folder.run(name, seed)
            result = train_if_free(plan, config, run_folder, title, self.say, cache)
            if result is not None:
                finished[name, seed] = result
                self.say(f"finished {title}, test score {result.run.score:.4g}")
        return len(finished) > before

    def _measuring(self, finished: Mapping[Any, FinishedRun]) -> float:
        """Seconds for measuring costs: what is left of the time limit, or a share of the runs."""
        total = self.request.duration.seconds
        if total is None:
            return max(8.0, 0.3 * sum(result.run.seconds for result in finished.values()))
        left = total - self.clock.elapsed - PAGE_SECONDS
        return max(FEWEST_MEASURING, min(left, MEASURING_SHARES[1] * total))


def expected_runs(plan: RacePlan, standing: Standing) -> str:
    """of 15, if the number of runs is known."""
    if not isinstance(plan.request.seeds, int):
        return ""
    if standing.stopped:
        return ""
    return f" of {plan.request.seeds * len(plan.contenders)}"


def train_if_free(
    plan: RacePlan, config: RunConfig, folder: Path, title: str, say: Say, cache: DataCache
) -> FinishedRun | None:
    """The result of a run, trained now if necessary; None if another process is training it."""

    def progress(done: float, loss: float) -> None:
        say(f"{title}: {done:.0%}, loss {loss:.3f}")

    try:
        return train_run(plan, config, folder, progress, cache)
    except LockedError:
        return None


def measure_costs(
    plan: RacePlan, data: TrainingData, folder: Path, say: Say, limit: float
) -> dict[str, Cost]:
    """What each model costs at growing lengths, measured once, in about `limit` seconds."""
    path = folder / COSTS
    if path.is_file():
        values = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Cost(**{f: tuple((int(n), v) for n, v in points) for f, points in cost.items()})
            for name, cost in values.items()
        }
    models = {c.name: build(model_spec(plan, c, data)) for c in plan.contenders}
    length, pairs = data.task.length, data.task.kind == "seq2seq"
    longest = MAX_COST_LENGTH_SEQ2SEQ if pairs else MAX_COST_LENGTH
    lengths = sorted({min(max(16, length * 4**i), longest) for i in range(4)})
    seconds = min(0.4, limit / (8 * len(lengths) * len(models)))
    measured = costs(
        models,
        lengths,
        seconds=seconds,
        limit=limit,
        progress=lambda text: say(f"measuring {text}"),
    )
    write_json(path, {name: asdict(cost) for name, cost in measured.items()})
    return measured


def measure_baselines(
    plan: RacePlan, data: TrainingData, folder: Path, say: Say
) -> tuple[BaselineResult, ...]:
    """The baselines, fitted and scored once."""
    path = folder / BASELINES
    if not path.is_file():
        fit_baselines(plan.request, data, plan.test_examples, folder, say)
    values = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        BaselineResult(**{**item, "results": tuple((int(a), b) for a, b in item["results"])})
        for item in values
    )


def fit_baselines(
    request: RaceRequest,
    data: TrainingData,
    examples: int,
    folder: Path,
    say: Say,
    limit: float = float("inf"),
) -> None:
    """Fit and score the baselines, and write their results."""
    sizes = sizes_of(examples, data)
    seeds = request.most_seeds
    scores: dict[tuple[str, int], Examples] = {}

    def keep(name: str, seed: int, found: Examples) -> None:
        scores[name, seed] = found

    results = run_baselines(data, request.baselines, seeds, examples, say, limit, sizes, keep)
    write_examples(folder, scores)
    write_json(folder / BASELINES, [asdict(result) for result in results])


def ranks() -> tuple[int, int]:
    """(rank, world size) of this process, as set by torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


__all__ = ["RaceFolder", "compare", "default_folder", "ranks", "run_race"]
