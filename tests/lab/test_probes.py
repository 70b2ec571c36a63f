"""What a race measures besides scores: each measurement on a case whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from threefold.classical.ngrams import NGrams
from threefold.data.loaders import IGNORE, Batch
from threefold.lab.race.baseline_fits import PLACES
from threefold.lab.race.baselines import run_baselines
from threefold.lab.race.calibration import confidence, count_answers, coverage
from threefold.lab.race.examples import most_surprising, worst_examples
from threefold.lab.race.influence import distances, influence
from threefold.lab.race.probes import (
    MOST_ELEMENTS,
    ProbeSizes,
    Stopwatch,
    held_bytes,
    probe_model,
    probe_sizes,
)
from threefold.lab.race.robustness import channel_deviations, damage_kinds, robustness
from threefold.models.table import build
from threefold.training.config import ModelSettings
from threefold.training.evaluations.classification import ConfidenceBins
from threefold.training.training_data import TrainingData, open_data


def numbers(rows: int = 64, length: int = 40, lengths: Tensor | None = None) -> Batch:
    """Independent standard normal numbers in two channels, the second ten times as large."""
    inputs = torch.randn(rows, length, 2, generator=torch.Generator().manual_seed(0))
    inputs[..., 1] *= 10
    return Batch(inputs, torch.zeros(rows), torch.ones(rows, dtype=torch.bool), lengths)


def tokens(rows: int = 32, length: int = 50, lengths: Tensor | None = None) -> Batch:
    """Random tokens whose targets are the next ones."""
    text = torch.randint(2, 90, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return Batch(text[:, :-1], text[:, 1:], torch.ones(rows, dtype=torch.bool), lengths)


# --------------------------------------------------------------------------------------- influence


def test_a_model_that_looks_back_three_elements_has_influence_up_to_three() -> None:
    curve = influence(lambda batch: batch.inputs[:, -3:, :1].sum(1), [numbers()])
    seen = {int(d): value for d, value in curve}
    assert set(seen) == set(distances(40)) and max(seen) == 40
    # |Δ of one| against |Δ of three| independent numbers: 1/√3.
    assert seen[1] == pytest.approx(1 / math.sqrt(3), rel=0.25)
    assert all(value > 0.3 for d, value in seen.items() if d <= 3)
    assert all(value == 0 for d, value in seen.items() if d > 3)


def test_the_distance_is_counted_from_the_end_of_each_row() -> None:
    lengths = torch.arange(64) % 20 + 21
    rows = torch.arange(64)

    def second_last(batch: Batch) -> Tensor:
        return batch.inputs[rows, lengths - 2, :1]

    seen = {int(d): value for d, value in influence(second_last, [numbers(lengths=lengths)])}
    assert seen[2] == 1 and all(value == 0 for d, value in seen.items() if d != 2)
    assert max(seen) == int(lengths.median())


def test_a_constant_model_looks_nowhere_and_equal_elements_do_not_count() -> None:
    assert all(v == 0 for _, v in influence(lambda b: torch.ones(len(b.inputs), 1), [tokens()]))
    batch = tokens()
    batch.inputs[:, -1] = 7  # cannot be replaced by another one
    curve = influence(lambda b: b.inputs[:, -2:].double(), [batch])
    assert 1 not in [d for d, _ in curve] and curve[0] == [2, pytest.approx(1, rel=0.2)]


def test_distances_reach_the_first_element() -> None:
    assert distances(5) == [1, 2, 3, 4, 5]
    far = distances(4096)
    assert far[0] == 1 and far[-1] == 4096 and len(far) <= 12


# -------------------------------------------------------------------------------------- robustness


def damaged(kind: str, measure: Callable[[Batch], float], batch: Batch) -> dict[float, float]:
    """What a function of the inputs becomes at each strength."""
    task = open_data("recall").task
    kinds = [k for k in damage_kinds(task, [batch]) if k.name == kind]
    curve = robustness(lambda rows: measure(rows[0]), [batch], kinds)[kind]
    return dict(map(tuple, curve))  # type: ignore[arg-type]


def test_a_model_that_ignores_its_inputs_has_flat_curves() -> None:
    task = open_data("recall").task
    for batch, names in (
        (numbers(), {"noise", "gaps", "rate"}),
        (tokens(), {"replaced", "deleted"}),
    ):
        curves = robustness(lambda rows: 0.5, [batch], damage_kinds(task, [batch]))
        assert set(curves) == names
        assert all(score == 0.5 for points in curves.values() for _, score in points)


def test_noise_is_measured_in_deviations_of_each_channel() -> None:
    batch = numbers()
    assert channel_deviations([batch]).tolist() == pytest.approx([1, 10], rel=0.05)
    for channel, scale in ((0, 1.0), (1, 10.0)):
        spread = damaged("noise", lambda b, c=channel: float(b.inputs[..., c].std()), batch)  # type: ignore[misc]
        for strength, value in spread.items():
            assert value == pytest.approx(scale * math.sqrt(1 + strength**2), rel=0.06)


def test_gaps_repeat_the_value_before() -> None:
    batch = numbers()

    def repeated(b: Batch) -> float:
        return float((b.inputs[:, 1:] == b.inputs[:, :-1]).all(-1).double().mean())

    found = damaged("gaps", repeated, batch)
    for share, value in found.items():
        assert value == pytest.approx(share, abs=0.04)


def test_half_the_rate_keeps_straight_lines_and_the_newest_element() -> None:
    batch, lengths = numbers(), torch.arange(64) % 20 + 21
    ramp = torch.arange(40.0)[None, :, None].expand(64, 40, 2).contiguous()
    for row_lengths in (None, lengths):
        line = batch._replace(inputs=ramp, lengths=row_lengths)
        error = damaged("rate", lambda b: float((b.inputs - ramp)[:, 4:].abs().max()), line)
        assert max(error.values()) < 1e-4
    last = torch.arange(64), lengths - 1
    kept = damaged(
        "rate",
        lambda b: float((b.inputs[last] - batch.inputs[last]).abs().max()),
        batch._replace(lengths=lengths),
    )
    assert kept == {1.0: 0.0, 2.0: 0.0, 4.0: 0.0}
    comb = batch._replace(
        inputs=torch.tensor([1.0, -1.0]).repeat(20)[None, :, None].expand(64, 40, 2)
    )
    levels = damaged("rate", lambda b: float(b.inputs[:, 1:].std()), comb)
    assert levels[1.0] > 0.9 and levels[2.0] == 0  # only the −1 remain


def test_deleted_tokens_take_their_targets_with_them() -> None:
    batch = tokens(lengths=torch.tensor([50, 20] * 16))

    def check(b: Batch) -> float:
        assert b.lengths is not None
        for row, length in enumerate(b.lengths.tolist()):
            pairs = list(
                zip(b.inputs[row, :length].tolist(), b.targets[row, :length].tolist(), strict=True)
            )
            old = list(zip(batch.inputs[row].tolist(), batch.targets[row].tolist(), strict=True))
            places = iter(old)
            assert all(pair in places for pair in pairs)  # a subsequence, in the same order
            assert bool((b.targets[row, length:] == IGNORE).all()) or b is batch
        return float(b.lengths[0])

    assert damaged("deleted", check, batch) == {0.0: 50, 0.02: 49, 0.05: 48, 0.1: 45, 0.2: 40}


def test_replaced_tokens_come_from_the_texts_and_targets_stay() -> None:
    batch = tokens()

    def changed(b: Batch) -> float:
        assert b.targets.equal(batch.targets) and set(b.inputs.unique().tolist()) <= set(
            range(2, 90)
        )
        return float((b.inputs != batch.inputs).double().mean())

    for share, value in damaged("replaced", changed, batch).items():
        assert value == pytest.approx(share, abs=0.02)


# ------------------------------------------------------------------------------------- calibration


def test_calibration_error_of_known_confidence() -> None:
    logits = torch.tensor([0.8, 0.2]).log().expand(100, 2)
    for right, error in ((80, 0.0), (50, 0.3)):
        bins = ConfidenceBins()
        targets = torch.tensor([0] * right + [1] * (100 - right))
        count_answers(bins, logits, targets)
        count_answers(bins, logits, torch.full((100,), IGNORE))
        found = confidence(bins)
        assert found["error"] == pytest.approx(error, abs=1e-6)
        assert found["bins"][0]["n"] == 100 and found["bins"][0]["accuracy"] == right / 100


def test_coverage_is_the_mean_over_targets() -> None:
    target = {"coverage": 0.6, "by_horizon": [{"coverage": 0.5}, {"coverage": 0.7}]}
    other = {"coverage": 0.8, "by_horizon": [{"coverage": 0.7}, {"coverage": 0.9}]}
    found = coverage({"picture_levels": [0.1, 0.9], "by_target": {"a": target, "b": other}})
    assert found == {
        "form": "coverage",
        "nominal": 0.8,
        "actual": pytest.approx(0.7),
        "by_step": pytest.approx([0.6, 0.8]),
    }


# ------------------------------------------------------------------------------ models, baselines


def test_n_grams_are_asked_for_other_tokens_than_those_that_came() -> None:
    random = np.random.default_rng(0)
    model = NGrams.fit(random.integers(0, 5, 400), 5, order=3)
    text, wanted = random.integers(0, 5, 30), random.integers(0, 5, 30)
    found = model.log_probabilities(text, wanted)
    for place in range(30):
        expected = model.distribution(text[:place])[wanted[place]]
        assert found[place] == pytest.approx(math.log(expected), abs=1e-9)


def test_n_grams_look_back_five_tokens(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mats"]
    (tmp_path / "own.txt").write_text(" ".join(random.choice(words, 3000)))
    data = open_data(str(tmp_path / "own.txt"), length=32)
    results = run_baselines(data, "strong", 1, 40, lambda _: None, sizes=ProbeSizes(16, 16, 32))
    ngrams, xz = results
    curve = {int(d): value for d, value in ngrams.extras["influence"]}
    assert curve[1] > 0.1 and all(value == 0 for d, value in curve.items() if d > 5)
    points = ngrams.extras["robustness"]["replaced"]
    assert points[-1][1] > points[0][1] + 0.5  # a fifth of the tokens wrong costs bits
    assert ngrams.extras["memory_bytes"] > 4000
    sure = ngrams.extras["calibration"]
    assert sum(b["n"] for b in sure["bins"]) == 16 * PLACES and sure["error"] < 0.15
    assert xz.extras == {"predicts": False} and math.isnan(xz.decode_seconds)


def small(name: str, **options: object) -> tuple[TrainingData, object]:
    data = open_data(name, batch_size=8, **options)
    torch.manual_seed(0)
    return data, build(data.spec(ModelSettings(mixers=["gru"], width=16, depth=1)))


@pytest.mark.parametrize(
    ("name", "options", "kinds", "form"),
    [
        ("chords", {"length": 64}, {"noise", "gaps", "rate"}, "series"),
        ("listops-mini", {}, {"replaced", "deleted"}, "text"),
        ("pathfinder16", {}, {"noise", "gaps", "rate"}, "image"),
        ("mackey_glass", {}, {"noise", "gaps", "rate"}, "forecast"),
        ("adding", {"length": 64}, {"noise", "gaps", "rate"}, "series"),
        ("code", {"length": 64}, {"replaced", "deleted"}, "stretch"),
        ("reversal", {"options": {"lengths": [1, 5]}}, {"replaced"}, "text"),
    ],
)
def test_every_kind_of_model_is_measured(
    name: str, options: dict[str, object], kinds: set[str], form: str
) -> None:
    data, model = small(name, **options)
    found = probe_model(data, model, ProbeSizes(16, 8, 8))  # type: ignore[arg-type]
    assert set(found["robustness"]) == kinds
    assert all(math.isfinite(y) for points in found["robustness"].values() for _, y in points)
    assert ("influence" in found) == (name != "reversal")
    assert ("calibration" in found) == (name not in ("adding", "reversal"))
    stored = model.state_dict().values()  # type: ignore[attr-defined]
    assert found["weight_bytes"] == sum(tensor.nbytes for tensor in stored)
    worst = worst_examples(data, model, np.arange(16))  # type: ignore[arg-type]
    assert worst and {item["form"] for item in worst} == {form}
    if name == "chords":
        assert all(item["label"] != item["answer"] for item in worst)
        sure = [item["probability"] for item in worst]
        assert sure == sorted(sure, reverse=True)
    if form == "forecast":
        assert [item["title"] for item in worst[:2]] == ["typical", "worst"]
        assert len(worst[0]["truth"]) == len(worst[0]["low"]) == data.first.targets.shape[1]


def test_the_most_surprising_stretch_is_found() -> None:
    bits = torch.ones(300)
    bits[200:230] = 9
    mean, start, end = most_surprising(bits)
    assert start <= 200 and end >= 230 and mean == pytest.approx((30 * 9 + 34) / 64)
    assert most_surprising(torch.ones(10))[1:] == (0, 10)


def test_sizes_follow_from_the_training_and_have_limits() -> None:
    task = open_data("recall").task  # 64 elements
    assert probe_sizes(task, 1) == ProbeSizes(8, 8, 8)
    large = probe_sizes(task, 10**9)
    assert large.robustness * task.length * 10 <= MOST_ELEMENTS / 2
    assert large == probe_sizes(task, 10**10)
    small_sizes = probe_sizes(task, 100_000)
    assert 8 < small_sizes.robustness < large.robustness


def test_what_would_take_too_long_is_left_out() -> None:
    assert Stopwatch(seconds=1.0, example_seconds=0.01).allows(10, 5)
    assert not Stopwatch(seconds=1.0, example_seconds=0.01).allows(10, 11)


def test_memory_of_a_fitted_function() -> None:
    weights, offset = np.zeros((10, 4)), torch.zeros(4)

    def answer(x: Tensor) -> Tensor:
        return x + offset + float(weights.sum()) + float(weights.max())

    assert held_bytes(answer) == 10 * 4 * 8 + 4 * 4
