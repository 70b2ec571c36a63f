"""Autocast: every mixer and every kind of model trains and steps in bfloat16, close to float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.kinds import EXAMPLES, mean_loss
from tests.tolerances import assert_close
from threefold import Spec
from threefold.data.loaders import Windows
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.training import TrainingSettings, train

ROWS, LENGTH, WIDTH = 2, 24, 32
CAUSAL = [name for name, entry in threefold.MIXERS.items() if entry.load().causal]
LICENSE = Path(__file__).parents[2] / "LICENSE"
TEXT = np.frombuffer(LICENSE.read_bytes(), np.uint8).astype(np.int64)
# Layers of ReLUs: where rounding moves a unit across 0 its gradient changes by all of it, so the
# largest difference says nothing, and gradients are compared as vectors, |a − b| / |b|.
KINKED = {"tcn", "ckconv"}


def _mixer(name: str) -> tuple[Mixer, Tensor]:
    torch.manual_seed(0)
    return threefold.mixer(name, width=WIDTH), torch.randn(ROWS, LENGTH, WIDTH)


def _gradients(mixer: Mixer, x: Tensor, autocast: bool) -> dict[str, Tensor]:
    """The output, and the gradients of its square with respect to the input and all weights."""
    x = x.clone().requires_grad_()
    mixer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, _ = mixer(x)
    y.float().square().mean().backward()
    gradients = {n: p.grad for n, p in mixer.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return {"output": y.detach().float(), "x": x.grad, **gradients}


@pytest.mark.parametrize("name", threefold.MIXERS)
def test_training(name: str) -> None:
    mixer, x = _mixer(name)
    expected, actual = (_gradients(mixer, x, autocast) for autocast in (False, True))
    assert actual.keys() == expected.keys()
    for part, value in actual.items():
        quantity = "autocast output" if part == "output" else "autocast gradient"
        wanted = expected[part]
        if name in KINKED and part != "output":
            value, wanted = (value - wanted).norm() / wanted.norm() + 1, torch.ones(())
        assert_close(value, wanted, quantity, f"{name}, {part}")


@pytest.mark.parametrize("gradients", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("name", CAUSAL)
def test_steps_with_a_carried_state(name: str, gradients: bool) -> None:
    mixer, x = _mixer(name)
    mixer.eval()
    with torch.set_grad_enabled(gradients):
        expected, _ = mixer(x)
        outputs, state = [], None
        with torch.autocast("cpu", torch.bfloat16):
            for t in range(4):
                y, state = mixer.step(x[:, t], state)
                outputs.append(y.unsqueeze(1))
            y, state = mixer(x[:, 4:], state)
        # A state has the same dtypes as without autocast, so it can be carried in and out.
        _, after = mixer(x[:, :1], state)
    actual = torch.cat([*outputs, y], 1).float()
    assert_close(actual, expected, "autocast output", name)
    for (path, leaf), (_, other) in zip(states.leaves(state), states.leaves(after), strict=True):
        assert leaf.dtype == other.dtype, path
        assert leaf.dtype in (torch.float32, torch.int64), path


@pytest.mark.parametrize("kind", EXAMPLES)
def test_models(kind: str) -> None:
    example = EXAMPLES[kind]
    model, rows = example.build(), example.rows()
    expected = mean_loss(model, rows)
    with torch.autocast("cpu", torch.bfloat16):
        loss = mean_loss(model, rows)
    assert_close(loss.float(), expected, "autocast output", kind)
    loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def _last_losses(name: str, precision: str) -> float:
    """The mean loss of the last ten of 100 steps on a text."""
    torch.manual_seed(0)
    model = threefold.build(Spec("language", 32, 1, name))
    settings = TrainingSettings(steps=100, precision=precision, learning_rate=3e-3)
    return float(np.mean(train(model, Windows(TEXT, 4, 16), settings).losses[-10:]))


@pytest.mark.parametrize("name", CAUSAL)
def test_100_steps_on_a_text(name: str) -> None:
    wide, narrow = (_last_losses(name, precision) for precision in ("float32", "bfloat16"))
    assert wide < 4.2, "it should have learned something: a uniform guess is 5.55"
    assert narrow == pytest.approx(wide, rel=0.02)


def test_recurrences_run_in_full_precision() -> None:
    """In bfloat16, adding 1/256 to a memory of 1 would change nothing."""
    ones = torch.ones(1, 512, 1, 1)
    key = torch.full_like(ones, 1 / 256)
    for form in ("step", "chunk", "parallel"):
        with torch.autocast("cpu", torch.bfloat16):
            _, state = threefold.linear_recurrence(ones, key, ones, form=form)
        assert float(state) == 2.0, form


def test_a_filter_cached_under_autocast_is_exact() -> None:
    mixer, x = _mixer("hyena")
    mixer.eval()
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            mixer(x)
        cached, _ = mixer(x)
        fresh, _ = mixer.train().eval()(x)
    assert torch.equal(cached, fresh)
