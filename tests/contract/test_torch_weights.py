"""torch.nn.RNN, LSTM and GRU: their weights in our mixers give their answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threefold
from tests.tolerances import relative_error
from threefold.models.pretrained.torch_weights import load_torch_weights

EQUAL = 1e-6
CASES: dict[str, tuple[str, type[nn.RNNBase], dict[str, Any], dict[str, Any]]] = {
    "tanh RNN": ("rnn", nn.RNN, {}, {"readout": False}),
    "relu RNN": ("rnn", nn.RNN, {"nonlinearity": "relu"}, {"readout": False, "activation": "relu"}),
    "LSTM": ("lstm", nn.LSTM, {}, {}),
    "GRU": ("gru", nn.GRU, {}, {"reset_after": True}),
}


def pair(case: str, hidden: int = 32, **more: Any) -> tuple[threefold.layers.mixer.Mixer, Any]:
    name, cls, module_options, options = CASES[case]
    torch.manual_seed(0)
    module = cls(32, hidden, batch_first=True, **module_options, **more)
    return threefold.mixer(name, width=32, hidden=hidden, **options), module


def first(state: Any) -> Tensor:
    found: Tensor = state[0] if isinstance(state, tuple) else state
    return found


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_torch(case: str, as_dict: bool) -> None:
    ours, module = pair(case)
    load_torch_weights(ours, module.state_dict() if as_dict else module)
    x = torch.randn(3, 50, 32)
    for form in ours.forms:
        y, state = ours(x, form=form)
        expected, last = module(x)
        assert relative_error(y, expected) < EQUAL, form
        assert relative_error(state["memory"]["hidden"], first(last)[0]) < EQUAL
        if case == "LSTM":
            assert relative_error(state["memory"]["cell"], last[1][0]) < EQUAL
    # From a carried state too, and its gradients.
    more = torch.randn(3, 7, 32, requires_grad=True)
    y, _ = ours(more, state)
    expected, _ = module(more, last)
    assert relative_error(y, expected) < EQUAL
    mine, theirs = (torch.autograd.grad(out.square().sum(), more)[0] for out in (y, expected))
    assert relative_error(mine, theirs) < 10 * EQUAL


@pytest.mark.parametrize("case", CASES)
def test_second_layer_backwards_and_without_biases(case: str) -> None:
    ours, module = pair(case, num_layers=2, bidirectional=True)
    other, single = pair(case)
    suffix = "l0_reverse"
    single.load_state_dict(
        {f"{k}_l0": module.state_dict()[f"{k}_{suffix}"] for k in ("weight_ih", "weight_hh")}
        | {f"{k}_l0": module.state_dict()[f"{k}_{suffix}"] for k in ("bias_ih", "bias_hh")}
    )
    load_torch_weights(ours, module, reverse=True)
    x = torch.randn(2, 9, 32)
    assert relative_error(ours(x)[0], single(x)[0]) < EQUAL
    bare, module = pair(case, bias=False)
    load_torch_weights(bare, module)
    assert relative_error(bare(x)[0], module(x)[0]) < EQUAL
    assert not torch.equal(other(x)[0], single(x)[0])


def test_what_does_not_fit_is_refused() -> None:
    refused = threefold.ThreefoldError
    _, gru = pair("GRU")
    with pytest.raises(refused, match="reset_after=True"):
        load_torch_weights(threefold.mixer("gru", width=32), gru)
    lstm, _ = pair("LSTM")
    with pytest.raises(refused, match=r"torch\.nn\.GRU"):
        load_torch_weights(lstm, gru)
    rnn, _ = pair("tanh RNN")
    with pytest.raises(refused, match=r"relu.*tanh"):
        load_torch_weights(rnn, pair("relu RNN")[1])
    with pytest.raises(refused, match=r"\(80, 32\).*\(128, 32\)"):
        load_torch_weights(lstm, pair("LSTM", hidden=20)[1])
    with pytest.raises(refused, match=r"weight_ih_l3 is missing"):
        load_torch_weights(lstm, pair("LSTM")[1], layer=3)
    with pytest.raises(refused, match="proj_size"):
        load_torch_weights(lstm, nn.LSTM(32, 32, proj_size=16))
    with pytest.raises(refused, match="no such layer"):
        load_torch_weights(threefold.mixer("coupled_lstm", width=32), lstm.state_dict())
    with pytest.raises(refused, match="readout=False"):
        load_torch_weights(threefold.mixer("rnn", width=32), pair("tanh RNN")[1])
