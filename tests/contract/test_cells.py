"""What the options of cells do; their equations are tested in tests/layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_mixers import inputs
from threefold.layers.cell_mixer import CellMixer

CELLS = ("rnn", "lstm", "peephole_lstm", "coupled_lstm", "gru", "ur_lstm", "ur_gru")
every_cell = pytest.mark.parametrize("name", CELLS)


@every_cell
def test_beginnings(name: str) -> None:
    size = 24
    for initial in ("orthogonal", "identity", "uniform"):
        mixer: Any = threefold.mixer(name, width=32, hidden=size, init=initial)
        for matrix in mixer.recurrent.detach().view(-1, size, size):
            if initial == "identity":
                assert torch.equal(matrix, torch.eye(size))
            square = torch.allclose(matrix @ matrix.T, torch.eye(size), atol=1e-5)
            assert square == (initial != "uniform")
            assert initial != "uniform" or matrix.abs().max() <= size**-0.5


def test_rg_lru_begins_with_slow_decays() -> None:
    decays = torch.sigmoid(-threefold.mixer("rg_lru", width=512).rate) ** 8
    assert decays.min() >= 0.9 and decays.max() <= 0.9991


@pytest.mark.parametrize("name", ["lstm", "peephole_lstm", "coupled_lstm"])
def test_forget_bias(name: str) -> None:
    place = 0 if name == "coupled_lstm" else 1
    biases = threefold.mixer(name, width=16, forget_bias=2.5).input.bias.detach().view(-1, 16)
    assert (biases[place] == 2.5).all() and biases.count_nonzero() == 16


@every_cell
def test_dropout_is_locked_over_time_and_absent_outside_training(name: str) -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer(name, width=32, dropout=0.5, recurrent_dropout=0.5).double()
    still = threefold.mixer(name, width=32).double()
    still.load_state_dict(mixer.state_dict())
    x = inputs(torch.float64)
    assert torch.equal(mixer.eval()(x)[0], still(x)[0])
    seen: list[Tensor] = []
    mixer.input.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    mixer.train()(x)
    dropped = seen[0] == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0.2 < dropped[:, 0].double().mean() < 0.8 and not torch.equal(dropped[0], dropped[1])
    assert torch.equal(seen[0][~dropped], 2 * x[~dropped])


def test_recurrent_dropout_hides_what_the_matrices_see() -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer("rnn", width=32, activation="identity", recurrent_dropout=0.5)
    mixer.double().train()
    start = {"memory": {"hidden": torch.ones(1, 32, dtype=torch.float64).requires_grad_()}}
    _, after = mixer(torch.zeros(1, 2, 32, dtype=torch.float64), start)
    hidden = after["memory"]["hidden"]
    (gradient,) = torch.autograd.grad(hidden.square().sum(), start["memory"]["hidden"])
    assert 4 < (gradient == 0).sum() < 28


@every_cell
def test_parallel_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(threefold.ThreefoldError, match=r"no parallel form.*nonlinear.*chunk"):
        threefold.mixer(name, width=16)(torch.zeros(1, 2, 16), form="parallel")


def test_bad_options() -> None:
    for options, message in (
        ({"init": "orthagonal"}, "'orthogonal'"),
        ({"hidden": 0}, "hidden=0"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"activation": "tanhh"}, "'tanh'"),
    ):
        with pytest.raises(threefold.ThreefoldError, match=message):
            threefold.mixer("rnn", width=16, **options)
    with pytest.raises(threefold.ThreefoldError, match="radius"):
        threefold.mixer("lru", width=16, radius=(0.9, 0.5))
    assert issubclass(type(threefold.mixer("gru", width=16)), CellMixer)
