"""The mathematics of evaluations against scikit-learn and against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from tests.tolerances import TOLERANCES
from threefold.data.time_stamps import TimeAxis
from threefold.models.calibration import interval_coverages
from threefold.tasks.user_data.seasons import Stretches, naive_errors, season_of
from threefold.training.evaluations.classification import ClassificationCounts
from threefold.training.evaluations.forecasts import (
    forecast_errors,
    quantile_errors,
)
from threefold.training.evaluations.regression import (
    answers_by_size,
    mean_baseline,
    regression_errors,
)
from threefold.training.evaluations.translation import text_scores

EXACT = TOLERANCES[torch.float64, "output"]
NAMES = ("cat", "dog", "eel", "fly")


def counted(logits: np.ndarray, labels: np.ndarray, parts: int = 1) -> ClassificationCounts:
    counts = ClassificationCounts(NAMES[: logits.shape[1]])
    numbers = np.arange(len(labels))
    for part in np.array_split(numbers, parts):
        counts.add(logits[part], labels[part], part)
    return counts


def test_classification_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(200, 4))
    logits[:, 3] -= 9  # the last class is never answered
    labels = random.integers(0, 3, 200)  # and it never occurs
    logits[np.arange(200), labels] += 1
    values, answers = counted(logits, labels).values(), logits.argmax(1)
    precision, recall, f1, support = metrics.precision_recall_fscore_support(
        labels, answers, labels=range(3)
    )
    assert values["accuracy"] == pytest.approx(metrics.accuracy_score(labels, answers), rel=EXACT)
    balanced = metrics.balanced_accuracy_score(labels, answers)
    assert values["balanced_accuracy"] == pytest.approx(balanced, rel=EXACT)
    macro = metrics.f1_score(labels, answers, average="macro")
    assert values["macro_f1"] == pytest.approx(macro, rel=EXACT)
    matrix = metrics.confusion_matrix(labels, answers, labels=range(4))
    assert values["confusion"] == matrix.tolist()
    for i, row in enumerate(values["classes"][:3]):
        expected = (precision[i], recall[i], f1[i], support[i])
        got = [row[name] for name in ("precision", "recall", "f1", "support")]
        assert got == pytest.approx(expected, rel=EXACT)
    absent = values["classes"][3]
    assert (absent["precision"], absent["recall"], absent["f1"]) == (None, None, None)
    commonest = np.bincount(labels).argmax()
    share = np.bincount(labels).max() / 200
    assert values["baseline"] == {"name": f"always {NAMES[commonest]}", "accuracy": share}
    parts = counted(logits, labels, parts=7).values()
    assert parts["classes"] == values["classes"] and parts["confusion"] == values["confusion"]
    assert parts["calibration_error"] == pytest.approx(values["calibration_error"], rel=EXACT)


def test_calibration_of_a_known_case() -> None:
    # Ten answers with a confidence of 0.75, of which six are right: an error of 0.15 for them.
    # Ten with 0.95, all right: 0.05.  Both halves count alike.
    def logit(confidence: float) -> list[float]:
        return [np.log(confidence), np.log(1 - confidence)]

    logits = np.array([logit(0.75)] * 10 + [logit(0.95)] * 10)
    labels = np.array([0] * 6 + [1] * 4 + [0] * 10)
    counts = counted(logits, labels)
    values = counts.values()
    assert values["calibration_error"] == pytest.approx(0.1, rel=EXACT)
    bins = {line["from"]: line for line in values["calibration"]}
    assert set(bins) == {0.7, 0.9}
    assert bins[0.7]["n"] == 10 and bins[0.7]["accuracy"] == 0.6
    assert bins[0.7]["confidence"] == pytest.approx(0.75, rel=EXACT)
    assert [wrong.example for wrong in counts.worst] == [6, 7, 8, 9]
    assert {wrong.answer for wrong in counts.worst} == {0}


def test_regression_agrees_with_scikit_learn() -> None:
    random = np.random.default_rng(0)
    targets = random.normal(5, 3, 50)
    answers = targets + random.normal(size=50)
    expected = {
        "mae": metrics.mean_absolute_error(targets, answers),
        "rmse": metrics.root_mean_squared_error(targets, answers),
        "r2": metrics.r2_score(targets, answers),
    }
    assert regression_errors(answers, targets) == pytest.approx(expected, rel=EXACT)
    baseline = mean_baseline(targets, 4.0)
    assert baseline["mae"] == pytest.approx(np.abs(targets - 4).mean(), rel=EXACT)
    assert regression_errors(np.ones(3), np.full(3, 2.0))["r2"] is None


def test_forecast_errors_by_hand() -> None:
    truth = np.array([[1.0, 2.0], [np.nan, -2.0]])
    point = np.array([[2.0, 2.0], [9.0, 2.0]])
    errors = forecast_errors(point, truth, naive_error=0.5)
    assert errors["mae"] == pytest.approx(5 / 3, rel=EXACT)  # 1, 0, 4
    assert errors["rmse"] == pytest.approx((17 / 3) ** 0.5, rel=EXACT)
    assert errors["mase"] == pytest.approx(10 / 3, rel=EXACT)
    assert errors["smape"] == pytest.approx((200 / 3 + 0 + 200) / 3, rel=EXACT)
    assert forecast_errors(np.zeros((1, 1)), np.zeros((1, 1)))["smape"] == 0


def test_quantiles_by_hand() -> None:
    levels = (0.1, 0.5, 0.9)
    quantiles = np.array([[[0.0, 1.0, 2.0]], [[0.0, 1.0, 2.0]]])
    truth = np.array([[1.5], [3.0]])
    errors = quantile_errors(quantiles, levels, truth)
    first = 0.1 * 1.5 + 0.5 * 0.5 + 0.1 * 0.5  # the last is above the truth
    second = 0.1 * 3 + 0.5 * 2 + 0.9 * 1
    assert errors["pinball"] == pytest.approx((first + second) / 6, rel=EXACT)
    assert errors["coverage"] == 0.5
    assert interval_coverages(quantiles, levels, truth) == [
        {"from": 0.1, "to": 0.9, "nominal": 0.8, "actual": 0.5}
    ]


def test_the_naive_error_is_that_of_the_season() -> None:
    values = [np.array([[0.0], [10.0], [2.0], [13.0]]), np.array([[5.0], [np.nan], [6.0]])]
    series = [Stretches(part) for part in values]
    errors = naive_errors(series, (1, 2, 9))
    assert errors["1"] == pytest.approx([(10 + 8 + 11) / 3])
    assert errors["2"] == pytest.approx([(2 + 3 + 1) / 3])
    assert "9" not in errors  # longer than the series
    with_gap = Stretches(values[0], np.array([0, 0, 1, 1]))  # between the second and third row
    assert naive_errors([with_gap], (1, 2)) == {"1": [pytest.approx((10 + 11) / 2)]}


@pytest.mark.parametrize(
    ("step", "more", "season"),
    [
        (3600.0, {}, 24),
        (86_400.0, {}, 7),
        (604_800.0, {}, 52),
        (86_400.0, {"weekdays": True}, 5),
        (0.0, {"months": 1}, 12),
        (0.0, {"months": 12}, 1),
        (5000.0, {}, 1),  # does not divide a day
    ],
)
def test_seasons_follow_from_the_step(step: float, more: dict, season: int) -> None:
    assert season_of(TimeAxis("t", "iso", 0.0, step, **more)) == season
    assert season_of(None) == 1


def test_answers_are_grouped_by_the_size_of_their_targets() -> None:
    targets = np.arange(40.0)[::-1].copy()
    targets[3] = np.nan  # 36
    groups = answers_by_size(2 * np.arange(40.0)[::-1], targets)
    assert [group["n"] for group in groups] == [6, 6, 6, 6, 5, 5, 5]
    assert groups[0]["target"] == 2.5 and groups[0]["answer"] == 5
    assert groups[0]["low"] == 1 and groups[0]["high"] == 9
    assert answers_by_size(np.ones(3), np.ones(3))[0]["n"] == 3


def test_translations_by_sacrebleu() -> None:
    same = ["the cat sat on the mat", "a dog ran over the hill"]
    assert text_scores(same, same) == pytest.approx({"bleu": 100, "bleu_order": 4, "chrf": 100})
    short = ["one two", "two"]  # no sequence of 4 words, of which BLEU would be 0
    assert text_scores(short, short) == pytest.approx({"bleu": 100, "bleu_order": 2, "chrf": 100})
    worse = text_scores(["the cat sat", "nothing alike"], same)
    assert worse is not None and worse["chrf"] < 60
