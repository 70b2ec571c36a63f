"""The smallest tasks that classifiers, taggers, forecasters and masked models must solve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import Forecaster, Spec
from threefold.data.loaders import Batch, Examples, Windows
from threefold.data.masking import MaskedBatches
from threefold.models.forecaster import future_values, gaussian_loss, pinball_loss
from threefold.models.presets import bert
from threefold.runtime.forecasting import rollout
from threefold.training import TrainingSettings, evaluate, train


def learnt(spec: Spec, inputs: Tensor, targets: Tensor, steps: int, rate: float = 5e-3) -> float:
    """The accuracy on the last fifth after training on the rest."""
    torch.manual_seed(0)
    model = threefold.build(spec)
    count = len(inputs) * 4 // 5
    settings = TrainingSettings(steps=steps, learning_rate=rate, weight_decay=0.0)
    train(model, Examples(inputs[:count], targets[:count], 32), settings)
    rest = Batch(inputs[count:], targets[count:], torch.ones(len(inputs) - count).bool())
    return evaluate(model, [rest]).metric


def rows(*shape: int, below: int = 8) -> Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
def test_classifier_remembers_the_first_token(pooling: str) -> None:
    x = rows(1000, 12)
    spec = Spec("classifier", 32, 1, "gru", 8, options={"classes": 8, "pooling": pooling})
    assert learnt(spec, x, x[:, 0], 150, 1e-2) > 0.9


def test_global_elements_of_longformer_carry_what_a_window_cannot() -> None:
    """Is there a 7 anywhere?  The last of 24 elements is asked, which two windows of 3 reach."""
    x, found = rows(1000, 24, below=7), rows(1000, below=2)
    places = rows(1000, below=20) + 1
    x[found.bool(), places[found.bool()]] = 7
    accuracies = {}
    for name, options in (("longformer", {}), ("local_attention", {"causal": False})):
        mixer = (name, {"window": 2, "heads": 2, **options})
        spec = Spec("classifier", 32, 2, (mixer,), 8, options={"classes": 2, "pooling": "last"})
        accuracies[name] = learnt(spec, x, found, 150, 1e-2)
    assert accuracies["longformer"] > 0.95 > 0.65 > accuracies["local_attention"], accuracies


def test_pairs_are_compared() -> None:
    """Whether two sequences begin with the same token."""
    x = rows(2000, 2, 6, below=4)
    same = torch.arange(2000) % 2 == 0
    x[same, 1, 0] = x[same, 0, 0]
    labels = (x[:, 0, 0] == x[:, 1, 0]).long()
    spec = Spec("classifier", 32, 1, "gru", 4, options={"pair": True, "pooling": "first"})
    assert learnt(spec, x, labels, 250, 1e-2) > 0.9


def test_tagger_needs_both_directions_for_what_comes_next() -> None:
    x = rows(600, 10)
    targets = x.roll(-1, 1)
    targets[:, -1] = 0
    found = {}
    for both in (False, True):
        options = {"classes": 8, "bidirectional": both}
        found[both] = learnt(
            Spec("tagger", 32, 1, "gru", 8, options=options), x, targets, 120, 1e-2
        )
    assert found[True] > 0.95
    assert found[False] < 0.4


def waves(count: int, length: int, seed: int) -> Tensor:
    """Sine waves of any phase, period, size and level, [count, length, 1]."""
    random = torch.Generator().manual_seed(seed)
    phase, period, size, level = torch.rand(4, count, 1, 1, generator=random)
    time = torch.arange(length).view(1, -1, 1)
    angle = 2 * math.pi * (phase + time / (8 + 8 * period))
    return 10 ** (4 * size - 2) * (angle.sin() + 3 * level)


def forecaster(**options: Any) -> Forecaster:
    torch.manual_seed(0)
    spec = Spec("forecaster", 32, 1, "gru", options={"horizon": 4, **options})
    model = threefold.build(spec)
    assert isinstance(model, Forecaster)
    optimiser = torch.optim.Adam(model.parameters(), 4e-3)
    for step in range(150):
        x = waves(32, 48, step)
        x = x / x.abs().mean(1, keepdim=True)  # so that no series drowns the others
        optimiser.zero_grad()
        model.loss(model(x)[0], x).backward()
        optimiser.step()
    return model.eval()


@pytest.mark.parametrize("head", ["quantile", "gaussian"])
def test_forecaster_beats_the_naive_forecast_and_runs_freely(head: str) -> None:
    model = forecaster(head=head)
    x = waves(64, 48, 10**6)
    target, counts = future_values(x, 4)
    with torch.no_grad():
        forecast, _ = model(x)
    scale = x.abs().mean(1, keepdim=True).unsqueeze(-1)
    late = counts.clone()
    late[:, :20] = False  # a period has to be seen first
    error = ((model.point_forecast(forecast) - target) / scale).abs()[late].mean()
    naive = ((x.unsqueeze(2) - target) / scale).abs()[late].mean()
    assert error < 0.35 * naive
    if head == "quantile":
        inside = (forecast[..., 0] <= target) & (target <= forecast[..., 2])
        assert 0.6 < float(inside[late].float().mean()) <= 1.0
        assert bool((forecast.diff(dim=-1) >= 0).all())
    made, _ = rollout(model, x[:, :36], 12)
    again, after = rollout(model, x[:, :36], 8)
    assert_close(made[:, :8], again)
    more, _ = model.step(made[:, 8], after)
    assert_close(model.point_forecast(more[:, 0]), made[:, 9])
    drift = ((made - x[:, 36:]) / scale[:, 0]).abs()[:, :6].mean()
    assert drift < naive


def test_forecasts_grow_with_the_series() -> None:
    torch.manual_seed(0)
    for scaling in ("mean", "standard"):
        options = {"scaling": scaling, "horizon": 2}
        model: Any = threefold.build(Spec("forecaster", 16, 1, "gla", options=options)).double()
        x = waves(3, 20, 0).double()
        assert_close(model(1000 * x)[0], 1000 * model(x)[0])
        assert bool(model(torch.zeros_like(x))[0].isfinite().all())


def test_losses_are_their_equations() -> None:
    target = torch.tensor([1.0, 4.0])
    forecast = torch.tensor([[0.0, 2.0], [5.0, 3.0]])
    expected = torch.tensor([(0.1 * 1 + 0.5 * 1) / 2, (0.9 * 1 + 0.5 * 1) / 2])
    assert_close(pinball_loss(forecast, target, (0.1, 0.5)), expected)
    normal = torch.distributions.Normal(forecast[:, 0], forecast[:, 1])
    assert_close(gaussian_loss(*forecast.unbind(-1), target), -normal.log_prob(target))
    series = torch.arange(4.0).view(1, 4, 1)
    values, counts = future_values(series, 2)
    assert values[0, :, :, 0].tolist() == [[1, 2], [2, 3], [3, 0], [0, 0]]
    assert counts[0, :, :, 0].tolist() == [[True] * 2, [True] * 2, [True, False], [False] * 2]
    _, counts = future_values(series, 2, torch.tensor([[False, True, True, False]]))
    assert counts[0, :, :, 0].tolist() == [[False] * 2, [True, False], [False] * 2, [False] * 2]


def test_masked_model_falls_below_the_unigram_entropy() -> None:
    """A text that repeats: every hidden token can be guessed from its neighbours, none by rate."""
    torch.manual_seed(0)
    text = torch.arange(4000).remainder(12).numpy()
    small = bert(width=32, depth=1, heads=2, vocabulary=13, max_length=16, segments=0, dropout=0.0)
    model = threefold.build(small)
    batches = MaskedBatches(Windows(text, 32, 16), 12, 12)
    settings = TrainingSettings(steps=250, learning_rate=5e-3, weight_decay=0.0)
    train(model, batches, settings)
    scores = evaluate(model, [batches(10**6)])
    assert scores.loss < 0.5 * math.log(12)


def test_xlnet_learns_words_and_fills_gaps_in_order(tmp_path: Path) -> None:
    """From a file, through saving and loading, with memory; bad texts get one message each."""
    words = ["stone", "river", "cloud", "apple"]
    numbers = torch.randint(4, (1200,), generator=torch.Generator().manual_seed(0)).tolist()
    text = tmp_path / "words.txt"
    text.write_text(" ".join(words[number] for number in numbers))
    settings = {"data.length": 24, "data.tokenizer": "character", "model.width": 48}
    settings |= {"training.learning_rate": 5e-3, "training.carry_state": True}
    mixers = [("transformer_xl", {"memory": 24})]
    options = {"kind": "xlnet", "mixers": mixers, "size": "tiny", "steps": 350}
    trained = threefold.train(text, folder=tmp_path / "run", settings=settings, **options)
    assert trained.test is not None and trained.data is not None
    assert trained.test.metric < 0.8 < trained.data.task.chance / 3
    scores = threefold.evaluate(tmp_path / "run", split="test")
    assert scores["bits"] == pytest.approx(trained.test.metric)
    gaps = ["stone r[MASK][MASK]er cloud", "apple clo[MASK]d stone river"]
    answers = threefold.predict(tmp_path / "run", gaps)
    assert [answer["text"] for answer in answers] == [
        "stone river cloud",
        "apple cloud stone river",
    ]
    odd = threefold.predict(tmp_path / "run", ["stone rivvr cloud"])[0]["bits"]
    assert odd > 2 * answers[0]["bits"]
    for wrong, message in (("", "is empty"), ("stöne", "ö")):
        with pytest.raises(threefold.ThreefoldError, match=message):
            threefold.predict(tmp_path / "run", [wrong])
    text.write_text("st")
    with pytest.raises(threefold.ThreefoldError, match="a window of 1 tokens"):
        threefold.evaluate(tmp_path / "run", text)
