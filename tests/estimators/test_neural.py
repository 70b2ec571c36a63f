"""Neural classifiers, regressors and text classifiers as scikit-learn users meet them."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator

from threefold.errors import ThreefoldError
from threefold.estimators import (
    RocketClassifier,
    SequenceClassifier,
    SequenceRegressor,
    TextClassifier,
)
from threefold.estimators.fitting import TrainingExamples, train_model
from threefold.estimators.neural import PACKED, _shares
from threefold.estimators.racing import RaceEntry
from threefold.lab.studies.estimator_defaults import DefaultsStudy
from threefold.lab.studies.estimator_defaults import run as run_study
from threefold.tasks.table import task
from threefold.tasks.task import Task

SMALL: dict[str, Any] = {"width": 16, "layers": 1, "learning_rate": 1e-2, "dropout": 0.0}
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn from numbered examples, so "
    "repeating or removing examples makes other batches",
    "check_regressors_train": "15 steps are too few to reach an R² of 0.5; the next test trains on",
}


@pytest.mark.parametrize(
    "estimator",
    [
        SequenceClassifier(**SMALL, steps=40),
        SequenceRegressor(**SMALL, steps=15),
        TextClassifier(**SMALL, steps=5),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_accepts_it(estimator: Any) -> None:
    expected = dict(EXPECTED_FAILURES)
    if not isinstance(estimator, SequenceRegressor):
        expected.pop("check_regressors_train")
    check_estimator(estimator, expected_failed_checks=expected, on_skip=None)


def test_regressor_reaches_what_scikit_learn_expects() -> None:
    model = SequenceRegressor(**{**SMALL, "width": 32, "layers": 2}, steps=150)
    estimator_checks.check_regressors_train("SequenceRegressor", model)


def waves(count: int, seed: int = 0, length: int = 30) -> tuple[Any, Any, Any]:
    """Slow and fast waves, their names, and their rates."""
    random = np.random.default_rng(seed)
    rate = random.uniform(0.2, 1.0, count)
    x = np.sin(rate[:, None] * np.arange(length) + random.uniform(0, 6, (count, 1)))
    x += 0.1 * random.normal(size=x.shape)
    return x, np.where(rate > 0.6, "fast", "slow"), rate


def test_every_form_of_sequences_gives_the_same_answers() -> None:
    x, y, _ = waves(40)
    model = SequenceClassifier(**SMALL, steps=60)
    expected = clone(model).fit(x, y).predict_proba(x)
    assert np.abs(expected.sum(1) - 1).max() < 1e-12
    nested = [row.tolist() for row in x]
    forms = {
        "three axes": x[..., None],
        "list": [row[:, None] for row in x],
        "pandas": pd.DataFrame(x),
        "pandas cells": pd.DataFrame({"a": nested}),
        "pandas column": pd.Series(nested),
        "polars": polars.DataFrame(x),
        "polars cells": polars.DataFrame({"a": nested}),
        "tensor": torch.from_numpy(x),
    }
    for name, data in forms.items():
        answers = clone(model).fit(data, y).predict_proba(data)
        assert np.array_equal(answers, expected), name


def test_unequal_lengths_and_channels() -> None:
    x, y, _ = waves(60)
    lengths = np.random.default_rng(0).integers(1, 31, 60)  # some sequences have one element
    rows = [np.stack([r[:n], -r[:n]], 1) for r, n in zip(x, lengths, strict=True)]
    model = SequenceClassifier(**SMALL, steps=20).fit(rows, y)
    alone = np.concatenate([model.predict_proba([row]) for row in rows])
    assert np.allclose(alone, model.predict_proba(rows), atol=1e-12)  # padding does not exist
    frame = pd.DataFrame({"a": [r[:, 0] for r in rows], "b": [r[:, 1] for r in rows]})
    named = SequenceClassifier(**SMALL, steps=20).fit(frame, y)
    assert list(named.feature_names_in_) == ["a", "b"] and named.n_channels_in_ == 2
    assert np.array_equal(named.predict_proba(frame), model.predict_proba(rows))
    with pytest.raises(ThreefoldError, match="1 channels, but SequenceClassifier was fitted on 2"):
        model.predict([row[:, 0] for row in rows])
    with pytest.raises(ThreefoldError, match=r"row 0 of X has lists of \[1, 2\] elements"):
        named.predict(pd.DataFrame({"a": [[1.0]], "b": [[1.0, 2.0]]}))


@pytest.mark.parametrize("model", [SequenceClassifier(**SMALL, steps=3), RocketClassifier(168)])
def test_fitted_on_unequal_lengths_it_answers_any(model: Any) -> None:
    x, y, _ = waves(40)
    rows = [row[: 12 + n % 7] for n, row in enumerate(x)]
    fitted = clone(model).fit(rows, y)
    expected = fitted.predict_proba([row[:10, None] for row in x[:3]])
    forms = {
        "arrays of one length": list(x[:3, :10]),
        "lists of one length": x[:3, :10].tolist(),
        "array": x[:3, :10],
        "three axes": x[:3, :10, None],
        "data frame": pd.DataFrame(x[:3, :10]),
        "alone": None,
    }
    for name, data in forms.items():
        alone = [fitted.predict_proba([row[:10]])[0] for row in x[:3]]
        answers = alone if data is None else fitted.predict_proba(data)
        assert np.allclose(answers, expected, atol=1e-12), name
    listed = clone(model).fit(list(x), y)  # a list of arrays, though they are equally long
    assert np.array_equal(listed.predict_proba(x), clone(model).fit(x, y).predict_proba(x))
    assert len(listed.predict([x[0, :10]])) == 1
    with pytest.raises(ValueError, match="X has 10 features, but"):
        clone(model).fit(x, y).predict(x[:, :10])
    with pytest.raises(ThreefoldError, match=r"X\[1\] is empty; expected at least one element"):
        fitted.predict([x[0], x[1, :0]])


@pytest.mark.parametrize("model", [SequenceClassifier(**SMALL, steps=2), RocketClassifier(168)])
def test_absent_labels_and_columns_of_times_are_refused(model: Any) -> None:
    x, y, _ = waves(20)
    with pytest.raises(ThreefoldError, match="requires y to be passed"):
        model.fit(x, None)
    with pytest.raises(ThreefoldError, match=r"y\[3\] is missing \(None or NaN\); leave"):
        model.fit(x, np.where(np.arange(20) == 3, None, y))
    days = pd.DataFrame({"day": pd.date_range("2025-01-01", periods=20), "a": x[:, 0]})
    with pytest.raises(ThreefoldError, match=r"not numbers: day \(times\); leave them out"):
        model.fit(days, y)


def test_it_learns_whatever_the_labels_are_and_searches() -> None:
    x, y, _ = waves(120)
    new, truth, _ = waves(60, 1)
    model = make_pipeline(StandardScaler(), SequenceClassifier(**SMALL, steps=80))
    search = GridSearchCV(model, {"sequenceclassifier__mixers": ["gru", "lstm"]}, cv=2)
    assert search.fit(x, y).score(new, truth) > 0.85
    assert cross_val_score(clone(model), x, y, cv=2).mean() > 0.8
    for labels in (y == "fast", np.where(y == "fast", 7, -2), np.where(y == "fast", 1.0, 2.0)):
        fitted = SequenceClassifier(**SMALL, steps=3).fit(x, labels)
        assert fitted.predict(new).dtype == labels.dtype
        assert set(fitted.classes_) == set(labels)


def test_regressor_in_its_own_units() -> None:
    x, _, rate = waves(120)
    new, _, truth = waves(60, 1)
    both = np.stack([1000 + 50 * rate, -rate], 1)
    model = SequenceRegressor(**SMALL, steps=150).fit(x, both)
    assert model.score(new, np.stack([1000 + 50 * truth, -truth], 1)) > 0.7
    whole = SequenceRegressor(**SMALL, steps=5).fit(x, np.arange(120))  # whole numbers are numbers
    assert whole.predict(new).shape == (60,) and whole.predict(new).dtype == np.float64
    with pytest.raises(ThreefoldError, match="y cannot be read as numbers"):
        whole.fit(x, ["a"] * 120)


def test_seed_decides() -> None:
    x, y, _ = waves(40)
    fits = [SequenceClassifier(**SMALL, steps=5, random_state=s) for s in (3, 3, 4, None, None)]
    answers = [fit.fit(x, y).predict_proba(x) for fit in fits]
    assert np.array_equal(answers[0], answers[1])
    assert not np.allclose(answers[0], answers[2]) and not np.allclose(answers[3], answers[4])


def test_sample_weights_count() -> None:
    x, y, rate = waves(60)
    random = np.random.default_rng(0).permutation(60)
    mixed, labels = np.concatenate([x, x]), np.concatenate([y, y[random]])
    weights = np.repeat([1.0, 0.0], 60)  # the wrong labels do not count
    model = SequenceClassifier(**SMALL, steps=60)
    weighted = clone(model).fit(mixed, labels, sample_weight=weights).predict_proba(x)
    assert np.array_equal(weighted, clone(model).fit(x, y).predict_proba(x))
    targets = np.concatenate([rate, rate[random]])
    little = np.repeat([1.0, 1e-3], 60)
    fits = [SequenceRegressor(**SMALL, steps=100).fit(mixed, targets, w) for w in (None, little)]
    assert fits[1].score(x, rate) > fits[0].score(x, rate) + 0.1
    with pytest.raises(ValueError, match="egative"):
        model.fit(x, y, sample_weight=-np.ones(60))


def test_weights_scale_the_loss_of_a_row() -> None:
    x, y, _ = waves(16)
    weights = np.linspace(0.5, 1.5, 16)
    examples = TrainingExamples(list(x[..., None]), (y == "fast").astype(int), weights)
    model = SequenceClassifier(**SMALL, steps=1, batch_size=16)
    preprocessing = model._preprocessing(examples, ["slow", "fast"])
    trained = train_model(examples, preprocessing, model._settings())
    start = train_model(
        TrainingExamples(examples.rows, examples.targets), preprocessing, model._settings()
    )
    assert trained.history[0]["loss"] != start.history[0]["loss"]
    batch = trained.data.task.examples("train")
    assert np.allclose(np.sort(batch.weights.numpy()), weights)


def test_missing_numbers() -> None:
    x, y, _ = waves(40)
    gaps = x.copy()
    gaps[::3, 5:9] = np.nan
    with pytest.raises(
        ThreefoldError, match=r'contains NaN\. Fill the gaps, or say missing="carry'
    ):
        SequenceClassifier(**SMALL, steps=5).fit(gaps, y)
    with pytest.raises(ThreefoldError, match=r"X\[0\], element 3, .*10,000 deviations"):
        SequenceClassifier(**SMALL, steps=5).fit(np.where(np.arange(30) == 3, 1e30, x), y)
    for missing in ("carry", "mask"):
        model = SequenceClassifier(**SMALL, steps=60, missing=missing).fit(gaps, y)
        assert model.score(gaps, y) > 0.8
        assert np.isfinite(model.predict_proba(x)).all()
    with pytest.raises(ThreefoldError, match="missing is 'zero'"):
        SequenceClassifier(**SMALL, missing="zero").fit(x, y)
    with pytest.raises(ValueError, match="infinity"):
        SequenceClassifier(**SMALL, missing="carry").fit(np.where(np.isnan(gaps), np.inf, x), y)


def test_what_does_not_fit_is_refused() -> None:
    x, y, _ = waves(20)
    with pytest.raises(ThreefoldError, match="one class only, 'fast'"):
        SequenceClassifier(**SMALL).fit(x, ["fast"] * 20)
    model = SequenceClassifier(**SMALL, steps=2).fit(x, y)
    with pytest.raises(ValueError, match="X has 29 features, but SequenceClassifier is expecting"):
        model.predict(x[:, 1:])
    with pytest.raises(ThreefoldError, match="did you mean 'gru'"):
        SequenceClassifier("grru").fit(x, y)
    with pytest.raises(ThreefoldError, match="time is '9'"):
        SequenceClassifier(time="9").fit(x, y)
    with pytest.raises(ThreefoldError, match=r"columns that are not numbers: label \(could not"):
        model.fit(pd.DataFrame(x).rename(columns=str).assign(label=y), y)
    with pytest.raises(ThreefoldError, match=r"y\[3\] is missing"):
        model.fit(x, np.where(np.arange(20) == 3, None, y))
    with pytest.raises(ThreefoldError, match="20 sequences and 19 labels"):
        SequenceClassifier(**SMALL).fit(x, y[1:])


def test_time_limit() -> None:
    x, y, _ = waves(20)
    model = SequenceClassifier(**SMALL, time="0.5s").fit(x, y)
    assert len(model.history_) > 1


def test_validation_keeps_the_best_weights() -> None:
    x, y, _ = waves(60)
    model = SequenceClassifier(**SMALL, steps=100, validation_fraction=0.3).fit(x, y)
    losses = [entry["valid_loss"] for entry in model.history_ if "valid_loss" in entry]
    assert len(losses) == 20
    _, held = model._hold_out(
        TrainingExamples(list(x[..., None]), (y == "slow").astype(int)), 0.3, 0
    )
    likely = model._answers(held.rows)[np.arange(len(held)), held.targets]
    assert -np.log(likely).mean() == pytest.approx(min(losses), rel=1e-4)


def test_partial_fit_goes_on() -> None:
    x, y, rate = waves(120)
    model = SequenceClassifier(**SMALL)
    for _ in range(12):
        for part in (slice(0, 60), slice(60, 120)):
            model.partial_fit(x[part], y[part], classes=["fast", "slow"])
    assert model.score(x, y) > 0.8 and len(model.history_) == 12 * 2 * 2
    with pytest.raises(ThreefoldError, match="y contains 'medium', but the classes are"):
        model.partial_fit(x[:1], ["medium"])
    regressor = SequenceRegressor(**SMALL)
    scores = [regressor.partial_fit(x, rate).score(x, rate) for _ in range(15)]
    assert scores[-1] > scores[0] + 0.2
    with pytest.raises(ThreefoldError, match="partial_fit trains one model"):
        SequenceClassifier("auto").partial_fit(x, y)


def test_race_keeps_the_winner_and_says_so() -> None:
    x, y, rate = waves(80)
    new, truth, _ = waves(60, 1)
    model = SequenceClassifier("gru,min_gru", **SMALL, steps=40).fit(x, y)
    names = [row["name"] for row in model.race_]
    simple = {"majority", "MiniRocket", "time warping", "echo state network"}
    assert set(names) == simple | {"gru", "min_gru"}
    scores = [row["score"] for row in model.race_]
    assert scores == sorted(scores, reverse=True) and model.best_ == names[0]
    assert model.score(new, truth) > 0.8 and model.best_ in model.verdict_
    weak = SequenceClassifier("rnn,lstm", **{**SMALL, "learning_rate": 0.0}, steps=1).fit(x, y)
    assert weak.verdict_.startswith(f"No sequence model beats {weak.best_} here")
    assert weak.best_ in simple and weak.score(new, truth) > 0.8
    again = pickle.loads(pickle.dumps(weak))
    assert np.array_equal(again.predict_proba(new), weak.predict_proba(new))
    numbers = SequenceRegressor("rnn,lstm", **{**SMALL, "learning_rate": 0.0}, steps=1)
    assert numbers.fit(x, 100 * rate).score(x, 100 * rate) > 0.8 and numbers.best_ in simple


def test_a_race_refuses_names_and_tells_who_is_left_out() -> None:
    x, y, _ = waves(40)
    for kind in (SequenceClassifier, SequenceRegressor):
        with pytest.raises(ThreefoldError, match="unknown mixer 'gruu'; did you mean 'gru'"):
            kind("lstm,gruu", **SMALL, steps=1).fit(x, np.arange(40) % 2)
        with pytest.raises(ThreefoldError, match="names 'gru' twice"):
            kind("gru,gru", **SMALL, steps=1).fit(x, np.arange(40) % 2)
    with pytest.warns(UserWarning, match="gru was left out of the race: training stopped"):
        model = SequenceClassifier("gru,rnn", **{**SMALL, "learning_rate": 1e30}, steps=5).fit(x, y)
    assert "gru" not in [row["name"] for row in model.race_]


def test_every_class_has_its_share_of_what_is_held_out() -> None:
    assert _shares([40, 20], 0.25) == [10, 5]
    assert _shares([2] * 12, 0.25) == [1] * 6 + [0] * 6
    assert _shares([1, 1, 5], 0.25) == [0, 0, 2] and _shares([1, 3], 0.01) == [0, 1]
    assert _shares([3, 3], 0.99) == [2, 2] and _shares([1, 1], 0.5) == [0, 0]


SIMPLE = ("majority", "MiniRocket", "time warping", "echo state network")


@pytest.mark.parametrize("name", [*SIMPLE, "logistic regression"])
def test_a_simple_winner_is_a_folder_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threefold

    won = RaceEntry(name, "baseline", 1.0, 0.1, 0.0)
    monkeypatch.setattr("threefold.estimators.neural.run_race", lambda *_: [won])
    x, y, _ = waves(40)
    inputs, labels = texts(40) if name == "logistic regression" else (x, y)
    kind = TextClassifier if name == "logistic regression" else SequenceClassifier
    model = kind("rnn,lstm").fit(inputs, labels)
    assert model.best_ == name and model.score(inputs, labels) > (0.4 if name == SIMPLE[0] else 0.9)
    model.model_.save(tmp_path / "model")
    answers = threefold.predict(tmp_path / "model", inputs)
    assert [answer["label"] for answer in answers] == model.predict(inputs).tolist()
    shares = [list(answer["probabilities"].values()) for answer in answers]
    assert np.allclose(np.sort(shares), np.sort(model.predict_proba(inputs)), atol=1e-5)


@pytest.mark.parametrize("name", ["mean", *SIMPLE[1:]])
def test_a_simple_winner_of_numbers_is_a_folder_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threefold

    won = RaceEntry(name, "baseline", -0.25, 0.25, 0.0)
    monkeypatch.setattr("threefold.estimators.neural.run_race", lambda *_: [won])
    x, _, rate = waves(40)
    model = SequenceRegressor("rnn,lstm").fit(x, 100 * rate)
    assert "in units of y" in model.verdict_
    model.model_.save(tmp_path / "model")
    answers = threefold.predict(tmp_path / "model", x)
    assert np.allclose([answer["value"] for answer in answers], model.predict(x), rtol=1e-4)


def texts(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(seed)
    words = {"+": ["good", "great", "fine"], "-": ["bad", "poor", "awful"]}
    filler = ["the", "film", "was", "a", "plot", "and", "actor"]
    labels = random.choice(["+", "-"], count)
    rows = [[*random.choice(filler, 6), random.choice(words[label])] for label in labels]
    return [" ".join(random.permutation(row)) for row in rows], labels.tolist()


def test_texts() -> None:
    x, y = texts(120)
    new, truth = texts(60, 1)
    model = TextClassifier(width=32, learning_rate=1e-2, steps=60).fit(x, y)
    assert model.score(new, truth) > 0.9
    assert model.predict(["good film", ""]).tolist()[0] == "+"  # an empty text is a text
    columns = (pd.Series(new), pd.DataFrame({"text": new}), polars.Series(new), np.array(new))
    for column in columns:
        assert np.array_equal(model.predict_proba(column), model.predict_proba(new))
    search = GridSearchCV(TextClassifier(**SMALL, steps=3), {"tokenizer": ["byte", "word"]}, cv=2)
    assert search.fit(x, y).best_params_["tokenizer"] in ("byte", "word")
    raced = TextClassifier("gru", **SMALL, steps=3).set_params(mixers="gru,rnn").fit(x, y)
    assert raced.best_ == "logistic regression" and raced.score(new, truth) > 0.9
    again = pickle.loads(pickle.dumps(raced))
    assert np.array_equal(again.predict_proba(new), raced.predict_proba(new))
    for wrong, message in (("one text", "a list of texts"), ([1.0], r"X\[0\] is 1.0, a float")):
        with pytest.raises(ThreefoldError, match=message):
            model.predict(wrong)
    for check in (
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_parameters_default_constructible,
    ):
        check("TextClassifier", TextClassifier())


def test_pickle_is_arrays_and_json_and_works_in_another_process(tmp_path: Path) -> None:
    x, y, _ = waves(30)
    model = SequenceClassifier(**SMALL, steps=10).fit(x, y)
    state = model.__getstate__()
    for name in PACKED:
        assert all(isinstance(part, (str, np.ndarray)) for part in state[name].values())
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    code = (
        "import pickle, sys, numpy as np; from pathlib import Path; folder = Path(sys.argv[1]); "
        "model = pickle.loads((folder / 'model.pickle').read_bytes()); "
        "np.save(folder / 'p.npy', model.predict_proba(np.load(folder / 'x.npy')))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=600)
    assert np.allclose(np.load(tmp_path / "p.npy"), model.predict_proba(x), atol=1e-12)
    assert b"torch" not in pickle.dumps({name: state[name] for name in PACKED}).replace(
        b"torch.float64", b""
    )


def test_a_refused_fit_changes_nothing() -> None:
    x, y, _ = waves(20)
    for model in (SequenceClassifier(**SMALL, steps=2), RocketClassifier(168)):
        before = model.fit(x, y).predict(x)
        with pytest.raises(ThreefoldError, match="one class only"):
            model.fit(x, ["only"] * 20)
        assert np.array_equal(model.predict(x), before)


def test_gaps_in_lists_say_what_to_do() -> None:
    x, y, _ = waves(20)
    rows = [row[: 10 + n] for n, row in enumerate(x)]
    rows[3] = rows[3].copy()
    rows[3][2] = np.nan
    model = SequenceClassifier(**SMALL, steps=2)
    with pytest.raises(
        ThreefoldError, match=r"X\[3\] contains NaN. Fill the gaps, or say missing="
    ):
        model.fit(rows, y)
    assert np.isfinite(model.set_params(missing="mask").fit(rows, y).predict_proba(rows)).all()
    with pytest.raises(ThreefoldError, match="RocketClassifier reads finite numbers only"):
        RocketClassifier(168).fit(rows, y)


def test_the_model_is_a_folder_for_everything_else(tmp_path: Path) -> None:
    import threefold

    x, y, _ = waves(30)
    model = SequenceClassifier(**SMALL, steps=10).fit(x, y)
    model.model_.save(tmp_path / "model")
    answers = threefold.predict(tmp_path / "model", x)
    assert [answer["label"] for answer in answers] == model.predict(x).tolist()


@pytest.mark.parametrize(
    "module", ["sequence_estimators", "sequence_forecaster", "text_classifier"]
)
def test_examples_of_the_docstrings(module: str) -> None:
    results = doctest.testmod(import_module(f"threefold.estimators.{module}"))
    assert results.attempted > 0 and results.failed == 0


def test_defaults_are_chosen_on_training_parts() -> None:
    read: list[str] = []
    study = DefaultsStudy(("chords",), steps=2, width=16, candidates=((1e-3, 0.0), (1e-2, 0.1)))
    small, rows = replace(task("chords"), sizes=(80, 8, 8)), Task.rows

    def watched(self: Any, split: str, numbers: Any) -> Any:
        read.extend([split] if self is small else [])
        return rows(self, split, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threefold.lab.studies.estimator_defaults.task", lambda _: small)
        patch.setattr(small.__class__, "rows", watched)
        lines = list(run_study(study))
    assert set(read) == {"train"} and len(lines) == 3
    assert lines[0].startswith("chords: 80 training examples; accuracies, in %: ")
    assert " percentage points from the mean of all" in lines[1]
    with pytest.raises(ThreefoldError, match="expected series with classes"):
        list(run_study(DefaultsStudy(("adding",))))
