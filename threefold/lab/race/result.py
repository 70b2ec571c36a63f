"""From finished runs to the report of a race: contenders, what they had in common, hashes."""

from __future__ import annotations

import math
import platform
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from threefold._version import __version__
from threefold.data.atomic_files import write_file
from threefold.errors import ThreefoldError, option, option_name
from threefold.lab.race.folder import BASELINE_EXAMPLES
from threefold.lab.race.planning import PlannedModel, RacePlan, describe_matching
from threefold.lab.race.rounds import Standing, slowdown
from threefold.lab.race.runs import FinishedRun
from threefold.lab.race.significance import Interval
from threefold.lab.race.test_set import Examples, bootstrap_margins
from threefold.lab.report.report import Contender, Cost, Report, Subject
from threefold.models.spec import Spec
from threefold.training.training_data import TrainingData

NOTABLY_SLOWER = 1.1  # times the planned time, from which on a race says so

Finished = Mapping[tuple[str, int], FinishedRun]  # by name and seed


def model_spec(plan: RacePlan, contender: PlannedModel, data: TrainingData) -> Spec:
    """The spec of a contender's model."""
    return data.spec(plan.config(contender.name, 0).model)


def make_report(
    plan: RacePlan,
    standing: Standing,
    finished: Finished,
    costs_by_name: Mapping[str, Cost],
    data: TrainingData,
) -> Report:
    """The report of a race whose runs are all finished."""
    contenders = tuple(
        make_contender(plan, planned, standing, finished, data, costs_by_name)
        for planned in plan.contenders
    )
    subject = make_subject(plan, data, finished)
    report = Report(subject, contenders, looks=standing.looks)
    return replace(report, test_margins=test_margins(report, finished))


def make_contender(
    plan: RacePlan,
    planned: PlannedModel,
    standing: Standing,
    finished: Finished,
    data: TrainingData,
    costs_by_name: Mapping[str, Cost],
) -> Contender:
    """One of the models, with the results of all its runs."""
    results = results_of(finished, planned.name)
    spec = model_spec(plan, planned, data)
    channel, options = spec.channel_entry
    return Contender(
        name=planned.name,
        mixer="+".join(name for name, _ in spec.entries),
        width=spec.width,
        depth=spec.depth,
        channel=f"{channel}, hidden {options['hidden']}" if options else channel,
        parameters=planned.parameters,
        learning_rate=plan.learning_rate(planned.name),
        digest=spec.digest,
        runs=tuple(result.run for result in results),
        cost=costs_by_name.get(planned.name, Cost()),
        other_lengths=mean_points([result.other_lengths for result in results]),
        dropout=spec.option("dropout", 0.0),
        stopped=planned.name in standing.stopped,
    )


def results_of(finished: Finished, name: str) -> list[FinishedRun]:
    """The finished runs of a model, by seed."""
    seeds = sorted(seed for other, seed in finished if other == name)
    return [finished[name, seed] for seed in seeds]


def test_margins(report: Report, finished: Finished) -> dict[str, Interval]:
    """How much better the leader is than each other model, with the interval over test examples."""
    examples: dict[str, dict[int, Examples]] = {c.name: {} for c in report.contenders}
    for (name, seed), result in finished.items():
        if result.examples is None:
            return {}
        examples[name][seed] = result.examples
    subject = report.subject
    return bootstrap_margins(
        examples, report.verdict.leader, lower=subject.lower, kind=subject.kind
    )


