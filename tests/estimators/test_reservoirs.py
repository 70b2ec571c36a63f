"""Reservoirs and extreme learning machines under scikit-learn's protocol, with and without it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from threefold.errors import ThreefoldError
from threefold.estimators import (
    EchoStateNetwork,
    ExtremeLearningMachine,
    LiquidStateMachine,
)

AXIS = "rows of a list are series, so a list of lists is not one table"
WORDS = "refused with a message of our own"
EXPECTED_FAILURES = {
    "check_no_attributes_set_in_init": "the tensors are there before fit: set_weights fills them",
    "check_fit_score_takes_y": "the arguments are called inputs and targets, as they may be series",
    "check_dont_overwrite_parameters": "classes and best_regularisation have no underscore",
    "check_do_not_raise_errors_in_init_or_set_params": "wrong settings are refused when given",
    "check_n_features_in_after_fitting": WORDS,
    "check_estimators_empty_data_messages": WORDS,
    "check_fit1d": "a series [length] is one of single numbers",
    "check_fit2d_predict1d": WORDS,
    "check_regressors_train": AXIS,
    "check_classifiers_train": AXIS,
    "check_classifiers_classes": "with two classes there are two scores",
    "check_estimators_partial_fit_n_features": "partial_fit learns numbers only",
    "check_supervised_y_2d": "labels are [N]",
}
SERIES = {
    "check_methods_sample_order_invariance": "rows are a series: their order is what is learned",
    "check_methods_subset_invariance": "rows are a series: what comes before matters",
}


@pytest.mark.parametrize(
    "estimator",
    [
        ExtremeLearningMachine(units=20),
        ExtremeLearningMachine(units=20, classify=True),
        EchoStateNetwork(units=20, wash_out=0),
        LiquidStateMachine(grid=(5, 2, 2)),
    ],
    ids=["numbers", "labels", "series", "spikes"],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_it(estimator: Any) -> None:
    series = {} if isinstance(estimator, ExtremeLearningMachine) else SERIES
    results = check_estimator(
        estimator, expected_failed_checks={**EXPECTED_FAILURES, **series}, on_skip=None
    )
    assert sum(result["status"] == "passed" for result in results) >= 36


def test_parameters_clones_and_searches() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3))
    y = np.where(np.linalg.norm(x, axis=1) > 1.5, "far", "near")
    machine = ExtremeLearningMachine(units=30, classify=True)
    assert is_classifier(machine) and is_regressor(ExtremeLearningMachine())
    search = GridSearchCV(
        make_pipeline(StandardScaler(), machine),
        {"extremelearningmachine__units": [2, 60]},
        cv=3,
    ).fit(pd.DataFrame(x, columns=list("abc")), y)
    assert search.best_params_ == {"extremelearningmachine__units": 60}
    assert search.best_score_ > 0.7
    fitted = search.best_estimator_[-1]
    assert list(fitted.classes_) == ["far", "near"] and fitted.n_features_in_ == 3
    assert not clone(fitted).__sklearn_is_fitted__()
    with pytest.raises(ThreefoldError, match="has no setting 'unit'; did you mean 'units'"):
        machine.set_params(unit=3)
    with pytest.raises(ThreefoldError, match="units=0, expected at least 1"):
        machine.set_params(units=0)
    assert machine.units == 30
    with pytest.raises(AttributeError, match="it predicts numbers"):
        ExtremeLearningMachine().fit(x, x[:, 0]).decision_function(x)


def test_clone_keeps_weights_that_were_set() -> None:
    weight = np.diag([0.5, 0.2])
    network = EchoStateNetwork().set_weights(weight, np.ones((2, 1)))
    copy = clone(network)
    u = np.linspace(0, 1, 20)
    assert np.array_equal(copy.states(u), network.states(u))


def test_pickle_has_arrays_and_streams_on() -> None:
    wave = np.sin(0.2 * np.arange(600))
    network = EchoStateNetwork(units=30).partial_fit(wave[:300], wave[1:301])
    state = network.__getstate__()
    assert all(isinstance(part, np.ndarray) for part in state["tensors"].values())
    again = pickle.loads(pickle.dumps(network))
    for each in (network, again):
        each.partial_fit(wave[300:-1], wave[301:], state=each.state)
    assert np.array_equal(again.predict(wave), network.predict(wave))
    fitted = pickle.loads(pickle.dumps(EchoStateNetwork(units=30).fit(wave[:-1], wave[1:])))
    with pytest.raises(ThreefoldError, match="a loaded fit cannot be continued"):
        fitted.partial_fit(wave[:-1], wave[1:])


def test_what_cannot_be_read_is_refused() -> None:
    machine = ExtremeLearningMachine(units=5)
    with pytest.raises(ThreefoldError, match="Complex data not supported"):
        machine.fit(np.ones((9, 2)) * 1j, np.ones(9))
    with pytest.raises(ThreefoldError, match="the target y is None"):
        machine.fit(np.ones((9, 2)), None)


def test_without_scikit_learn() -> None:
    code = """
import sys
sys.modules["sklearn"] = None
import numpy as np
import threefold
assert not any(name.startswith("sklearn.") for name in sys.modules)
from threefold.estimators import EchoStateNetwork, LiquidStateMachine
from threefold.errors import ThreefoldError
wave = np.sin(np.arange(200) / 5)
network = EchoStateNetwork(units=20)
try:
    network.predict(wave)
except ThreefoldError as error:
    assert "call fit first" in str(error)
network.fit(wave[:-1], wave[1:])
LiquidStateMachine(grid=(3, 2, 2)).fit(wave[:-1], wave[1:])
import threefold.estimators
for name in ("SequenceClassifier", "SequenceForecaster", "TextClassifier", "RocketClassifier"):
    try:
        getattr(threefold.estimators, name)
    except ThreefoldError as error:
        assert f'{name} needs scikit-learn: pip install "threefold[sklearn]"' in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
