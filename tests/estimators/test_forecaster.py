"""The forecaster: index, quantiles, races, refusals, and scikit-learn's searches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import polars
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

from threefold.errors import ThreefoldError
from threefold.estimators import SequenceForecaster

SMALL: dict[str, Any] = {"width": 16, "steps": 60, "learning_rate": 1e-2, "context": 24}


def daily(rows: int = 240) -> pd.Series:
    """A wave of 12 hours with a little noise."""
    random = np.random.default_rng(0)
    values = 100 + 10 * np.sin(2 * np.pi * np.arange(rows) / 12) + random.normal(size=rows)
    index = pd.date_range("2024-03-01", periods=rows, freq="h", name="when")
    return pd.Series(values, index=index, name="flow")


def test_scikit_learn_accepts_it() -> None:
    with pytest.warns(match="Can't test estimator"):  # a series is no table: few checks apply
        check_estimator(SequenceForecaster(**SMALL))
    for check in (
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
    ):
        check("SequenceForecaster", SequenceForecaster())


def test_it_learns_and_the_index_goes_on() -> None:
    y = daily()
    model = SequenceForecaster(horizon=12, **SMALL).fit(y[:-12])
    forecast = model.predict()
    assert forecast.index.equals(y.index[-12:]) and forecast.name == "flow"
    assert forecast.index.name == "when"
    assert model.score(y[-12:]) > 0.8
    quantiles = model.predict_quantiles(fh=[1, 12])
    assert list(quantiles.columns) == [0.1, 0.5, 0.9] and len(quantiles) == 2
    assert (quantiles.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    assert np.allclose(quantiles[0.5], forecast.iloc[[0, 11]])
    assert model.predict_interval(3).shape == (3, 2)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict().equals(forecast)
    assert clone(model).fit(y[:-12]).predict().equals(forecast)  # the seed decides
    model.update(y[-12:])
    assert model.predict(1).index[0] == y.index[-1] + pd.Timedelta(hours=1)
    with pytest.warns(UserWarning, match="forecasting 15 steps with a model of 12"):
        assert len(model.predict(15)) == 15


def test_forms_of_series() -> None:
    y = daily()
    model = SequenceForecaster(horizon=3, **{**SMALL, "steps": 5})
    expected = clone(model).fit(y).predict().to_numpy()
    for data in (y.to_numpy(), y.tolist(), polars.Series(y.to_numpy())):
        assert np.array_equal(clone(model).fit(data).predict(), expected)
    periods = y.set_axis(pd.period_range("2020-01", periods=len(y), freq="M"))
    assert str(clone(model).fit(periods).predict().index[0]) == "2040-01"
    numbered = y.set_axis(np.arange(0, 480, 2))
    assert clone(model).fit(numbered).predict().index.tolist() == [480, 482, 484]
    both = pd.DataFrame({"a": y, "b": -y})
    frame = clone(model).fit(both, X=pd.DataFrame({"a": np.arange(240) % 12}))
    assert list(frame.predict().columns) == ["a", "b"]
    assert frame.predict_quantiles().shape == (3, 6)
    assert pickle.loads(pickle.dumps(frame)).predict().equals(frame.predict())


def test_race_keeps_the_winner() -> None:
    y = daily()
    weak = {**SMALL, "learning_rate": 0.0, "steps": 1}
    model = SequenceForecaster("gru,rnn", horizon=12, **weak).fit(y[:-12])
    names = {row["name"] for row in model.race_}
    assert names == {"last value", "seasonal naive", "ridge", "Holt–Winters", "gru", "rnn"}
    assert model.verdict_.startswith(f"No sequence model beats {model.best_} here")
    assert model.score(y[-12:]) > 0.9
    best = model.race_[0]["loss"] * model.preprocessing_.outputs.steps[0].deviation[0]
    assert f"mean absolute error {best:.3g} in units of y" in model.verdict_
    with pytest.raises(ThreefoldError, match="has no folder; pickle the estimator"):
        model.model_.save("folder")
    assert pickle.loads(pickle.dumps(model)).predict().equals(model.predict())
    strong = SequenceForecaster("gru,rnn", horizon=2, **SMALL).fit(y)
    assert strong.race_[0]["name"] == strong.best_


def test_intervals_of_simple_models_cover() -> None:
    weak = {**SMALL, "learning_rate": 0.0, "steps": 1}
    covered = []
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(size=240)
        y = 100 + 10 * np.sin(2 * np.pi * np.arange(240) / 12) + noise
        model = SequenceForecaster("rnn,gru", horizon=12, **weak).fit(y[:-12])
        low, high = model.predict_interval().T
        covered.append((low <= y[-12:]) & (y[-12:] <= high))
    assert 0.6 < np.mean(covered) < 0.97  # 0.8 in the long run


def test_searches_over_time() -> None:
    search = GridSearchCV(
        SequenceForecaster(horizon=12, **{**SMALL, "steps": 30}),
        {"learning_rate": [1e-7, 1e-2]},
        cv=TimeSeriesSplit(2, test_size=12),
    ).fit(daily().to_numpy())
    assert search.best_params_ == {"learning_rate": 1e-2}


def test_what_does_not_fit_is_refused() -> None:
    y = daily()
    model = SequenceForecaster(**{**SMALL, "steps": 2})
    gaps = y.copy()
    gaps.iloc[7] = np.nan
    with pytest.raises(ThreefoldError, match="y is nan in row 7"):
        model.fit(gaps)
    for missing in ("carry", "mask"):
        assert np.isfinite(clone(model).set_params(missing=missing).fit(gaps).predict()).all()
    uneven = y.set_axis(y.index + pd.to_timedelta(np.arange(240) % 7, "min"))
    with pytest.warns(UserWarning, match="not equally spaced"):
        clone(model).fit(uneven)
    with pytest.raises(ThreefoldError, match="not increasing"):
        model.fit(y[::-1])
    with pytest.raises(ThreefoldError, match="horizon is 0"):
        SequenceForecaster(horizon=0).fit(y)
    with pytest.raises(ThreefoldError, match="too few for a context of 24"):
        model.fit(y[:20])
    model.fit(y)
    with pytest.raises(ThreefoldError, match=r"the quantile 0.3 was not trained"):
        model.predict_quantiles(quantiles=[0.3])
    with pytest.raises(ThreefoldError, match=r"quantiles=\(0.025, 0.5, 0.975\)"):
        model.predict_interval(coverage=0.95)
    with pytest.raises(ThreefoldError, match="horizon or fh, not both"):
        model.predict(2, fh=[1])
    with pytest.raises(ThreefoldError, match="steps ahead are"):
        model.predict(fh=[0])
    for several in ({"a": y, "b": y}, [y, y], [y.to_numpy(), y.to_numpy()[:50]]):
        with pytest.raises(ThreefoldError, match=r"of( 2)? series: a SequenceForecaster reads one"):
            model.fit(several)
    levels = pd.MultiIndex.from_product([["a", "b"], range(120)], names=["shop", "day"])
    with pytest.raises(ThreefoldError, match=r"several levels \(shop, day\): a SequenceForecaster"):
        model.fit(y.set_axis(levels))
    model.fit(list(y.to_frame().to_numpy()))  # rows of a table are no series
    model.fit(y)
    with pytest.raises(ThreefoldError, match="y has no index"):
        model.update([1.0, 2.0])
