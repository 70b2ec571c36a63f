"""Looks at a race, models that are stopped early, and the test set: errors stay within bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from scipy.signal import fftconvolve

from tests.surfaces.test_cli import here
from threefold.errors import ThreefoldError
from threefold.lab.race.planning import PlannedModel, RacePlan
from threefold.lab.race.request import AUTO_SEEDS, MOST_SEEDS, RaceRequest
from threefold.lab.race.rounds import Rounds, Standing, slowdown
from threefold.lab.race.sequential import InterimLook, levels, spent_error
from threefold.lab.race.significance import verdict
from threefold.lab.race.test_set import block_length, bootstrap_margins, bootstrap_mean
from threefold.lab.studies.false_verdicts import FalseVerdictStudy, count_winners


def test_the_error_is_spent_as_a_random_walk_leaves_a_band() -> None:
    """2 − 2Φ(z/√t) is the chance that Brownian motion has exceeded z by t, on each side."""
    random, steps, paths, alpha = np.random.default_rng(0), 20, 40_000, 0.2
    bound = -NormalDist().inv_cdf(alpha / 4)
    ends = np.cumsum(random.normal(0, steps**-0.5, (paths, steps)), 1)
    begins = np.pad(ends[:, :-1], ((0, 0), (1, 0)))
    room = np.maximum(bound - begins, 0) * np.maximum(bound - ends, 0)
    # What happens between two ends is a Brownian bridge: it exceeds the bound with this chance.
    inside = np.cumprod(1 - np.exp(-2 * steps * room), 1)
    for share in (0.25, 0.5, 1.0):
        exceeded = 2 * float(1 - inside[:, round(share * steps) - 1].mean())
        assert exceeded == pytest.approx(spent_error(alpha, share), abs=4 * (alpha / paths) ** 0.5)


def sequential_bounds(shares: list[float], spent: list[float], sides: int) -> list[float]:
    """Bounds of z that spend exactly this at each look: the density of what has not crossed yet,
    look by look, on a grid (Armitage, McPherson & Rowe 1969)."""
    places, width = np.linspace(-8, 8, 8001, retstep=True)
    density, before, bounds = np.zeros_like(places), 0.0, []
    density[len(places) // 2] = 1 / width
    for share, error in zip(shares, spent, strict=True):
        kernel = np.exp(-(places**2) / 2 / (share - before)) / math.sqrt(
            2 * math.pi * (share - before)
        )
        density, before = fftconvolve(density, kernel, mode="same") * width, share
        tail = np.cumsum(density[::-1])[::-1] * width
        limit = float(np.interp(-error / sides, -tail, places))
        bounds.append(limit / math.sqrt(share))
        density[(places > limit) | (sides == 2) & (places < -limit)] = 0
    return bounds


def test_boundaries_are_the_published_ones() -> None:
    """One-sided 0.05, four equal looks, as the programs of Reboussin et al. 2000, "Computations for
    Group Sequential Boundaries Using the Lan–DeMets Spending Function Method", print them."""
    shares = [0.25, 0.5, 0.75, 1.0]
    spent = [spent_error(0.1, share) / 2 for share in shares]  # on one of two sides
    assert spent == pytest.approx([8.85754e-5, 0.0055746, 0.0236251, 0.05], rel=1e-5)
    bounds = sequential_bounds(shares, list(np.diff(spent, prepend=0)), 1)
    assert bounds == pytest.approx([3.74955, 2.53993, 2.01604, 1.72014], rel=2e-3)


def test_levels_that_add_up_cost_little() -> None:
    """The bounds of `levels` are never narrower than the exact ones, and at most 4 % wider."""
    looks = [InterimLook(seeds, seeds / 5) for seeds in range(2, 6)]
    found = levels(looks, 0.01)
    bounds = [-NormalDist().inv_cdf(level / 2) for level in found]
    exact = sequential_bounds([look.spent for look in looks], list(found), 2)
    ratios = np.array(bounds) / exact
    assert ratios.min() > 0.999 and 1.02 < ratios.max() < 1.045


@pytest.mark.parametrize(("looks", "bound"), [(1, 1.96), (2, 2.9626), (3, 3.7103), (5, 4.8769)])
def test_the_first_boundary_is_the_published_one(looks: int, bound: float) -> None:
    level = levels([InterimLook(1, 1 / looks)], 0.05)[0]
    assert -NormalDist().inv_cdf(level / 2) == pytest.approx(bound, abs=1e-4)


