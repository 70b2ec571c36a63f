"""`training.device` and `training.precision`: what they accept, and what they do to a run."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.contract.kinds import EXAMPLES
from threefold.errors import ThreefoldError
from threefold.training import devices
from threefold.training.distributed import backend
from threefold.training.estimate import estimate_step
from threefold.training.evaluation import evaluate
from threefold.training.loop import train
from threefold.training.objectives import objective_of
from threefold.training.settings import TrainingSettings


@pytest.mark.parametrize("name", ["meta", "mps", "gpu", "cuda:", "cuda:x", "CPU", ""])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ThreefoldError, match=r"training\.device.* expected auto, cpu, cuda"):
        TrainingSettings(steps=1, device=name)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES["language"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = TrainingSettings(steps=1, device=name)
    with pytest.raises(ThreefoldError, match=f"{name}'.* finds no CUDA device here; set"):
        train(example.build(), lambda step: example.rows(), settings)


def test_every_rank_has_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(devices.choose_device("auto")) == ("cuda:0" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setitem(os.environ, "LOCAL_RANK", "1")
    assert str(devices.choose_device("auto")) == str(devices.choose_device("cuda")) == "cuda:1"
    assert str(devices.choose_device("cuda:0")) == "cuda:0"
    assert str(devices.choose_device("cpu")) == "cpu"
    with pytest.raises(ThreefoldError, match="finds 2 CUDA devices"):
        devices.choose_device("cuda:2")


def test_nccl_carries_cuda_tensors_and_gloo_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend() == "gloo"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert backend() == "cpu:gloo,cuda:nccl"


def _run(kind: str, precision: str) -> tuple[Any, Any]:
    example = EXAMPLES[kind]
    model = example.build()
    settings = TrainingSettings(steps=4, precision=precision, device="cpu")
    result = train(model, lambda step: example.rows(), settings, validation=[example.rows()])
    return model, result


@pytest.mark.parametrize("kind", ["language", "forecaster", "seq2seq"])
def test_precision(kind: str) -> None:
    model, result = _run(kind, "float32")
    narrow_model, narrow = _run(kind, "bfloat16")
    wide_model, wide = _run(kind, "float64")
    assert model.dtype == narrow_model.dtype == torch.float32
    assert all(p.dtype == torch.float32 for p in narrow_model.parameters())
    assert all(p.dtype == torch.float64 for p in wide_model.parameters())
    assert wide.losses == pytest.approx(result.losses, rel=1e-4)
    assert wide.losses != result.losses
    assert narrow.losses == pytest.approx(result.losses, rel=2e-2)
    # Rounding to 8 bits shows already in the first loss, and in the evaluation.
    assert abs(narrow.losses[0] / result.losses[0] - 1) > 1e-6
    rows = EXAMPLES[kind].rows()
    scores = [evaluate(narrow_model, [rows], precision=p) for p in ("bfloat16", "float32")]
    assert narrow.scores == scores[0]
    assert narrow.scores != scores[1]


def test_narrow_activations_take_little_more_than_their_casts() -> None:
    example = EXAMPLES["tagger"]
    saved = {}
    for precision in ("float32", "bfloat16"):
        model, settings = example.build(), TrainingSettings(steps=1, precision=precision)
        estimate = estimate_step(model, objective_of(model), example.rows(), settings)
        saved[precision] = estimate.activations
    # In a model this small the casts of its weights weigh as much as narrow activations save.
    assert saved["bfloat16"] < 1.1 * saved["float32"]
