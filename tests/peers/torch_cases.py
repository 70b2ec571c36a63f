"""Layers of torch itself, and a reservoir of reservoirpy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.layers.published import parameters_of
from tests.peers.parity import Layer, Parity, load, package
from threefold.layers.mixer import Mixer


def recurrent(layer: nn.RNNBase) -> Layer:
    return lambda x: layer(x)[0]


def cell_weights(p: dict[str, Tensor], start: str = "", suffix: str = "l0") -> dict[str, Tensor]:
    """Weights of one direction; ours has one bias, torch two."""
    bias = p[f"{start}input.bias"]
    return {
        f"weight_ih_{suffix}": p[f"{start}input.weight"],
        f"weight_hh_{suffix}": p[f"{start}recurrent"],
        f"bias_ih_{suffix}": bias,
        f"bias_hh_{suffix}": torch.zeros_like(bias),
    }


def rnn(mixer: Mixer) -> Layer:
    return recurrent(load(nn.RNN(32, 32, batch_first=True), cell_weights(mixer.state_dict())))


def lstm(mixer: Mixer) -> Layer:
    return recurrent(load(nn.LSTM(32, 32, batch_first=True), cell_weights(mixer.state_dict())))


def gru(mixer: Mixer) -> Layer:
    p = mixer.state_dict()
    weights = cell_weights(p)
    weights["bias_hh_l0"][64:] = p["inner_bias"][0]  # inside the product with the reset gate
    return recurrent(load(nn.GRU(32, 32, batch_first=True), weights))


def bidirectional(mixer: Mixer) -> Layer:
    p = mixer.state_dict()
    both = cell_weights(p, "ahead.") | cell_weights(p, "back.", "l0_reverse")
    layer = load(nn.LSTM(32, 32, batch_first=True, bidirectional=True), both)
    return lambda x: nn.functional.linear(layer(x)[0], p["out.weight"], p["out.bias"])


def attention(mixer: Mixer, part: str = "heads", window: int = 1_000) -> Layer:
    """torch.nn.MultiheadAttention that sees itself and the last window − 1 elements."""
    p = mixer.state_dict()
    names = ("query", "key", "value")
    layer = load(
        nn.MultiheadAttention(32, 4, batch_first=True),
        {
            "in_proj_weight": torch.cat([p[f"{part}.{name}.weight"] for name in names]),
            "in_proj_bias": torch.cat([p[f"{part}.{name}.bias"] for name in names]),
            "out_proj.weight": p[f"{part}.out.weight"],
            "out_proj.bias": p[f"{part}.out.bias"],
        },
    )

    def run(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        far = places.unsqueeze(1) - places
        hidden = (far < 0) | (far >= window)
        out: Tensor = layer(x, x, x, attn_mask=hidden, need_weights=False)[0]
        return out

    return run


def local_attention(mixer: Mixer) -> Layer:
    return attention(mixer, "attention.heads", window=5)


def esn(mixer: Mixer) -> Layer:
    """The reservoir in NumPy; the read-out is a matrix."""
    node, p = package("reservoirpy.nodes").Reservoir, parameters_of(mixer)
    units = len(p["bias_in"])
    counts = p["starts"].diff()
    rows = torch.arange(units).repeat_interleave(counts)
    matrix = torch.zeros(units, units).double()
    matrix[rows, p["columns"].long()] = p["values"]
    w, w_in, bias = (part.numpy() for part in (matrix, p["weight_in"], p["bias_in"]))

    def run(x: Tensor) -> Tensor:
        states = []
        for row in x.detach().double().numpy():
            reservoir = node(units, lr=0.4, W=w, Win=w_in, bias=bias)
            states.append(torch.from_numpy(reservoir.run(row)))
        both = torch.cat([x.detach().double(), torch.stack(states)], -1)
        return both @ p["out.weight"].T + p["out.bias"]

    return run


PLAIN = {"heads": 4, "positions": "none", "bias": True}
CASES = (
    Parity("rnn", "torch RNN", rnn, {"readout": False}),
    Parity("lstm", "torch LSTM", lstm),
    Parity("gru", "torch GRU", gru, {"reset_after": True}),
    Parity("bidirectional", "torch LSTM, bidirectional", bidirectional),
    Parity("attention", "torch MultiheadAttention", attention, PLAIN),
    Parity(
        "local_attention",
        "torch MultiheadAttention in a band",
        local_attention,
        {**PLAIN, "window": 5},
    ),
    Parity("esn", "reservoirpy Reservoir", esn, {"leak": 0.4}, differentiable=False),
)