def write_examples(folder: Path, scores: Mapping[tuple[str, int], Examples]) -> None:
    """Write the scores of baselines on each test example."""
    arrays = {f"{seed} {name}": found for (name, seed), found in scores.items()}

    def save(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_file(folder / BASELINE_EXAMPLES, save)


def read_examples(folder: Path) -> dict[str, dict[int, Examples]]:
    """The scores of baselines on each test example, by name and seed; empty if not there."""
    path, found = folder / BASELINE_EXAMPLES, dict[str, dict[int, Examples]]()
    if path.is_file():
        with np.load(path) as arrays:
            for key in arrays.files:
                seed, name = key.split(" ", 1)
                found.setdefault(name, {})[int(seed)] = arrays[key]
    return found


def baseline_margins(report: Report, finished: Finished, folder: Path) -> dict[str, Interval]:
    """How much better the leader is than each baseline, with intervals over test examples."""
    leader = report.ranked[0].name
    ours = {s: r.examples for (n, s), r in finished.items() if n == leader}
    models = {seed: found for seed, found in ours.items() if found is not None}
    examples: dict[str, dict[int, Examples]] = {leader: models}
    for name, by_seed in read_examples(folder).items():
        if len(by_seed) == 1:  # it does not depend on the seed
            by_seed = dict.fromkeys(models, next(iter(by_seed.values())))
        alike = {s: e for s, e in by_seed.items() if s in models and _alike(models[s], e)}
        if name != leader:
            examples[name] = alike
    subject = report.subject
    return bootstrap_margins(examples, leader, lower=subject.lower, kind=subject.kind)


def _alike(one: Examples, other: Examples) -> bool:
    """Whether two models were scored on the same targets of the same examples."""
    return one.shape == other.shape and bool((one[:, 1] == other[:, 1]).all())


def mean_points(
    series: Sequence[tuple[tuple[int, float], ...]],
) -> tuple[tuple[int, float], ...]:
    """The mean over seeds, at the lengths that all seeds have."""
    shared = set.intersection(*(set(dict(points)) for points in series))
    return tuple(
        (n, statistics.fmean(dict(points)[n] for points in series)) for n in sorted(shared)
    )


def resolution(plan: RacePlan, data: TrainingData) -> float:
    """The smallest difference that the test can resolve: one target, of a share of targets."""
    if data.task.metric not in ("accuracy", "exact"):
        return 0.0
    objective = data.objective(plan.config(plan.contenders[0].name, 0).training)
    pieces = data.limited(plan.test_examples).pieces("test")
    return 1 / sum(objective.count(rows) for rows in pieces)


def make_subject(plan: RacePlan, data: TrainingData, finished: Finished) -> Subject:
    """What the race was about."""
    task, request = data.task, plan.request
    notes = []
    if plan.test_examples < task.size("test"):
        notes.append(
            f"Evaluated on {plan.test_examples:,} of the {task.size('test'):,} test examples, "
            "drawn at random."
        )
    slower = slowdown(plan, {run: result.run.seconds for run, result in finished.items()})
    if slower > NOTABLY_SLOWER:
        notes.append(
            f"Training took {slower:.1f} times as long as was planned: the machine was busier than "
            f"when the race began, so the race took longer than {option('time', request.time)}. "
            "All models "
            "have trained for the planned number of steps, so the comparison is fair."
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
        resolution=resolution(plan, data),
        tuned=request.tune,
        versions=versions(),
        hashes=data_hashes(plan, data, finished),
        notes=tuple(notes),
        test_examples=plan.test_examples,
    )


def data_hashes(plan: RacePlan, data: TrainingData, finished: Finished) -> dict[str, str]:
    """SHA-256 of the data and of each seed's batches, which must be the same for all models."""
    hashes = {"data": ", ".join(map(str, data.identity().values()))}
    for seed in sorted({seed for _, seed in finished}):
        batches = {result.run.batches for (_, s), result in finished.items() if s == seed}
        if len(batches) > 1:
            raise ThreefoldError(
                f"seed {seed}: the models were trained on different batches, so they cannot be "
                f"compared; the data have changed: choose another {option_name('folder')}"
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
    for flag, value, default in (
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
        words += [] if value == default else [flag, str(value)]
    words += ["--tune"] if request.tune else []
    words += [] if request.early_stop else ["--no-early-stop"]
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
