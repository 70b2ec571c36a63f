"""Layers of flash-linear-attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.peers.fla_layers import layer_class
from tests.peers.parity import Layer, Parity, load
from threefold.layers.mixer import Mixer

Weights = dict[str, Tensor]


def built(
    file: str, name: str, weights: Callable[[Weights], Weights], **config: Any
) -> Callable[[Mixer], Layer]:
    """A function that makes the layer with the weights of a mixer."""

    def build(mixer: Mixer) -> Layer:
        peer = layer_class(file, name)(hidden_size=mixer.width, layer_idx=0, **config)
        peer = load(peer, weights(mixer.state_dict()))
        return lambda x: peer(x)[0]

    return build


def projections(p: Weights) -> Weights:
    names = {"q": "query", "k": "key", "v": "value"}
    weights = {f"{t}_proj.weight": p[f"convolved.projections.{o}.weight"] for t, o in names.items()}
    for theirs, ours in names.items():
        if f"convolved.convolutions.{ours}.weight" in p:
            weights[f"{theirs}_conv1d.weight"] = p[f"convolved.convolutions.{ours}.weight"]
    return {**weights, "o_proj.weight": p["out.weight"]}


def plain(**names: str) -> Callable[[Weights], Weights]:
    """Linear maps and norms under other names: theirs=ours."""
    return lambda p: {f"{theirs}.weight": p[f"{ours}.weight"] for theirs, ours in names.items()}


def gla(p: Weights) -> Weights:
    return {
        **projections(p),
        "g_proj.weight": p["gate.weight"],
        "gk_proj.0.weight": p["forget.down.weight"],
        "gk_proj.1.weight": p["forget.up.weight"],
        "gk_proj.1.bias": p["forget.up.bias"],
        "g_norm_swish_gate.weight": p["norm.weight"],
    }


def delta_net(p: Weights) -> Weights:
    return {
        **projections(p),
        "b_proj.weight": p["strength.weight"],
        "o_norm.weight": p["norm.weight"],
    }


def rwkv6(p: Weights) -> Weights:
    # Their order: query, decay, key, value, gate.  Ours: decay, key, value, query, gate.
    order = torch.tensor([3, 0, 1, 2, 4])
    down = p["shares_down"].T.unflatten(0, (5, -1))[order].flatten(0, 1)
    up = p["shares_up"][order].permute(2, 0, 1).flatten(1)
    names = {"r": "query", "k": "key", "v": "value", "g": "gate"}
    return {
        **{f"{t}_proj.linear.weight": p[f"{o}.weight"] for t, o in names.items()},
        "x_proj.0.mu": p["shares_first"],
        "x_proj.0.linear.weight": down,
        "x_proj.2.weight": up,
        "x_bias": p["shares"][order],
        "w_proj.linear.lora.0.weight": p["decay_down"].T,
        "w_proj.linear.lora.2.weight": p["decay_up"].T,
        "w_proj.linear.lora.2.bias": p["decay_bias"],
        **{"bonus": p["bonus"], "o_proj.weight": p["out.weight"]},
        **{"g_norm.weight": p["norm.weight"], "g_norm.bias": p["norm.bias"]},
    }


def retnet(mixer: Mixer) -> Layer:
    cls = layer_class("multiscale_retention", "MultiScaleRetention")
    peer = cls(hidden_size=mixer.width, num_heads=2, elementwise_affine=False, norm_eps=1e-6)
    size = mixer.width // 2
    # The authors' frequencies; flash-linear-attention has those of rotary embeddings.
    peer.rotary.frequencies = 10_000.0 ** -torch.linspace(0, 1, size // 2, dtype=torch.float64)
    names = plain(q_proj="query", k_proj="key", v_proj="value", g_proj="gate", o_proj="out")
    peer = load(peer, names(mixer.state_dict()))
    return lambda x: peer(x)[0]


def linear_attention(mixer: Mixer) -> Layer:
    cls = layer_class("linear_attn", "LinearAttention")
    peer = cls(
        hidden_size=mixer.width,
        num_heads=2,
        feature_map="elu",
        output_norm="identity",
        do_feature_map_norm=True,
    )
    p = mixer.state_dict()
    for name in ("query", "key", "value", "out"):
        p[f"{name}.bias"].zero_()  # theirs has none
    peer = load(peer, plain(q_proj="query", k_proj="key", v_proj="value", o_proj="out")(p))
    return lambda x: peer(x)[0]


def hgrn2(mixer: Mixer) -> Layer:
    cls = layer_class("hgrn2", "HGRN2Attention")
    peer = cls(hidden_size=mixer.width, num_heads=2, expand_ratio=None, layer_idx=1)
    names = plain(q_proj="query", f_proj="forget", i_proj="value", g_norm="norm", o_proj="out")
    p = mixer.state_dict()
    peer = load(peer, names(p))
    return lambda x: peer(x, lower_bound=torch.sigmoid(p["bound"]))[0]


GLA = built("gla", "GatedLinearAttention", gla, num_heads=2)
CONVOLVED_GLA = built("gla", "GatedLinearAttention", gla, num_heads=2, use_short_conv=True)
DELTA_NET = built("delta_net", "DeltaNet", delta_net, num_heads=2)
BARE_DELTA_NET = built(
    "delta_net", "DeltaNet", delta_net, num_heads=2, use_short_conv=False, allow_neg_eigval=True
)
ABC = built(
    "abc",
    "ABCAttention",
    plain(
        **{"q_proj": "query", "k_proj": "key", "v_proj": "value", "s_proj": "slot"},
        **{"g_proj": "gate", "g_norm": "norm", "o_proj": "out"},
    ),
    **{"num_heads": 2, "num_slots": 5},
)
GSA = built(
    "gsa",
    "GatedSlotAttention",
    plain(
        **{"q_proj": "query", "k_proj": "key", "v_proj": "value", "f_proj": "forget"},
        **{"g_norm": "norm", "o_proj": "out"},
    ),
    **{"num_heads": 2, "num_slots": 5},
)
RWKV6 = built("rwkv6", "RWKV6Attention", rwkv6, num_heads=2, expand_k=1.0, norm_eps=16e-5)

CASES = (
    Parity("gla", "fla GatedLinearAttention", GLA, {"heads": 2}),
    Parity("gla", "fla GatedLinearAttention, convolved", CONVOLVED_GLA, {"heads": 2, "taps": 4}),
    Parity("linear_attention", "fla LinearAttention", linear_attention, {"heads": 2}),
    Parity("delta_net", "fla DeltaNet", DELTA_NET, {"heads": 2}),
    Parity(
        "delta_net",
        "fla DeltaNet, not convolved",
        BARE_DELTA_NET,
        {"heads": 2, "taps": 0, "negative_eigenvalues": True},
    ),
    Parity("abc", "fla ABCAttention", ABC, {"heads": 2, "slots": 5}),
    Parity("gsa", "fla GatedSlotAttention", GSA, {"heads": 2, "slots": 5}),
    Parity("hgrn2", "fla HGRN2Attention", hgrn2, {"heads": 2, "layer": 1, "depth": 3}),
    Parity("retnet", "fla MultiScaleRetention", retnet, {"heads": 2}),
    Parity("rwkv6", "fla RWKV6Attention", RWKV6, {"heads": 2}),
)
