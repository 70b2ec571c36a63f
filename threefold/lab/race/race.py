"""Which sequence model suits my data?  A race: plan, runs, costs, report.

race.json    the plan, made once                 costs.json    what each model costs
runs/        one run folder per model and seed   report.html   and .md, .json, figures/
tuning/      short runs with --tune              baselines.json  simple models beside them
extras.json  what else was measured of each model

Every process that is given the same folder trains the runs that are still free, so a race can be
spread over ranks (`torchrun … -m threefold compare …`) or shells without any communication: a run
is protected by a lock that ends with its process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from threefold._version import __version__
from threefold.data.atomic_files import write_json
from threefold.errors import LockedError, ThreefoldError
from threefold.lab.bench.measuring import costs
from threefold.lab.race.baselines import run_baselines
from threefold.lab.race.extras import sizes_of, with_extras
from threefold.lab.race.planning import (
    DEFAULT_MIXERS,
    PlannedModel,
    RacePlan,
    RaceRequest,
    describe_matching,
    make_plan,
)
from threefold.lab.race.runs import FinishedRun, train_run, tune
from threefold.lab.report.report import BaselineResult, Contender, Cost, Report, Subject
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.tasks.user_data.datasets import batch_size_of
from threefold.training.api import data_name
from threefold.training.checkpoints import lock_folder
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.training_data import TrainingData

PLAN, COSTS, RUNS, TUNING = "race.json", "costs.json", "runs", "tuning"
BASELINES, PLANNING = "baselines.json", "planning"
MAX_COST_LENGTH = 16_384  # elements at which costs are measured
MAX_COST_LENGTH_SEQ2SEQ = 4096  # these store a weight for each pair of source and target tokens
POLL_SECONDS = 0.5  # between two looks at the locks of other processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class RaceFolder:
    """The folder of a race, and whether this process writes the report."""

    path: Path
    writes_report: bool = True

    def run(self, name: str, seed: int) -> Path:
        """The run folder of one contender and seed."""
        return self.path / RUNS / f"{name}-{seed}"


def compare(
    data: Any,
    mixers: str | Sequence[str] = DEFAULT_MIXERS,
    *,
    time: str = "10m",
    match: str = "parameters",
    seeds: int = 3,
    tune: bool = False,
    folder: str | os.PathLike[str] | None = None,
    width: int = 64,
    depth: int = 2,
    parameters: int | None = None,
    learning_rate: float = 3e-3,
    batch_size: int | None = None,
    baselines: str = "strong",
    overrides: Sequence[str] = (),
    say: Say = lambda _: None,
) -> Report:
    """Race sequence models on a task or on your own data, and report which one suits them.

    data: a path, a task's name, or data in memory as in `threefold.train`: data frames, arrays, a
    Task, a torch Dataset.  batch_size: default 16, or that of a DataLoader.
    The report is displayed by notebooks and has `sentence`, `verdict`, `to_dict()` and
    `save(folder)`.  With a `folder` an interrupted race can be continued.  `overrides` are further
    settings, such as "data.length=512" or "model.mixers.mamba.state_size=64"; `say` receives
    progress messages.  `baselines`: strong, simple or none.
    """
    names = tuple(mixers.split(",")) if isinstance(mixers, str) else tuple(mixers)
    source = None if isinstance(data, (str, os.PathLike)) else data
    name = data_name(os.fspath(data) if source is None else data)
    request = RaceRequest(
        name, names, time, match, seeds, tune, width, depth, parameters,
        learning_rate, batch_size or batch_size_of(source) or 16, tuple(overrides), baselines,
    )  # fmt: skip
    if folder is not None:
        return run_race(request, RaceFolder(Path(folder)), say, source)
    with TemporaryDirectory(prefix="threefold-race-") as temporary:
        return run_race(request, RaceFolder(Path(temporary)), say, source)


def default_folder(request: RaceRequest) -> Path:
    """The default folder of a race: the same for the same request, so that it can be continued."""
    digest = hashlib.sha256(json.dumps(asdict(request)).encode()).hexdigest()[:6]
    return Path("runs") / f"compare-{Path(request.data).stem}-{digest}"


def run_race(request: RaceRequest, folder: RaceFolder, say: Say, source: Any = None) -> Report:
    """Run a race, or the part of it that is not finished yet; source: data in memory."""
    folder.path.mkdir(parents=True, exist_ok=True)
    cache = DataCache(source)
    plan = load_or_make_plan(request, folder.path, say, cache)
    rates = learning_rates(plan, folder.path, say, cache)
    finished = train_all(plan, rates, folder, say, cache)
    data = cache.open(plan.config(plan.contenders[0].name, 0).data)
    trained = sum(result.run.seconds for result in finished.values())
    costs_by_name = {}
    if folder.writes_report:
        costs_by_name = measure_costs(plan, data, folder.path, say, max(8.0, 0.3 * trained))
    report = make_report(plan, rates, finished, costs_by_name, data)
    if folder.writes_report:
        report = with_extras(report, plan, data, folder.path, folder.run, say)
        report = replace(report, baselines=measure_baselines(plan, data, folder.path, say))
        report.save(folder.path)
    return report


def load_or_make_plan(request: RaceRequest, folder: Path, say: Say, cache: DataCache) -> RacePlan:
    """The plan in the folder; made if there is none, refused if it belongs to another race."""
    path = folder / PLAN
    with wait_for_lock(folder / PLANNING, say):
        if not path.is_file():
            refuse_other_files(folder, Path(request.data))
            plan = make_plan(request, say, cache)
            write_json(path, plan.to_dict())
            return plan
    try:
        plan = RacePlan.from_json(path.read_text(encoding="utf-8"))
    except ThreefoldError as error:  # of an older version
        raise ThreefoldError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ThreefoldError(
            f"{path}: this is not the plan of a race ({error}); choose another --folder"
        ) from error
    before, now = (json.loads(json.dumps(asdict(item))) for item in (plan.request, request))
    changed = [
        f"{key} was {before[key]!r} and is now {now[key]!r}"
        for key in now
        if before[key] != now[key]
    ]
    if changed:
        raise ThreefoldError(
            f"{folder}: already contains a race with different settings: {'; '.join(changed)}; "
            "choose another --folder, or use the same settings"
        )
    return plan


def refuse_other_files(folder: Path, data: Path) -> None:
    """A race is not mixed with files of the user's, but for its own data."""
    own = {folder / PLANNING, data}
    others = sorted(path.name for path in folder.iterdir() if path not in own)
    if others:
        raise ThreefoldError(
            f"{folder}: contains {others[0]} and no {PLAN}, so it is not the folder of a race; "
            "choose another --folder"
        )


