"""Rocket estimators under scikit-learn's own checks, and on series that need their order."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from threefold.errors import ThreefoldError
from threefold.estimators import RocketClassifier, RocketRegressor


@pytest.mark.parametrize("estimator", [RocketClassifier(168), RocketRegressor(168)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_it(estimator: Any) -> None:
    check_estimator(estimator, on_skip=None)


def chirps(count: int, seed: int = 0) -> tuple[Any, Any]:
    """Rising or falling frequencies, with the same numbers in another order."""
    random = np.random.default_rng(seed)
    t = np.linspace(0, 1, 120)
    rising = np.sin(2 * np.pi * (2 + 10 * t) * t + random.uniform(0, 6, (count, 1)))
    labels = random.integers(2, size=count)
    x = np.where(labels[:, None] == 1, rising, rising[:, ::-1])
    return x + 0.3 * random.normal(size=x.shape), np.array(["down", "up"])[labels]


def test_it_learns_and_is_a_scikit_learn_citizen() -> None:
    x, y = chirps(80)
    new, truth = chirps(60, 1)
    model = make_pipeline(StandardScaler(), RocketClassifier(1000))
    search = GridSearchCV(model, {"rocketclassifier__n_features": [168, 1000]}, cv=3).fit(x, y)
    assert search.score(new, truth) > 0.95
    assert cross_val_score(clone(model), x, y, cv=3).mean() > 0.9
    fitted = RocketClassifier(1000).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(new), fitted.predict_proba(new))
    right = fitted.predict_proba(new)[np.arange(60), (truth == "up").astype(int)]
    assert -np.log(right).mean() < 0.3


def test_three_axes_and_unequal_lengths() -> None:
    x, y = chirps(60)
    new, truth = chirps(40, 1)
    both = np.stack([x, -x], 2)
    fitted = RocketClassifier(1000).fit(both, y)
    assert fitted.score(np.stack([new, -new], 2), truth) > 0.9
    with pytest.raises(ThreefoldError, match="1 channels, but RocketClassifier was fitted on 2"):
        fitted.predict(new[..., None])
    lengths = np.random.default_rng(0).integers(70, 121, 100)
    cut = [row[:length] for row, length in zip([*x, *new], lengths, strict=True)]
    assert RocketClassifier(1000).fit(cut[:60], y).score(cut[60:], truth) > 0.85


def test_regression_of_several_numbers() -> None:
    random = np.random.default_rng(0)
    rate = random.uniform(1, 6, (120, 2))
    t = np.linspace(0, 1, 100)
    x = np.sin(2 * np.pi * rate[:, :1] * t) + 0.5 * np.sin(14 * np.pi * rate[:, 1:] * t)
    model = RocketRegressor(2000).fit(x[:90], rate[:90])
    assert model.predict(x[90:]).shape == (30, 2) and model.score(x[90:], rate[90:]) > 0.8
    assert RocketRegressor(200).fit(x, rate[:, 0]).predict(x).shape == (120,)
