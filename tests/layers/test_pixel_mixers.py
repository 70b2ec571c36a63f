"""Initial weights, windows and options of the cells and convolutions of the pixel tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.layers.published import make, rows_of_input
from tests.tolerances import assert_close


@pytest.mark.parametrize(("name", "forget", "refine"), [("ur_lstm", 0, 1), ("ur_gru", 1, 2)])
def test_uniform_gate_initialisation(name: str, forget: int, refine: int) -> None:
    torch.manual_seed(0)
    biases = threefold.mixer(name, width=16, hidden=2000).input.bias.detach().view(4, -1)
    share = torch.sigmoid(biases[forget])
    assert torch.equal(biases[refine], -biases[forget])
    assert share.min() >= 1 / 2000 - 1e-6 and share.max() <= 1 - 1 / 2000 + 1e-6
    assert all(abs((share < q).double().mean() - q) < 0.05 for q in (0.1, 0.5, 0.9))
    assert not biases[[i for i in range(4) if i not in (forget, refine)]].any()
    assert threefold.mixer(name, width=16, hidden=1).input.bias.isfinite().all()


@pytest.mark.parametrize("init", ["cayley", "henaff"])
def test_the_matrix_of_exp_rnn_is_orthogonal(init: str) -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer("exp_rnn", width=16, hidden=201, init=init)
    angles = mixer.recurrent.detach()[0].diagonal(1)[::2]
    low, high = (-1.0, 0.0) if init == "cayley" else (-math.pi, math.pi)
    assert low <= angles.min() < low + 0.4 and high - 0.4 < angles.max() <= high
    assert mixer.recurrent.count_nonzero() == 200
    with torch.no_grad():
        mixer.recurrent += torch.randn_like(mixer.recurrent)  # also after training
    (matrix,) = mixer.weights(None).recurrent.detach()
    assert torch.allclose(matrix @ matrix.T, torch.eye(201), atol=1e-5)


def test_the_window_of_tcn_is_what_it_says() -> None:
    mixer, x = make("tcn", levels=2, taps=3), rows_of_input().requires_grad_()
    (gradient,) = torch.autograd.grad(mixer(x)[0][0, -1].sum(), x)
    seen = gradient[0].abs().amax(-1) > 0
    window = 1 + 2 * (3 - 1) * (2**2 - 1)
    assert seen[-window:].all() and not seen[:-window].any()


def test_tcn_drops_whole_channels() -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer("tcn", width=16, levels=1, dropout=0.5)
    seen: list[Tensor] = []
    mixer.convolutions[1].register_forward_hook(lambda module, given, y: seen.append(given[0]))
    mixer(rows_of_input(torch.float32))
    dropped = (seen[0] == 0).all(1)
    assert 4 < dropped.sum() < 28  # of two rows of 16 channels; ReLU alone leaves some of each


def test_a_matrix_that_is_edited_is_made_again() -> None:
    mixer, x = make("exp_rnn"), rows_of_input()
    with torch.no_grad():
        before, _ = mixer(x)
        mixer.recurrent.data += torch.randn_like(mixer.recurrent)
        edited, _ = mixer.eval()(x)
    assert not torch.allclose(before, edited)
    assert_close(edited, mixer(x)[0].detach())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lmu_fft", {"order": 0}, "order=0"),
        ("lmu_fft", {"activation": "rellu"}, "'relu'"),
        ("tcn", {"taps": 1}, "taps=1"),
        ("tcn", {"dropout": 1.0}, "dropout"),
        ("lipschitz_rnn", {"beta": 0.2}, "beta=0.2"),
        ("exp_rnn", {"init": "caley"}, "'cayley'"),
        ("ckconv", {"frequency": 0.0}, "frequency=0.0"),
        ("ckconv", {"max_length": 0}, "max_length is 0"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(threefold.ThreefoldError, match=message):
        threefold.mixer(name, width=16, **options)