@contextmanager
def wait_for_lock(folder: Path, say: Say) -> Iterator[None]:
    """Lock a folder, waiting until no other process holds the lock."""
    while True:
        lock = lock_folder(folder)
        try:
            lock.__enter__()
            break
        except LockedError:
            say("waiting for another process")
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def learning_rates(plan: RacePlan, folder: Path, say: Say, cache: DataCache) -> dict[str, float]:
    """The learning rate of each contender by its name, tuned if the request says so."""
    names = [contender.name for contender in plan.contenders]
    if not plan.request.tune:
        return dict.fromkeys(names, plan.request.learning_rate)
    with wait_for_lock(folder / TUNING, say):
        return {name: tuned_rate(plan, name, folder, say, cache) for name in names}


def tuned_rate(plan: RacePlan, name: str, folder: Path, say: Say, cache: DataCache) -> float:
    """The learning rate that suits a contender best."""

    def progress(done: float, loss: float) -> None:
        say(f"tuning {name}: {done:.0%}, loss {loss:.3f}")

    return tune(plan, name, folder / TUNING, progress, cache)


def train_all(
    plan: RacePlan, rates: dict[str, float], folder: RaceFolder, say: Say, cache: DataCache
) -> dict[tuple[str, int], FinishedRun]:
    """Every run by (name, seed): trains those that are free and waits for other processes."""
    # All models of one seed first: an interrupted race then has complete comparisons.
    order = [(c.name, seed) for seed in range(plan.request.seeds) for c in plan.contenders]
    finished: dict[tuple[str, int], FinishedRun] = {}
    while len(finished) < len(order):
        busy = 0
        for name, seed in order:
            if (name, seed) in finished:
                continue
            config = plan.config(name, seed, rates[name])
            title = f"run {len(finished) + 1} of {len(order)}: {name}, seed {seed}"
            result = train_if_free(plan, config, folder.run(name, seed), title, say, cache)
            if result is None:
                busy += 1
            else:
                finished[name, seed] = result
                say(f"finished {title}, test score {result.run.score:.4g}")
        if busy:
            say(f"waiting for {busy} runs of other processes")
            time.sleep(POLL_SECONDS)
    return finished


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
        request = plan.request
        limits = request.seeds, plan.test_examples
        results = run_baselines(data, request.baselines, *limits, say, sizes_of(plan, data))
        write_json(path, [asdict(result) for result in results])
    values = json.loads(path.read_text(encoding="utf-8"))
    return tuple(
        BaselineResult(**{**item, "results": tuple((int(a), b) for a, b in item["results"])})
        for item in values
    )


def model_spec(plan: RacePlan, contender: PlannedModel, data: TrainingData) -> Spec:
    """The spec of a contender's model."""
    return data.spec(plan.config(contender.name, 0).model)


