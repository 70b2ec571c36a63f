"""Intervals and verdicts: compared with scipy, and how often they are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from threefold.errors import ThreefoldError
from threefold.lab.race.significance import interval, paired, t_distribution, t_quantile, verdict


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 100])
def test_t_agrees_with_scipy(freedom: int) -> None:
    for probability in (0.6, 0.975, 0.995, 0.9995):
        assert t_quantile(probability, freedom) == pytest.approx(
            stats.t.ppf(probability, freedom), rel=1e-9
        )
    for value in (-3.0, -0.2, 0.0, 1.0, 40.0):
        assert t_distribution(value, freedom) == pytest.approx(
            stats.t.cdf(value, freedom), abs=1e-12
        )


def test_interval_agrees_with_scipy() -> None:
    values = [1.0, 2.0, 4.0]
    found = interval(values, 0.95)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert interval([3.0]).half == math.inf
    rounding = stats.t.ppf(0.995, 2) * math.sqrt(0.01**2 / 6 / 3)
    assert interval([1.0, 1.0, 1.0], resolution=0.01).half == pytest.approx(rounding)
    assert interval([1.0] * 200, resolution=0.01).half == 0.01
    with pytest.raises(ThreefoldError, match="finite"):
        interval([1.0, math.nan])


def test_pairs_take_the_seeds_that_both_have() -> None:
    found = paired({0: 1.0, 1: 5.0, 2: 9.0}, {1: 4.0, 2: 8.5, 3: 0.0})
    assert found.mean == pytest.approx(0.75) and found.count == 2
    with pytest.raises(ThreefoldError, match="no seed in common"):
        paired({0: 1.0}, {1: 1.0})


def test_a_clear_winner_by_lower_and_by_higher() -> None:
    scores = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.5, 1: 2.51, 2: 3.49}}
    low = verdict(scores, lower=True)
    assert (low.kind, low.leader, low.second) == ("best", "a", "b")
    assert low.margin is not None and low.margin.mean == pytest.approx(0.5)
    high = verdict(scores, lower=False)
    assert (high.kind, high.leader) == ("best", "b")


def test_ties_and_single_seeds() -> None:
    scores = {"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.5, 1: 1.9, 2: 2.5}, "c": {0: 9, 1: 9, 2: 9}}
    found = verdict(scores, lower=True)
    assert (found.kind, found.leader, found.rivals) == ("tie", "b", ("a",))
    assert verdict({"a": {0: 1.0}, "b": {0: 2.0}}, lower=True).kind == "unknown"
    assert verdict({"a": {0: 1.0, 1: 1.1}}, lower=True).kind == "unknown"
    # Both solve the task: a difference below the resolution is a tie.
    solved = {"a": {0: 1.0, 1: 1.0}, "b": {0: 0.999, 1: 0.999}}
    assert verdict(solved, lower=False, resolution=0.002).kind == "tie"
    assert verdict(solved, lower=False).kind == "best"


@pytest.mark.parametrize("models", [2, 5])
def test_equal_models_get_a_winner_in_at_most_one_race_of_a_hundred(models: int) -> None:
    rng = np.random.default_rng(0)
    races, wrong = 3000, 0
    for _ in range(races):
        order = rng.normal(size=3)  # the effect of a seed on all models
        scores = {str(name): dict(enumerate(order + rng.normal(size=3))) for name in range(models)}
        wrong += verdict(scores, lower=True).kind == "best"
    assert wrong / races < 0.015


def test_the_same_for_models_with_different_noise() -> None:
    rng = np.random.default_rng(2)
    races, wrong = 3000, 0
    for _ in range(races):
        order = rng.normal(size=3)
        scores = {
            str(name): dict(enumerate(order + noise * rng.normal(size=3)))
            for name, noise in enumerate((1, 1, 1, 1, 4))
        }
        wrong += verdict(scores, lower=True).kind == "best"
    assert wrong / races < 0.02


def test_two_models_are_the_paired_test() -> None:
    scores = {"a": {0: 1.0, 1: 2.0, 2: 3.5}, "b": {0: 1.2, 1: 2.5, 2: 3.6}}
    found = verdict(scores, lower=True)
    assert found.margin is not None
    expected = stats.ttest_rel(list(scores["b"].values()), list(scores["a"].values()))
    low, high = expected.confidence_interval(0.99)
    assert (found.margin.low, found.margin.high) == pytest.approx((low, high))


def test_real_differences_are_found() -> None:
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        order = 10 * rng.normal(size=3)  # removed by pairing
        scores = {
            name: dict(enumerate(order + shift + 0.01 * rng.normal(size=3)))
            for name, shift in (("a", 0.0), ("b", 0.5))
        }
        won = verdict(scores, lower=True)
        found += won.kind == "best" and won.leader == "a"
    assert found > 190


def test_equal_scores_are_ranked_by_name() -> None:
    equal = verdict({"b": {0: 0.5}, "a": {0: 0.5}}, lower=False)
    assert equal.leader == "a" and set(equal.margins) == {"b"}
