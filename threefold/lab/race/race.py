"""Which sequence model suits my data?  A race: plan, legs, costs, report.

race.json    the plan, made once                 costs.json    what each model costs
legs/        a run's folder for each leg         report.html   and .md, .json, figures/
tuning/      short runs with --tune

Every process that is given the same folder takes whatever leg is free, so a race spreads over
ranks (`torchrun … -m threefold compare …`) or shells without a word between them: a leg is held by
a lock that dies with its process.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from threefold._version import __version__
from threefold.errors import ThreefoldError
from threefold.lab.bench.measuring import costs
from threefold.lab.race.planning import (
    RACERS,
    PlannedModel,
    RacePlan,
    RaceRequest,
    make_plan,
    matched_words,
)
from threefold.lab.race.runs import Finished, train_one, tune, write_json
from threefold.lab.report.report import Contender, Cost, Report, Subject
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.checkpoints import lock_folder
from threefold.training.training_data import TrainingData, open_data

PLAN, COSTS, LEGS, TUNING = "race.json", "costs.json", "legs", "tuning"
LONGEST = 16_384  # elements at which costs are measured
LONGEST_PAIR = 4096  # of translators, which keep a weight for each element read and written
WAIT = 0.5  # seconds, for legs of other processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class RaceFolder:
    """Where a race is kept, and whether this process writes the report."""

    folder: Path
    leads: bool = True

    def leg(self, name: str, seed: int) -> Path:
        return self.folder / LEGS / f"{name}-{seed}"


def compare(
    data: str | os.PathLike[str],
    mixers: Sequence[str] = RACERS,
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
    batch_size: int = 16,
    overrides: Sequence[str] = (),
    say: Say = lambda _: None,
) -> Report:
    """Race sequence models on a task or on your own file, and report who suits it.

    The report is shown by notebooks and has `sentence`, `verdict`, `to_dict()` and `save(folder)`.
    With a `folder` the race survives interruptions.  `overrides` are further settings, such as
    "data.length=512" or "model.mixers.mamba.state_size=64"; `say` receives progress messages.
    """
    names = (mixers,) if isinstance(mixers, str) else tuple(mixers)
    request = RaceRequest(
        os.fspath(data), names, time, match, seeds, tune, width, depth, parameters,
        learning_rate, batch_size, tuple(overrides),
    )  # fmt: skip
    if folder is not None:
        return run(request, RaceFolder(Path(folder)), say)
    with TemporaryDirectory(prefix="threefold-race-") as place:
        return run(request, RaceFolder(Path(place)), say)


def folder_for(request: RaceRequest) -> Path:
    """The usual folder of a race: the same for the same request, so that it can be continued."""
    digest = hashlib.sha256(json.dumps(asdict(request)).encode()).hexdigest()[:6]
    return Path("runs") / f"compare-{Path(request.data).stem}-{digest}"


def run(request: RaceRequest, place: RaceFolder, say: Say) -> Report:
    """The whole race, or what is left of it."""
    place.folder.mkdir(parents=True, exist_ok=True)
    plan = planned(request, place, say)
    rates = {c.name: plan.request.learning_rate for c in plan.contenders}
    if request.tune:
        with take_turns(place.folder / TUNING, say):
            for contender in plan.contenders:
                rates[contender.name] = tuned(plan, contender.name, place, say)
    finished = run_legs(plan, rates, place, say)
    found = open_data(plan.config(plan.contenders[0].name, 0).data)
    trained = sum(one.leg.seconds for one in finished.values())
    priced = price(plan, found, place, say, max(8.0, 0.3 * trained)) if place.leads else {}
    report = make_report(plan, rates, finished, priced, found)
    if place.leads:
        report.save(place.folder)
    return report


def planned(request: RaceRequest, place: RaceFolder, say: Say) -> RacePlan:
    """The plan of the folder; made if there is none, refused if it is another race's."""
    path = place.folder / PLAN
    with take_turns(place.folder / "planning", say):
        if not path.is_file():
            plan = make_plan(request, say)
            write_json(path, asdict(plan))
            return plan
    try:
        plan = RacePlan.from_json(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as error:
        raise ThreefoldError(f"{path}: is not a race's ({error}); choose another folder") from error
    then, now = asdict(plan.request), json.loads(json.dumps(asdict(request)))
    then = json.loads(json.dumps(then))
    changed = [
        f"{key} was {then[key]!r} and is {now[key]!r}" for key in now if then[key] != now[key]
    ]
    if changed:
        raise ThreefoldError(
            f"{place.folder}: holds another race: {'; '.join(changed)}; choose another folder, or "
            "ask for the same"
        )
    return plan


@contextmanager
def take_turns(folder: Path, say: Say) -> Iterator[None]:
    """Hold a folder, waiting for whoever holds it now."""
    while True:
        holding = lock_folder(folder)
        try:
            holding.__enter__()
            break
        except ThreefoldError as error:
            if "another process" not in str(error):
                raise
            say("waiting for another process")
            time.sleep(WAIT)
    try:
        yield
    finally:
        holding.__exit__(None, None, None)


def tuned(plan: RacePlan, name: str, place: RaceFolder, say: Say) -> float:
    """The learning rate of a contender."""

    def progress(done: float, loss: float) -> None:
        say(f"tuning {name}: {done:.0%}, loss {loss:.3f}")

    return tune(plan, name, place.folder / TUNING, progress)


def run_legs(
    plan: RacePlan, rates: dict[str, float], place: RaceFolder, say: Say
) -> dict[tuple[str, int], Finished]:
    """Every leg: those that are free here, the others by whoever holds them."""
    # Seeds outside: an interrupted race has whole comparisons.
    order = [(c.name, seed) for seed in range(plan.request.seeds) for c in plan.contenders]
    finished: dict[tuple[str, int], Finished] = {}
    while len(finished) < len(order):
        busy = 0
        for name, seed in order:
            if (name, seed) in finished:
                continue
            leg = one_leg(plan, name, seed, rates[name], place, say, len(finished))
            if leg is None:
                busy += 1
            else:
                finished[name, seed] = leg
        if busy:
            say(f"waiting for {busy} legs of other processes")
            time.sleep(WAIT)
    return finished


def one_leg(
    plan: RacePlan, name: str, seed: int, rate: float, place: RaceFolder, say: Say, before: int
) -> Finished | None:
    """A leg that is finished here or before; None if another process is at it."""
    whole = plan.request.seeds * len(plan.contenders)
    folder = place.leg(name, seed)

    def progress(done: float, loss: float) -> None:
        say(f"leg {before + 1} of {whole}: {name}, seed {seed}: {done:.0%}, loss {loss:.3f}")

    try:
        return train_one(plan, plan.config(name, seed, rate), folder, progress)
    except ThreefoldError as error:
        if "another process" in str(error):
            return None
        raise


def price(
    plan: RacePlan, found: TrainingData, place: RaceFolder, say: Say, limit: float
) -> dict[str, Cost]:
    """What each model costs at growing lengths, measured once, in about so many seconds."""
    path = place.folder / COSTS
    if path.is_file():
        values = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Cost(**{f: tuple((int(n), v) for n, v in points) for f, points in cost.items()})
            for name, cost in values.items()
        }
    specs = {c.name: spec_of(plan, c, found) for c in plan.contenders}
    models = {name: build(spec) for name, spec in specs.items()}
    length = found.task.length
    longest = LONGEST_PAIR if found.task.kind == "seq2seq" else LONGEST
    lengths = sorted({min(max(16, length * 4**i), longest) for i in range(4)})
    quick = min(0.4, limit / (8 * len(lengths) * len(models)))
    priced = costs(
        models, lengths, seconds=quick, limit=limit, progress=lambda text: say(f"measuring {text}")
    )
    write_json(path, {name: asdict(cost) for name, cost in priced.items()})
    return priced