def test_levels_add_up_to_the_error() -> None:
    looks = [InterimLook(2, 0.4), InterimLook(3, 0.6), InterimLook(7, 1.0)]
    assert sum(levels(looks, 0.01)) == pytest.approx(0.01)
    assert levels(looks[:2], 0.01) == levels(looks, 0.01)[:2]  # later looks change nothing
    assert levels([InterimLook(2, 0.01)], 0.01) == (0.0,)  # too early to end anything
    with pytest.raises(ThreefoldError, match="expected more seeds"):
        levels([InterimLook(3, 0.5), InterimLook(3, 1.0)], 0.01)


def plan(names: int, seeds: int | str, early_stop: bool = True) -> RacePlan:
    mixers = tuple(f"m{i}=gru" for i in range(names))
    request = RaceRequest("parity", mixers, "5steps", seeds=seeds, early_stop=early_stop)
    models = tuple(PlannedModel(f"m{i}", ["gru"], 16, 1, "none", 1, 5) for i in range(names))
    return RacePlan(request, models, 1, 8, 8)


def race(rounds: Rounds, scores: np.ndarray) -> tuple[Standing, dict[tuple[str, int], float]]:
    """A race whose run of model i and seed s has scores[i, s]."""
    done: dict[tuple[str, int], float] = {}
    while (standing := rounds.standing(done)).missing:
        done |= {(name, seed): scores[int(name[1:]), seed] for name, seed in standing.missing}
    return standing, done


def by_name(done: Mapping[tuple[str, int], float]) -> dict[str, dict[int, float]]:
    names = sorted({name for name, _ in done})
    return {name: {seed: done[n, seed] for n, seed in done if n == name} for name in names}


def declared(rounds: Rounds, scores: np.ndarray) -> bool:
    standing, done = race(rounds, scores)
    found = verdict(by_name(done), lower=True, looks=standing.looks)
    assert standing.clear == (found.kind == "best")
    return found.kind == "best"


# Races, and how many winners a rate of 1 % exceeds in less than one of a hundred tests.
@pytest.mark.parametrize(
    ("names", "seeds", "races", "most"),
    [(2, "auto", 1000, 18), (3, "auto", 300, 8), (4, 3, 300, 8)],
)
def test_equal_models_rarely_get_a_winner_over_all_looks(
    names: int, seeds: int | str, races: int, most: int
) -> None:
    """At most 1 % of races; without spending, two models get one in more than 2 %."""
    rng, rounds = np.random.default_rng(3), Rounds(plan(names, seeds), lower=True)
    wrong = sum(
        declared(rounds, rng.normal(size=(names, MOST_SEEDS)) + rng.normal(size=MOST_SEEDS))
        for _ in range(races)
    )
    assert wrong <= most


def test_hopeless_models_get_no_further_seeds() -> None:
    rng = np.random.default_rng(0)
    scores = np.array([[1.0], [1.01], [50.0], [1.02]]) + 0.05 * rng.normal(size=(4, MOST_SEEDS))
    standing, done = race(Rounds(plan(4, 3), lower=True), scores)
    assert standing.stopped == ("m2",) and len(by_name(done)["m2"]) == 2
    found = verdict(by_name(done), lower=True, looks=standing.looks)
    assert found.kind == "tie" and "m2" not in found.rivals
    assert found.margins["m2"].count == 2 and found.margins["m2"].settled
    # In a tie the rest of the budget is for further seeds of the others.
    standing, done = race(Rounds(plan(4, "auto"), lower=True), scores)
    assert standing.stopped[0] == "m2" and len(by_name(done)["m0"]) > AUTO_SEEDS
    assert sum(map(len, by_name(done).values())) <= 4 * AUTO_SEEDS
    standing, done = race(Rounds(plan(4, 3, early_stop=False), lower=True), scores)
    assert not standing.stopped and len(done) == 12


def test_the_two_best_of_a_fixed_number_of_seeds_are_never_stopped() -> None:
    scores = np.array([[1.0], [2.0], [3.0]]) + 1e-4 * np.arange(MOST_SEEDS)
    scores[:, 1] += [1e-5, -1e-5, 2e-5]
    standing, done = race(Rounds(plan(3, 4), lower=True), scores)
    assert standing.stopped == ("m2",)
    assert [len(s) for s in by_name(done).values()] == [4, 4, 2]
    # Auto ends as soon as the verdict is clear.
    standing, done = race(Rounds(plan(3, "auto"), lower=True), scores)
    assert standing.clear and standing.looks[-1].spent < 1 and len(done) < 12