def make_report(
    plan: RacePlan,
    rates: dict[str, float],
    finished: dict[tuple[str, int], FinishedRun],
    costs_by_name: dict[str, Cost],
    data: TrainingData,
) -> Report:
    """The report of a race whose runs are all finished."""
    contenders = []
    for planned in plan.contenders:
        results = [finished[planned.name, seed] for seed in range(plan.request.seeds)]
        spec = model_spec(plan, planned, data)
        channel, options = spec.channel_entry
        contenders.append(
            Contender(
                name=planned.name,
                mixer="+".join(name for name, _ in spec.entries),
                width=spec.width,
                depth=spec.depth,
                channel=f"{channel}, hidden {options['hidden']}" if options else channel,
                parameters=planned.parameters,
                learning_rate=rates[planned.name],
                digest=spec.digest,
                runs=tuple(result.run for result in results),
                cost=costs_by_name.get(planned.name, Cost()),
                other_lengths=mean_points([result.other_lengths for result in results]),
            )
        )
    return Report(make_subject(plan, data, finished), tuple(contenders))


def mean_points(
    series: Sequence[tuple[tuple[int, float], ...]],
) -> tuple[tuple[int, float], ...]:
    """The mean over seeds, at the lengths that all seeds have."""
    shared = set.intersection(*(set(dict(points)) for points in series))
    return tuple(
        (n, statistics.fmean(dict(points)[n] for points in series)) for n in sorted(shared)
    )


def make_subject(
    plan: RacePlan, data: TrainingData, finished: dict[tuple[str, int], FinishedRun]
) -> Subject:
    """What the race was about."""
    task, request = data.task, plan.request
    notes = []
    if plan.test_examples < task.size("test"):
        notes.append(
            f"Evaluated on {plan.test_examples:,} of the {task.size('test'):,} test examples, "
            "drawn at random."
        )
    targets = sum(
        data.objective(plan.config(plan.contenders[0].name, 0).training).count(rows)
        for rows in data.limited(plan.test_examples).pieces("test")
    )
    return Subject(
        title=task.title,
        task=task.name,
        kind=task.kind,
        metric=task.metric,
        lower=task.lower,
        length=task.length,
        match=request.match,
        matched=tuple(describe_matching(plan)),
        command=command_line(plan, data),
        time=request.time,
        chance=task.chance if math.isfinite(task.chance) else None,
        resolution=1 / targets if task.metric in ("accuracy", "exact") else 0.0,
        tuned=request.tune,
        versions=versions(),
        hashes=data_hashes(plan, data, finished),
        notes=tuple(notes),
    )


def data_hashes(
    plan: RacePlan, data: TrainingData, finished: dict[tuple[str, int], FinishedRun]
) -> dict[str, str]:
    """SHA-256 of the data and of each seed's batches, which must be the same for all models."""
    hashes = {"data": ", ".join(map(str, data.identity().values()))}
    for seed in range(plan.request.seeds):
        batches = {finished[c.name, seed].run.batches for c in plan.contenders}
        if len(batches) > 1:
            raise ThreefoldError(
                f"seed {seed}: the models were trained on different batches, so they cannot be "
                "compared; the data have changed: choose another --folder"
            )
        hashes[f"first {plan.common_steps:,} batches of seed {seed}"] = batches.pop()
    return hashes


def command_line(plan: RacePlan, data: TrainingData) -> str:
    """The command that runs the same race; data in memory are named by their class."""
    request = plan.request
    mixers = ",".join(request.mixers)
    if data.from_user and not Path(request.data).exists():
        return f"threefold.compare({request.data}, {mixers!r}, time={request.time!r}, …) in Python"
    words = ["threefold", "compare", request.data, "--mixers", mixers]
    configs = (plan.config(contender.name, 0) for contender in plan.contenders)
    for plugin in dict.fromkeys(name for config in configs for name in config.plugins):
        words += ["--plugin", plugin]
    for option, value, default in (
        ("--time", request.time, ""),
        ("--match", request.match, "parameters"),
        ("--seeds", request.seeds, ""),
        ("--width", request.width, 64),
        ("--depth", request.depth, 2),
        ("--parameters", request.parameters, None),
        ("--learning-rate", f"{request.learning_rate:g}", "0.003"),
        ("--batch-size", request.batch_size, 16),
        ("--baselines", request.baselines, "strong"),
    ):
        words += [] if value == default else [option, str(value)]
    words += ["--tune"] if request.tune else []
    for text in request.overrides:
        words += ["--set", text]
    return shlex.join(words)


def versions() -> dict[str, str]:
    """Versions of the software, and the platform."""
    return {
        "threefold": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
        "kernels": _kernels(),
    }


def _kernels() -> str:
    from threefold.kernels import library

    native = library.current().native
    return native.variant if native else "reference"


def ranks() -> tuple[int, int]:
    """(rank, world size) of this process, as set by torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