def spec_of(plan: RacePlan, contender: PlannedModel, found: TrainingData) -> Spec:
    """The spec of a contender's model."""
    return found.spec(plan.config(contender.name, 0).model)


def make_report(
    plan: RacePlan,
    rates: dict[str, float],
    finished: dict[tuple[str, int], Finished],
    priced: dict[str, Cost],
    found: TrainingData,
) -> Report:
    """The report of legs that are all finished."""
    contenders = []
    for planned_one in plan.contenders:
        legs = [finished[planned_one.name, seed] for seed in range(plan.request.seeds)]
        spec = spec_of(plan, planned_one, found)
        channel, inside = spec.channel_entry
        contenders.append(
            Contender(
                name=planned_one.name,
                mixer="+".join(name for name, _ in spec.entries),
                width=spec.width,
                depth=spec.depth,
                channel=f"{channel}, {inside['hidden']} inside" if inside else channel,
                parameters=planned_one.parameters,
                learning_rate=rates[planned_one.name],
                digest=spec.digest,
                legs=tuple(one.leg for one in legs),
                cost=priced.get(planned_one.name, Cost()),
                longer=mean_points([one.longer for one in legs]),
            )
        )
    return Report(subject_of(plan, found, finished), tuple(contenders))


def mean_points(
    series: Sequence[tuple[tuple[int, float], ...]],
) -> tuple[tuple[int, float], ...]:
    """The mean over seeds, at the lengths that all have."""
    shared = set.intersection(*(set(dict(points)) for points in series))
    return tuple(
        (n, statistics.fmean(dict(points)[n] for points in series)) for n in sorted(shared)
    )


