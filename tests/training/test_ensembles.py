"""Ensembles of seeds: one folder, one answer, and the mean of what the members say."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.test_train_commands import command
from tests.training.runs import die_after
from tests.training.test_fine_tuning import sentence, weights, write_reviews
from threefold.errors import ThreefoldError
from threefold.models.ensemble import Ensemble, ensemble_of, member_count

SMALL = {"data.batch_size": 8, "model.width": 16, "model.depth": 1, "training.save_every": 2}
OPTIONS: Any = {"mixers": "min_gru", "steps": 3, "ensemble": 3, "settings": SMALL}


def test_an_ensemble_answers_with_the_mean_probability(tmp_path: Path) -> None:
    trained = threefold.train(write_reviews(tmp_path / "a.csv"), folder=tmp_path / "run", **OPTIONS)
    loaded, texts = threefold.load(tmp_path / "run"), [sentence(True, 1), sentence(False, 2)]
    assert member_count(loaded) == 3 and isinstance(loaded, threefold.Classifier)
    members = [threefold.load(tmp_path / "run" / "members" / str(n)) for n in (1, 2, 3)]
    apart = [member.predict(texts) for member in members]
    assert apart[0][0]["probability"] != apart[1][0]["probability"]
    for number, answer in enumerate(loaded.predict(texts)):
        for label, probability in answer["probabilities"].items():
            mean = sum(one[number]["probabilities"][label] for one in apart) / 3
            assert probability == pytest.approx(mean, rel=1e-5)
    assert loaded.predict(texts) == trained.model.predict(texts)
    assert trained.test is not None
    assert threefold.evaluate(tmp_path / "run")["loss"] == pytest.approx(trained.test.loss)
    narrow = threefold.quantize(loaded, "int8")
    assert narrow.predict(texts)[0]["probability"] == pytest.approx(
        loaded.predict(texts)[0]["probability"], abs=0.02
    )


def test_steps_of_an_ensemble_equal_its_whole(tmp_path: Path) -> None:
    spec = threefold.Spec("tagger", width=16, depth=1, mixers="gla", vocabulary=9)
    model = ensemble_of([threefold.build(spec) for _ in range(2)]).eval()
    tokens = torch.randint(9, (2, 6))
    with torch.no_grad():
        whole, _ = model(tokens)
        state: Any = model.empty_state(2)
        model.check_state(state, 2)
        steps = []
        for t in range(6):
            output, state = model.step(tokens[:, t], state)
            steps.append(output)
    torch.testing.assert_close(torch.stack(steps, 1), whole, rtol=1e-5, atol=1e-5)
    assert whole.exp().sum(-1) == pytest.approx(1.0)
    with pytest.raises(ThreefoldError, match=r"expected the states of 2 members"):
        model.check_state({}, 2)


def test_a_forecaster_averages_quantiles(tmp_path: Path) -> None:
    rows = [f"{math.sin(i / 3):.4f}" for i in range(240)]
    (tmp_path / "a.csv").write_text("\n".join(["flow", *rows]) + "\n", encoding="utf-8")
    threefold.train(tmp_path / "a.csv", folder=tmp_path / "run", target="flow", **OPTIONS)
    members = [threefold.load(tmp_path / "run" / "members" / str(n)) for n in (1, 2, 3)]
    whole = threefold.load(tmp_path / "run").predict(tmp_path / "a.csv", horizon=2)
    apart = [member.predict(tmp_path / "a.csv", horizon=2) for member in members]
    for column in ("flow", "flow_q0.1", "flow_q0.9"):
        mean = sum(forecast[0][column] for forecast in apart) / 3
        assert whole[0][column] == pytest.approx(mean, rel=1e-4, abs=1e-5)
    assert command("stream", str(tmp_path / "run"), str(tmp_path / "a.csv"), "--output",
                   str(tmp_path / "out.csv")) == 0  # fmt: skip


def test_an_ensemble_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_reviews(tmp_path / "a.csv")
    whole = threefold.train(path, folder=tmp_path / "whole", **OPTIONS)
    die_after(5, monkeypatch)  # in the second member
    with pytest.raises(SystemExit):
        threefold.train(path, folder=tmp_path / "part", **OPTIONS)
    monkeypatch.undo()
    assert command("resume", str(tmp_path / "part")) == 0
    resumed = weights(threefold.load(tmp_path / "part"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in weights(whole.model).items())


def test_a_damaged_member_and_kinds_without_a_mean_are_refused(tmp_path: Path) -> None:
    trained = threefold.train(write_reviews(tmp_path / "a.csv"), folder=tmp_path / "run", **OPTIONS)
    assert isinstance(trained.model, Ensemble)
    with pytest.raises(ThreefoldError, match=r"an ensemble of 3 models; start from one of them"):
        threefold.train(tmp_path / "a.csv", from_model=tmp_path / "run", steps=1)
    file = tmp_path / "run" / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1  # in a weight of the last member
    file.write_bytes(bytes(content))
    with pytest.raises(ThreefoldError, match=r"damaged, or not the weights that config.json"):
        threefold.load(tmp_path / "run")
    (tmp_path / "n.txt").write_text("so much depends " * 60, encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"a language model writes texts.* no mean"):
        threefold.train(tmp_path / "n.txt", **OPTIONS)
