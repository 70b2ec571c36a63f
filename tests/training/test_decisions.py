"""Thresholds of labels: given or chosen on validation, saved, and applied by every answer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threefold
from tests.surfaces.test_train_commands import command
from threefold.data.preprocessing.decisions import decide
from threefold.data.preprocessing.text import Labels
from threefold.errors import ThreefoldError
from threefold.training.decisions import best_thresholds
from threefold.training.label_scores import label_scores

SMALL = {"data.batch_size": 8, "model.width": 16, "model.depth": 1, "data.tokenizer": "word"}


def table(path: Path, count: int = 120) -> Path:
    """Mails, of which a quarter are spam; half of those with an offer are."""
    draw = random.Random(0)
    rows = []
    for number in range(count):
        spam = number % 4 == 0
        offer = draw.random() < (0.9 if spam else 0.3)
        words = [draw.choice(("the", "mail", "from", "you")) for _ in range(4)]
        rows.append(
            f"{' '.join([*words, 'offer'] if offer else words)},{'spam' if spam else 'ham'}"
        )
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return path


def test_a_label_is_answered_from_its_threshold_on() -> None:
    probabilities = np.array([[0.7, 0.2, 0.1], [0.85, 0.1, 0.05], [0.2, 0.3, 0.5]])
    assert decide(probabilities, ()).tolist() == [0, 0, 2]
    assert decide(probabilities, (None, 0.2, None)).tolist() == [1, 0, 1]
    assert decide(probabilities, (None, 0.2, 0.4)).tolist() == [1, 0, 1]  # 0.3 / 0.2 > 0.5 / 0.4
    assert decide(probabilities, (0.95, None, None)).tolist() == [1, 1, 2]  # too sure of none
    assert decide(probabilities, (0.9, 0.9, 0.9)).tolist() == [0, 0, 2]  # none is reached
    two = np.array([[0.75, 0.25], [0.85, 0.15]])
    assert decide(two, (None, 0.2)).tolist() == decide(two, (0.8, 0.2)).tolist() == [1, 0]


def test_the_best_thresholds_are_found() -> None:
    draw = np.random.default_rng(0)
    targets = (draw.random(300) < 0.1).astype(np.int64)
    score = np.clip(0.15 + 0.2 * targets + 0.08 * draw.normal(size=300), 0.01, 0.99)
    probabilities = np.stack([1 - score, score], 1)

    def scores(answers: Any) -> dict[str, float]:
        matrix = np.zeros((2, 2), np.int64)
        np.add.at(matrix, (targets, answers), 1)
        return label_scores(matrix)

    for metric in ("accuracy", "balanced_accuracy", "macro_f1"):
        thresholds = best_thresholds(probabilities, targets, metric)
        found = scores(decide(probabilities, thresholds))[metric]
        grid = [scores((score >= t).astype(int))[metric] for t in np.unique(score)]
        assert found == max(grid) > scores(probabilities.argmax(1))[metric]
    three = np.array([[0.5, 0.3, 0.2], [0.5, 0.2, 0.3], [0.6, 0.25, 0.15]] * 4)
    wanted = np.array([1, 2, 0] * 4)
    assert decide(three, best_thresholds(three, wanted, "accuracy")).tolist() == wanted.tolist()


def test_every_answer_follows_the_thresholds(tmp_path: Path) -> None:
    path = table(tmp_path / "mails.csv")
    settings = {**SMALL, "training.thresholds": {"spam": 0.001}}
    run = threefold.train(path, mixers="min_gru", steps=2, folder=tmp_path / "run",
                          settings=settings)  # fmt: skip
    plain = threefold.train(path, mixers="min_gru", steps=2, settings=SMALL)
    texts = ["the mail", "the mail offer"]
    usual = threefold.predict(plain.model, texts)
    assert [answer["label"] for answer in usual] == ["ham", "ham"]
    for model in (run.model, tmp_path / "run"):
        answers = threefold.predict(model, texts)
        assert [answer["label"] for answer in answers] == ["spam", "spam"]
        for answer, other in zip(answers, usual, strict=True):
            assert answer["probabilities"] == other["probabilities"]
            assert answer["probability"] == answer["probabilities"]["spam"] < 0.5
    measured = threefold.evaluate(tmp_path / "run")
    assert measured["classes"][0]["answered"] == 0
    assert measured["accuracy"] == run.test.metric == run.summary["test"]["metric"] != 1.0
    assert run.summary["decision"]["thresholds"] == {"spam": 0.001}
    (tmp_path / "live.txt").write_text("the mail offer", encoding="utf-8")
    streamed = [row for part in threefold.stream(run.model, tmp_path / "live.txt")
                for row in part.rows()]  # fmt: skip
    assert {row["label"] for row in streamed} == {"spam"}
    assert all(0 < row["probability"] < 0.5 for row in streamed)


def test_validation_chooses_them_and_the_end_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table(Path("mails.csv"), 400)
    rows = [f"--set={key}={value}" for key, value in SMALL.items()]
    arguments = ("train", "mails.csv", "--steps", "60", "--mixers", "min_gru", "--folder", "run")
    assert command(*arguments, *rows, "--set", "training.decide=macro_f1") == 0
    assert "decision" in (out := capsys.readouterr().out) and "validation macro_f1 0." in out
    decision = json.loads(Path("run/summary.json").read_text())["decision"]
    assert decision["valid"] >= decision["valid_without"]
    assert sum(decision["thresholds"].values()) == pytest.approx(1)
    assert threefold.load("run").preprocessing.thresholds == decision["thresholds"]
    # Other weights, other answers: a model that starts from it has no thresholds.
    again = threefold.train("mails.csv", from_model="run", steps=1)
    assert again.model.preprocessing.thresholds == {}
    assert command("train", "mails.csv", "--from", "run", "--steps", "1", "--dry-run") == 0
    assert "nothing is new; its thresholds are not kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"thresholds": {"spma": 0.2}}, "unknown label 'spma'; expected some of 'ham', 'spam'"),
        ({"thresholds": {"spam": 1.5}}, "spam is 1.5, expected less than 1"),
        ({"thresholds": {"spam": 0.2}, "decide": "accuracy"}, "leave one of them out"),
        ({"decide": "recall"}, "decide is 'recall'"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "mails.csv")
    given = {f"training.{name}": value for name, value in settings.items()}
    with pytest.raises(ThreefoldError, match=message):
        threefold.train(path, steps=1, folder=tmp_path / "run", settings={**SMALL, **given})
    assert not (tmp_path / "run").exists()


def test_thresholds_are_for_classifiers_with_named_labels() -> None:
    with pytest.raises(ThreefoldError, match=r"only classifier, .* models use it"):
        threefold.train(["a text " * 40] * 4, steps=1, settings={"training.decide": "accuracy"})
    with pytest.raises(ThreefoldError, match="no labels with names"):
        threefold.train("parity", steps=1, settings={"training.decide": "accuracy"})
    with pytest.raises(ThreefoldError, match="2 thresholds of 3 labels"):
        Labels(("a", "b", "c"), (0.1, 0.2))
    with pytest.raises(ThreefoldError, match="a threshold is 'x'"):
        Labels(("a", "b"), (None, "x"))  # type: ignore[arg-type]
