"""How often a race of equal models declares a winner: at most 1 race in 100.

One model is trained from many seeds.  A race is resampled by giving its contenders scores of these
runs, each run at most once; the contenders are equal, so a winner is a false verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from threefold.data.atomic_files import write_json
from threefold.errors import ThreefoldError
from threefold.lab.race.planning import RacePlan, make_plan
from threefold.lab.race.request import AUTO, RaceRequest
from threefold.lab.race.result import resolution
from threefold.lab.race.rounds import Rounds
from threefold.lab.race.runs import train_run
from threefold.lab.race.significance import CONFIDENCE, verdict
from threefold.training.data_cache import DataCache

# (contenders, seeds) of the races that are resampled.
RACES: tuple[tuple[int, int | str], ...] = ((2, 3), (2, AUTO), (3, AUTO), (5, 3), (5, AUTO))


@dataclass(frozen=True)
class FalseVerdictStudy:
    """Which model is trained, how often, and how many races are resampled."""

    data: str = "adding"
    mixer: str = "gru"
    steps: int = 60
    runs: int = 60
    races: int = 2000
    width: int = 16
    seed: int = 0


@dataclass(frozen=True)
class Count:
    """How many races declared a winner."""

    contenders: int
    seeds: int | str
    races: int
    winners: int
    mean_runs: float  # per race


def run(
    folder: Path, study: FalseVerdictStudy, say: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Train, resample, write false-verdicts.json; the lines to print."""
    plan, scores, lower, smallest = train_runs(folder, study, say)
    yield (
        f"{study.runs} runs of {study.mixer} on {study.data}: score {scores.mean():.4g} ± "
        f"{scores.std(ddof=1):.2g} (standard deviation)"
    )
    counts = [
        count_winners(plan, scores, lower, smallest, study, contenders, seeds)
        for contenders, seeds in RACES
    ]
    for item in counts:
        yield (
            f"{item.contenders} models, --seeds {item.seeds}: {item.winners} of {item.races:,} "
            f"races declare a winner ({item.winners / item.races:.2%}; expected at most "
            f"{1 - CONFIDENCE:.0%}), {item.mean_runs:.1f} runs per race"
        )
    values = {"scores": scores.tolist(), "counts": [vars(item) for item in counts]}
    write_json(folder / "false-verdicts.json", values)


def train_runs(
    folder: Path, study: FalseVerdictStudy, say: Callable[[str], None]
) -> tuple[RacePlan, NDArray[np.float64], bool, float]:
    """(a plan, the test score of each run, whether lower is better, the resolution)."""
    if study.runs < 2 * max(contenders for contenders, _ in RACES):
        raise ThreefoldError(f"--runs {study.runs}: expected at least 10, e.g. 60")
    request = RaceRequest(
        study.data, (study.mixer,), f"{study.steps}steps", width=study.width, depth=1
    )
    cache = DataCache()
    plan = make_plan(request, cache=cache)
    name = plan.contenders[0].name
    scores = []
    for seed in range(study.runs):
        say(f"training run {seed + 1} of {study.runs}")
        place = folder / "runs" / f"{name}-{seed}"
        finished = train_run(plan, plan.config(name, seed), place, lambda *_: None, cache)
        scores.append(finished.run.score)
    data = cache.open(plan.config(name, 0).data)
    return plan, np.array(scores), data.task.lower, resolution(plan, data)


def count_winners(
    plan: RacePlan,
    scores: NDArray[np.float64],
    lower: bool,
    smallest: float,
    study: FalseVerdictStudy,
    contenders: int,
    seeds: int | str,
) -> Count:
    """Resample races of this many contenders."""
    names = [f"model{i}" for i in range(contenders)]
    request = replace(plan.request, mixers=tuple(f"{n}={study.mixer}" for n in names), seeds=seeds)
    models = tuple(replace(plan.contenders[0], name=name) for name in names)
    rounds = Rounds(replace(plan, request=request, contenders=models), lower, smallest)
    rng = np.random.default_rng([study.seed, contenders])
    winners = runs = 0
    for _ in range(study.races):
        drawn = iter(rng.permutation(scores))
        found, used = resampled_race(rounds, drawn, rng, scores)
        winners, runs = winners + found, runs + used
    return Count(contenders, seeds, study.races, winners, runs / study.races)


def resampled_race(
    rounds: Rounds, drawn: Iterator[float], rng: np.random.Generator, scores: NDArray[np.float64]
) -> tuple[bool, int]:
    """(whether a winner was declared, runs); a long race may need some run twice."""
    done: dict[tuple[str, int], float] = {}
    while (standing := rounds.standing(done)).missing:
        done |= {run: float(next(drawn, rng.choice(scores))) for run in standing.missing}
    by_name: dict[str, dict[int, float]] = {}
    for (name, seed), score in done.items():
        by_name.setdefault(name, {})[seed] = score
    found = verdict(by_name, lower=rounds.lower, resolution=rounds.resolution, looks=standing.looks)
    return found.kind == "best", len(done)
