"""Classical models against their definitions, written out."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge, RidgeCV

from tests.tolerances import assert_close
from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.leave_one_out import STRENGTHS, fit_leave_one_out
from threefold.classical.ngrams import NGrams, discounts
from threefold.classical.random_convolutions import RandomConvolutions, choose_dilations
from threefold.classical.smoothing import HoltWinters, Rates, forecast_windows
from threefold.classical.time_warping import nearest_neighbours, time_warping_distances
from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.classical import KERNELS


def series(count: int, length: int, channels: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, length, channels, generator=generator, dtype=torch.float64)


# ------------------------------------------------------------------------------------ native loops


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("unequal", [False, True])
def test_native_loops_equal_the_plain_ones(channels: int, unequal: bool) -> None:
    x, y = series(9, 40, channels), series(7, 29, channels, 1)
    lengths, others = (torch.tensor([40, 12, 31, 40, 9, 17, 17, 17, 17]), torch.arange(5, 26, 3))
    a, b = (lengths, others) if unequal else (None, None)
    transform = RandomConvolutions.fit(x, a, features=300, seed=1)
    for window in (0.0, 0.1, 0.5, 1.0):
        native = time_warping_distances(x, y, a, b, window=window)
        with library.using("reference"):
            plain = time_warping_distances(x, y, a, b, window=window)
        assert torch.equal(native.isinf(), plain.isinf())
        assert_close(native.nan_to_num(posinf=0), plain.nan_to_num(posinf=0))
    for dtype in (torch.float32, torch.float64):
        native = transform.transform(x.to(dtype), a)
        with library.using("reference"):
            plain = transform.transform(x.to(dtype), a)
        # A response that equals its bias up to rounding may count on one side only.
        assert ((native - plain).abs() > 1e-5).double().mean() < 1e-3


def test_features_are_shares_of_a_dilated_convolution() -> None:
    x = series(2, 50, 1)
    transform = RandomConvolutions.fit(x, features=84 * 5)
    features, first = transform.transform(x), 0
    for i, dilation in enumerate(transform.plan.dilations.tolist()):
        for number, kernel in enumerate(KERNELS):
            weight = torch.full((1, 1, 9), -1.0, dtype=torch.float64)
            weight[0, 0, list(kernel)] = 2
            response = torch.nn.functional.conv1d(
                x.transpose(1, 2), weight, padding=4 * dilation, dilation=dilation
            )[:, 0]
            edge = 4 * dilation if (i + number) % 2 else 0
            response = response[:, edge : 50 - edge]
            for _ in range(int(transform.plan.counts[i])):
                share = (response > transform.plan.biases[first]).double().mean(1)
                assert torch.allclose(features[:, first], share)
                first += 1
    assert first == features.shape[1]


def test_dilations_are_those_of_the_paper() -> None:
    dilations, counts = choose_dilations(150, 10_000)
    assert dilations[0] == 1 and dilations[-1] == 18 and counts.sum() == 119
    assert (np.diff(dilations) > 0).all()


def test_time_warping_finds_a_shifted_copy() -> None:
    x = series(5, 60, 1)
    shifted = torch.cat([x[:, :1], x[:, :-1]], 1)
    near, distance = nearest_neighbours(shifted, x, window=0.1)
    assert near.tolist() == [0, 1, 2, 3, 4] and bool((distance >= 0).all())
    same, zero = nearest_neighbours(x, x)
    assert same.tolist() == [0, 1, 2, 3, 4] and bool((zero == 0).all())
    with pytest.raises(ThreefoldError, match="window is 2"):
        time_warping_distances(x, x, window=2)


# ------------------------------------------------------------------------------------------- ridge


@pytest.mark.parametrize("shape", [(20, 40), (50, 10)])
def test_leave_one_out_is_what_it_says(shape: tuple[int, int]) -> None:
    x, y = series(1, *shape)[0], series(1, shape[0], 2, 1)[0]
    fit = fit_leave_one_out(x, y)
    peer = RidgeCV(alphas=STRENGTHS).fit(x.numpy(), y.numpy())
    assert fit.strength == pytest.approx(peer.alpha_)
    assert_close(fit.weight, torch.from_numpy(peer.coef_.T.copy()))
    strength, errors = STRENGTHS[5], []
    fit = fit_leave_one_out(x, y, [strength])
    for left_out in range(shape[0]):
        others = [i for i in range(shape[0]) if i != left_out]
        one = Ridge(alpha=strength).fit(x[others].numpy(), y[others].numpy())
        errors.append((one.predict(x[[left_out]].numpy()) - y[left_out].numpy()) ** 2)
        answer = torch.from_numpy(one.predict(x[[left_out]].numpy())[0])
        assert_close(fit.left_out[left_out], answer)
    assert fit.errors[strength] == pytest.approx(float(np.mean(errors)))


def test_weights_count_examples_several_times() -> None:
    x, y = series(1, 30, 4)[0], series(1, 30, 1, 1)[0]
    weights = torch.arange(30) % 3 + 1.0
    weighted = fit_leave_one_out(x, y, STRENGTHS, weights)
    rows = torch.arange(30).repeat_interleave(weights.long())
    repeated = fit_leave_one_out(x[rows], y[rows], STRENGTHS)
    assert weighted.errors == pytest.approx(repeated.errors)
    assert_close(weighted.weight, repeated.weight)
    assert_close(weighted.offset, repeated.offset)
    assert_close(weighted.left_out[rows], repeated.left_out)  # of each copy without it


def test_autoregression_finds_the_rule_of_a_series() -> None:
    random = np.random.default_rng(0)
    u = random.normal(size=600)
    y = np.zeros(600)
    for t in range(2, 600):
        y[t] = 1.2 * y[t - 1] - 0.5 * y[t - 2] + 0.7 * u[t - 1] + 0.01 * random.normal()
    table = torch.from_numpy(np.stack([y + 100, u], 1))
    begins = torch.arange(8, 597)
    inputs = table[begins[:, None] + torch.arange(-8, 0)]
    targets = table[begins[:, None] + torch.arange(3)][..., :1].clone()
    targets[5, 1] = torch.nan
    model = RidgeAutoregression.fit(inputs[:500], targets[:500])
    errors = (model.predict(inputs[500:]) - targets[500:]).abs().mean((0, 2))
    assert errors[0] < 0.015 and errors[2] < 1.0


# ----------------------------------------------------------------------------------------- n-grams


def written_out(text: list[int], vocabulary: int, order: int, test: list[int]) -> list[float]:
    """Interpolated Kneser–Ney from its definition, with dictionaries."""
    raw = {
        k: Counter(tuple(text[i : i + k]) for i in range(len(text) - k + 1))
        for k in range(1, order + 1)
    }
    adjusted: dict[int, dict[Any, int]] = {order: dict(raw[order])}
    for k in range(1, order):
        left: dict[Any, set[int]] = defaultdict(set)
        for gram in raw[k + 1]:
            left[gram[1:]].add(gram[0])
        adjusted[k] = {gram: max(1, len(left[gram])) for gram in raw[k]}
    taken = {k: discounts(np.array(list(counts.values()))) for k, counts in adjusted.items()}

    def probability(k: int, word: int, context: tuple[int, ...]) -> float:
        if k == 0:
            return 1 / vocabulary
        lower = probability(k - 1, word, context[1:])
        successors = {g[-1]: a for g, a in adjusted[k].items() if g[:-1] == context}
        if not successors:
            return lower
        total = sum(successors.values())
        rest = sum(taken[k][min(a, 3)] for a in successors.values()) / total
        count = successors.get(word, 0)
        return float((count - taken[k][min(count, 3)]) / total + rest * lower)

    answers = []
    for i, word in enumerate(test):
        k = min(order, i + 1)
        answers.append(float(np.log(probability(k, word, tuple(test[i - k + 1 : i])))))
    return answers


@pytest.mark.parametrize("order", [1, 2, 4])
def test_ngrams_are_kneser_neys(order: int) -> None:
    random = np.random.default_rng(0)
    text, test = random.integers(0, 5, 300), random.integers(0, 6, 50)
    model = NGrams.fit(text, 6, order)
    found = model.log_probabilities(test)
    expected = written_out(text.tolist(), 6, order, test.tolist())
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    following = model.distribution(test[:20])
    assert following.sum() == pytest.approx(1) and np.log(following[test[20]]) == pytest.approx(
        found[20]
    )


# ------------------------------------------------------------------------------------- Holt–Winters


def test_smoothing_is_the_recursion() -> None:
    y = np.array([3.0, 5.0, 4.0, 6.0, 7.0, 6.0, 9.0])
    rates, level, slope, seasons = Rates(0.3, 0.2, 0.4, 0.9), 3.0, 0.5, [0.5, -0.5]
    fit = HoltWinters.with_state(y, rates, np.array([level, slope, *seasons]), season=2)
    errors = []
    for t, value in enumerate(y):
        before, season = level + 0.9 * slope, seasons[t]
        errors.append(value - before - season)
        new = 0.3 * (value - season) + 0.7 * before
        slope = 0.2 * (new - level) + 0.8 * 0.9 * slope
        seasons.append(0.4 * (value - before) + 0.6 * season)
        level = new
    assert fit.error == pytest.approx(float(np.mean(np.square(errors))))
    steps = [level + (0.9 + 0.81) * slope + seasons[len(y) + 1]]
    assert fit.forecast(2)[1] == pytest.approx(steps[0])


def test_smoothing_finds_trend_and_season() -> None:
    t, random = np.arange(252), np.random.default_rng(1)
    y = 10 + 0.1 * t + 3 * np.sin(2 * np.pi * t / 12) + 0.1 * random.normal(size=len(t))
    fit = HoltWinters.fit(y[:240], season=12)
    assert np.abs(fit.forecast(12) - y[240:]).mean() < 0.2
    later = HoltWinters.fit(y[:228], season=12).update(y[228:240])
    assert np.abs(later.forecast(12) - y[240:]).mean() < 0.2
    with pytest.raises(ThreefoldError, match="two whole seasons"):
        HoltWinters.fit(y[:20], season=12)


@pytest.mark.parametrize(("season", "trend"), [(0, False), (0, True), (5, False), (5, True)])
def test_initial_states_have_the_least_error(season: int, trend: bool) -> None:
    random = np.random.default_rng(2)
    y = random.normal(size=60).cumsum() + 3 * np.sin(np.arange(60) * 2 * np.pi / 5)
    fit = HoltWinters.fit(y, season=season, trend=trend)

    def errors(state: Any) -> Any:
        level, slope, seasons = state[0], state[1], list(state[2:]) or [0.0]
        found = []
        for t, value in enumerate(y):
            expected, place = level + fit.rates.damping * slope, t % len(seasons)
            found.append(value - expected - seasons[place])
            level = expected + fit.rates.level * found[-1]
            slope = fit.rates.damping * slope + fit.rates.trend * fit.rates.level * found[-1]
            seasons[place] += fit.rates.season * found[-1]
        return np.array(found)

    zero = errors(np.zeros(2 + season))
    free = [0, *([1] if trend else []), *range(2, 2 + season)]
    shapes = np.stack([errors(unit) - zero for unit in np.eye(2 + season)[free]], axis=1)
    least = zero - shapes @ np.linalg.lstsq(shapes, zero, rcond=None)[0]
    assert fit.error == pytest.approx(float(np.mean(least**2)), rel=1e-9)


def test_windows_are_forecast_as_single_series() -> None:
    y = series(3, 30, 1)[:, :, 0].numpy().cumsum(1)
    rates = Rates(0.4, 0.1, 0.3, 0.9)
    together = forecast_windows(y, rates, 7, season=4)
    apart = [forecast_windows(row[None], rates, 7, season=4)[0] for row in y]
    np.testing.assert_allclose(together, apart, rtol=1e-9)