def subject_of(
    plan: RacePlan, found: TrainingData, finished: dict[tuple[str, int], Finished]
) -> Subject:
    """What the race was about."""
    task, request = found.task, plan.request
    notes = []
    if plan.test < task.size("test"):
        notes.append(
            f"Judged on {plan.test:,} of the {task.size('test'):,} test examples, drawn at random."
        )
    hashes = {"data": ", ".join(map(str, found.identity().values()))}
    for seed in range(request.seeds):
        seen = {finished[c.name, seed].leg.batches for c in plan.contenders}
        if len(seen) > 1:
            raise ThreefoldError(f"seed {seed}: the models were not given the same batches")
        hashes[f"first {plan.common:,} batches of seed {seed}"] = seen.pop()
    targets = sum(
        found.objective(plan.config(plan.contenders[0].name, 0).training).count(rows)
        for rows in found.limited(plan.test).pieces("test")
    )
    return Subject(
        title=task.title,
        task=task.name,
        kind=task.kind,
        metric=task.metric,
        lower=task.lower,
        length=task.length,
        match=request.match,
        matched=tuple(matched_words(plan)),
        command=command_of(request),
        time=request.time,
        chance=task.chance if math.isfinite(task.chance) else None,
        resolution=1 / targets if task.metric in ("accuracy", "exact") else 0.0,
        tuned=request.tune,
        versions=versions(),
        hashes=hashes,
        notes=tuple(notes),
    )


def command_of(request: RaceRequest) -> str:
    """The command that asks for the same."""
    words = ["threefold", "compare", request.data, "--mixers", ",".join(request.mixers)]
    for option, value, usual in (
        ("--time", request.time, ""),
        ("--match", request.match, "parameters"),
        ("--seeds", request.seeds, ""),
        ("--width", request.width, 64),
        ("--depth", request.depth, 2),
        ("--parameters", request.parameters, None),
        ("--learning-rate", f"{request.learning_rate:g}", "0.003"),
        ("--batch-size", request.batch_size, 16),
    ):
        words += [] if value == usual else [option, str(value)]
    words += ["--tune"] if request.tune else []
    for text in request.overrides:
        words += ["--set", text]
    return shlex.join(words)


def versions() -> dict[str, str]:
    """What it was run with."""
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
    """(number of this process, how many there are), as torchrun says."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