def test_a_stopped_model_never_leads() -> None:
    """Even if its few seeds were easier ones."""
    scores = {"a": {0: 2.0, 1: 2.1, 2: 9.0, 3: 9.1}, "b": {0: 2.5, 1: 2.6}}
    looks = [InterimLook(2, 0.5), InterimLook(3, 0.75), InterimLook(4, 1.0)]
    found = verdict(scores, lower=True, looks=looks)
    assert found.leader == "a" and found.margins["b"].mean == pytest.approx(0.5)
    assert found.margins["b"].confidence == 1 - levels(looks, 0.01)[0]
    # Nor is it beaten by a model that was clearly worse over the seeds of both.
    scores["b"] = {0: 1.0, 1: 1.1}
    behind = verdict(scores, lower=True, looks=looks)
    assert behind.margins["b"].mean < 0 and behind.kind == "tie" and behind.rivals == ("b",)


def test_the_bootstrap_of_a_mean_has_its_closed_form() -> None:
    """Its variance is Σ(x − x̄)²/n², which the resamples reach up to their own noise."""
    values = np.random.default_rng(1).gamma(2.0, size=400)
    found = bootstrap_mean(values, np.ones(400), 0.95, resamples=20_000)
    error = values.std() / math.sqrt(400)
    assert found.mean == pytest.approx(values.mean())
    assert found.half == pytest.approx(NormalDist().inv_cdf(0.975) * error, rel=0.08)
    # Counts: a mean over all targets, not over examples.
    ratio = bootstrap_mean([1.0, 9.0], [1, 3], 0.9)
    assert ratio.mean == 2.5


def test_blocks_see_that_neighbours_resemble_each_other() -> None:
    noise = np.random.default_rng(2).normal(size=100)
    repeated = np.repeat(noise, 10)  # 1000 examples with the information of 100
    single, blocks = (bootstrap_mean(repeated, np.ones(1000), 0.99, b).half for b in (1, 30))
    assert 2 < blocks / single < 4.5  # √10
    assert (block_length(1000, "classifier"), block_length(1000, "language")) == (1, 10)


def test_margins_over_the_test_examples() -> None:
    rng = np.random.default_rng(0)
    easy = rng.normal(size=300)  # how hard an example is, for all models
    examples = {
        name: {
            seed: np.stack([easy + level + 0.1 * rng.normal(size=300), np.ones(300)], 1)
            for seed in range(3)
        }
        for name, level in (("a", 0.0), ("b", 0.2), ("c", 0.001))
    }
    found = bootstrap_margins(examples, "a", lower=True)
    assert found["b"].mean == pytest.approx(0.2, abs=0.02) and found["b"].settled
    assert not found["c"].settled and found["b"].count == 300
    assert bootstrap_margins(examples, "a", lower=False)["b"].mean < 0
    assert not bootstrap_margins({"a": {0: easy[:4, None]}}, "a", lower=True)


def test_false_verdicts_are_counted(tmp_path: Path) -> None:
    options = ("--runs", "10", "--races", "20", "--steps", "1", "--data", "recall")
    done = here("lab", "false-verdicts", *options, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "10 runs of gru on recall: score 0." in done.stdout
    assert done.stdout.count(" of 20 races declare a winner (") == 5
    values = json.loads((tmp_path / "false-verdicts.json").read_text())
    assert len(values["scores"]) == 10
    # Runs that differ by model would be found: the count is not always zero.
    study, scores = FalseVerdictStudy(races=40), np.random.default_rng(0).normal(size=10_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threefold.lab.race.sequential.spent_error", lambda alpha, share: 0.5 * share)
        counted = count_winners(plan(1, 3), scores, True, 0.0, study, 2, "auto")
    assert counted.winners > 10 and counted.races == 40


def test_a_slower_machine_affords_fewer_seeds() -> None:
    """Decided by recorded times, so that a race that was interrupted decides the same."""
    planned = plan(2, "auto")
    timed = replace(planned, request=replace(planned.request, time="60s"))
    scores = np.random.default_rng(0).normal(size=(2, MOST_SEEDS))
    usual, _ = race(Rounds(timed, lower=True), scores)
    taken = {(f"m{i}", seed): 2.5 for i in range(2) for seed in range(MOST_SEEDS)}
    slow, done = race(Rounds(timed, lower=True, taken=taken), scores)
    assert usual.looks[-1].seeds == AUTO_SEEDS and slow.looks[-1].seeds == 2
    assert slow.looks[-1].spent == 1.0 and len(done) == 4
    assert slowdown(timed, taken) == 2.5 and slowdown(planned, taken) == 0.0  # steps, not a time
