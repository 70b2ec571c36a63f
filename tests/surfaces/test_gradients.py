"""Norms of ∂s_T/∂s_t: exact for the linear RNN, and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold.lab.studies.adding import AddingStudy
from threefold.lab.studies.gradients import (
    draw_gradients,
    gradient_norms,
    on_adding,
    state_jacobians,
)


def sequence(length: int = 12, width: int = 16) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(length, width, dtype=torch.float64)


@pytest.mark.parametrize("radius", [0.8, 1.0, 1.2])
def test_linear_rnn_is_the_matrix_power(radius: float) -> None:
    torch.manual_seed(0)
    mixer = threefold.mixer("rnn", width=16, activation="identity").double()
    with torch.no_grad():
        torch.nn.init.orthogonal_(mixer.recurrent[0])  # in float64
        mixer.recurrent.mul_(radius)
    jacobians = state_jacobians(mixer, sequence())
    assert jacobians.shape == (13, 16, 16)
    for t in range(13):
        power = torch.linalg.matrix_power(mixer.recurrent[0], 12 - t)
        assert_close(jacobians[t], power, "gradient", f"t = {t}")
    expected = torch.tensor([radius ** (12 - t) for t in range(13)], dtype=torch.float64)
    assert_close(gradient_norms(mixer, sequence()), expected, "gradient")  # U is orthogonal
    frobenius = gradient_norms(mixer, sequence(), spectral=False)
    assert_close(frobenius, expected * 4, "gradient")


@pytest.mark.parametrize("name", ["lstm", "gru", "slstm", "gla", "mamba", "lru"])
def test_any_mixer(name: str) -> None:
    torch.manual_seed(0)
    mixer = threefold.mixer(name, width=16).double()
    norms = gradient_norms(mixer, sequence(4))
    assert norms.shape == (5,) and norms.isfinite().all() and norms[-1] == 1
    assert (norms[:-1] > 0).all()


def test_a_tanh_rnn_forgets_what_an_lstm_keeps() -> None:
    plan = AddingStudy(length=60, width=16, steps=0)
    rnn, lstm = (on_adding(name, plan)[1][0] for name in ("rnn", "lstm"))
    assert rnn < 0.1 * lstm


def test_the_picture(tmp_path: Path) -> None:
    mixer = threefold.mixer("rnn", width=16).double()
    draw_gradients({"rnn": gradient_norms(mixer, sequence())}, tmp_path / "norms.png")
    assert (tmp_path / "norms.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_measured_is_refused() -> None:
    both = threefold.mixer("bidirectional", width=16)
    with pytest.raises(threefold.ThreefoldError, match="not causal"):
        state_jacobians(both, torch.zeros(3, 16))
    rnn = threefold.mixer("rnn", width=16)
    with pytest.raises(threefold.ThreefoldError, match=r"\(1, 3, 16\)"):
        state_jacobians(rnn, torch.zeros(1, 3, 16))
    with pytest.raises(threefold.ThreefoldError, match="at most 4096"):
        state_jacobians(threefold.mixer("gla", width=512), torch.zeros(2, 512))
