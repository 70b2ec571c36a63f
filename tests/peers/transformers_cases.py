"""Layers of transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.peers.parity import Layer, Parity, load, package
from threefold.layers.mixer import Mixer


def layer_of(model: str, name: str, config: dict[str, Any], **options: Any) -> Any:
    """A layer class of transformers, made from a configuration."""
    module = package(f"transformers.models.{model}.modeling_{model}")
    made = getattr(package("transformers"), config.pop("class"))(**config)
    return getattr(module, name)(made, **options)


def mamba(mixer: Mixer) -> Layer:
    config = {"class": "MambaConfig", "hidden_size": 32, "num_hidden_layers": 1, "use_bias": True}
    peer = layer_of("mamba", "MambaMixer", config, layer_idx=0)
    p = mixer.state_dict()
    names = {
        "in_proj": "input",
        "x_proj": "select",
        "out_proj": "out",
        "conv1d": "conv",
    }
    weights = {
        **{f"{theirs}.weight": p[f"{ours}.weight"] for theirs, ours in names.items()},
        **{f"{t}.bias": p[f"{names[t]}.bias"] for t in ("in_proj", "out_proj", "conv1d")},
        "dt_proj.weight": p["delta.weight"],
        "dt_proj.bias": p["delta_bias"],
        **{name: p[name] for name in ("A_log", "D")},
    }
    return load(peer, weights)


def mamba2(mixer: Mixer) -> Layer:
    config = {
        "class": "Mamba2Config",
        **{"hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"use_bias": True, "num_hidden_layers": 1, "chunk_size": 8},
        "time_step_limit": (0.05, 0.5),
    }
    peer = layer_of("mamba2", "Mamba2Mixer", config, layer_idx=0)
    return load(peer, mamba2_weights(mixer))


def zamba2(mixer: Mixer) -> Layer:
    config = {
        "class": "Zamba2Config",
        **{"hidden_size": 32, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_d_state": 8},
        **{"mamba_ngroups": 2, "num_hidden_layers": 2, "chunk_size": 8, "time_step_min": 0.05},
        **{"num_attention_heads": 4, "mamba_expand": 2, "layer_types": ["mamba", "hybrid"]},
    }
    peer = layer_of("zamba2", "Zamba2MambaMixer", config, layer_idx=0)
    return load(peer, mamba2_weights(mixer))


def mamba2_weights(mixer: Mixer) -> dict[str, Tensor]:
    p = mixer.state_dict()
    names = {"in_proj": "input", "out_proj": "out", "conv1d": "conv"}
    pairs = (
        (f"{t}.{kind}", f"{o}.{kind}") for t, o in names.items() for kind in ("weight", "bias")
    )
    return {
        **{theirs: p[ours] for theirs, ours in pairs if ours in p},
        **{name: p[name] for name in ("A_log", "D")},
        **{"dt_bias": p["delta_bias"], "norm.weight": p["norm_weight"]},
    }


def rg_lru(mixer: Mixer) -> Layer:
    config = {
        "class": "RecurrentGemmaConfig",
        **{"hidden_size": 32, "lru_width": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
    }
    peer: Any = layer_of("recurrent_gemma", "RecurrentGemmaRecurrentBlock", config, layer_idx=0)
    p = mixer.state_dict()
    names = {"linear_y": "gate", "linear_x": "input", "linear_out": "out", "conv_1d": "conv"}
    weights = {f"{t}.{k}": p[f"{o}.{k}"] for t, o in names.items() for k in ("weight", "bias")}
    for theirs, ours in (("input_gate", "write"), ("recurrent_gate", "forget")):
        for kind in ("weight", "bias"):
            weights[f"rg_lru.{theirs}_{kind}"] = p[f"{ours}.{kind}"]
    peer = load(peer, {**weights, "rg_lru.recurrent_param": p["rate"]})

    scan = peer.rg_lru._rnn_scan

    def run(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1]).expand(len(x), -1)
        peer.rg_lru._rnn_scan = partial(scan, acc_dtype=x.dtype)  # float32 by default
        out: Tensor = peer(x, places, None, use_cache=False)[0]
        return out

    return run


def fields_of(mixer: Mixer, part: str) -> list[Tensor]:
    p = mixer.state_dict()
    return [p[f"convolved.{part}.{name}.weight"] for name in ("query", "key", "value")]


def qwen3_next(mixer: Mixer) -> Layer:
    config = {
        "class": "Qwen3NextConfig",
        **{"hidden_size": 32, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_hidden_layers": 1},
        **{"layer_types": ["linear_attention"], "rms_norm_eps": 1e-6},
    }
    peer = layer_of("qwen3_next", "Qwen3NextGatedDeltaNet", config, layer_idx=0)
    p = mixer.state_dict()
    fields = (*fields_of(mixer, "projections"), p["gate.weight"])
    pairs = (p["strength.weight"], p["delta.weight"])

    def by_key_head(tensors: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([t.unflatten(0, (2, -1)) for t in tensors], 1).flatten(0, 1)

    return load(
        peer,
        {
            "in_proj_qkvz.weight": by_key_head(fields),
            "in_proj_ba.weight": by_key_head(pairs),
            "conv1d.weight": torch.cat(fields_of(mixer, "convolutions")),
            "out_proj.weight": p["out.weight"],
            **{"dt_bias": p["delta_bias"], "A_log": p["A_log"], "norm.weight": p["norm.weight"]},
        },
    )


def separate_projections(mixer: Mixer) -> dict[str, Tensor]:
    names = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    return {
        **dict(zip(names, fields_of(mixer, "projections"), strict=True)),
        "conv1d.weight": torch.cat(fields_of(mixer, "convolutions")),
        "b_proj.weight": mixer.state_dict()["strength.weight"],
        "o_proj.weight": mixer.state_dict()["out.weight"],
        "o_norm.weight": mixer.state_dict()["norm.weight"],
    }


def olmo_hybrid(mixer: Mixer) -> Layer:
    config = {
        "class": "OlmoHybridConfig",
        **{"hidden_size": 32, "linear_num_value_heads": 2, "linear_num_key_heads": 2},
        **{"linear_key_head_dim": 12, "linear_value_head_dim": 24, "num_hidden_layers": 2},
        **{"layer_types": ["linear_attention", "full_attention"], "linear_allow_neg_eigval": True},
    }
    peer = layer_of("olmo_hybrid", "OlmoHybridGatedDeltaNet", config, layer_idx=0)
    p = mixer.state_dict()
    more = {"a_proj.weight": p["delta.weight"], "g_proj.weight": p["gate.weight"]}
    return load(
        peer,
        {**separate_projections(mixer), **more, "dt_bias": p["delta_bias"], "A_log": p["A_log"]},
    )


def nystromformer(mixer: Mixer) -> Layer:
    config = {
        "class": "NystromformerConfig",
        **{"hidden_size": 32, "num_attention_heads": 4, "num_landmarks": 6},
        **{"segment_means_seq_len": 24, "conv_kernel_size": 5},
    }
    peer = layer_of("nystromformer", "NystromformerSelfAttention", config)
    peer.init_option = "exact"
    p = mixer.state_dict()
    weights = {
        f"{name}.{kind}": p[f"heads.{name}.{kind}"]
        for name in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    peer = load(peer, {**weights, "conv.weight": p["kernel"]})
    return lambda x: peer(x)[0] @ p["heads.out.weight"].T + p["heads.out.bias"]


def longformer(mixer: Mixer) -> Layer:
    config = {
        "class": "LongformerConfig",
        **{"hidden_size": 32, "num_attention_heads": 4, "attention_window": [8]},
    }
    peer = layer_of("longformer", "LongformerSelfAttention", config, layer_id=0)
    p = mixer.state_dict()
    weights = {
        f"{name}{theirs}.{kind}": p[f"{ours}{name}.{kind}"]
        for name in ("query", "key", "value")
        for kind in ("weight", "bias")
        for theirs, ours in (("", "heads."), ("_global", "global_"))
    }
    peer = load(peer, weights)

    def run(x: Tensor) -> Tensor:
        first = (torch.arange(x.shape[1]) < 3).expand(x.shape[:2])
        marks = {"is_index_global_attn": first, "is_global_attn": True}
        local = torch.zeros_like(first)
        y = peer(x, 10000.0 * first.to(x.dtype), is_index_masked=local, **marks)[0]
        return y @ p["heads.out.weight"].T + p["heads.out.bias"]

    return run


def fnet(mixer: Mixer) -> Layer:
    config = {"class": "FNetConfig", "hidden_size": 32}
    peer = layer_of("fnet", "FNetBasicFourierTransform", config)
    return lambda x: peer(x)[0]


def kimi_linear(mixer: Mixer) -> Layer:
    config = {
        "class": "KimiLinearConfig",
        **{"hidden_size": 32, "linear_num_heads": 3, "linear_head_dim": 16},
        **{"num_hidden_layers": 1, "layer_types": ["linear_attention"], "rms_norm_eps": 1e-6},
    }
    peer = layer_of("kimi_linear", "KimiLinearDeltaAttention", config, layer_idx=0)
    p = mixer.state_dict()
    p["gate.up.bias"].zero_()  # Kimi Linear has none
    return load(
        peer,
        {
            **separate_projections(mixer),
            "g_a_proj.weight": p["gate.down.weight"],
            "g_b_proj.weight": p["gate.up.weight"],
            "forget_gate.f_a_proj.weight": p["delta.down.weight"],
            "forget_gate.f_b_proj.weight": p["delta.up.weight"],
            "forget_gate.A_log": p["A_log"],
            "forget_gate.dt_bias": p["delta_bias"],
        },
    )


MAMBA2 = {"heads": 4, "state_size": 8, "groups": 2}
CASES = (
    Parity("mamba", "transformers MambaMixer", mamba, {"bias": True}),
    Parity(
        "mamba2",
        "transformers Mamba2Mixer",
        mamba2,
        {**MAMBA2, "bias": True, "delta_limit": (0.05, 0.5)},
    ),
    Parity(
        "mamba2",
        "transformers Zamba2MambaMixer",
        zamba2,
        {**MAMBA2, "delta_limit": (0.05, float("inf"))},
    ),
    Parity(
        "rg_lru",
        "transformers RecurrentGemmaRecurrentBlock",
        rg_lru,
        {"heads": 2, "scale_first": False},
    ),
    Parity(
        "gated_delta_net",
        "transformers Qwen3NextGatedDeltaNet",
        qwen3_next,
        {"heads": 2, "value_heads": 4, "expand_key": 0.5, "eps": 1e-6},
    ),
    Parity(
        "gated_delta_net",
        "transformers OlmoHybridGatedDeltaNet",
        olmo_hybrid,
        {"heads": 2, "negative_eigenvalues": True},
    ),
    Parity(
        "kda",
        "transformers KimiLinearDeltaAttention",
        kimi_linear,
        {"heads": 3, "expand_key": 1.5, "expand_value": 1.5, "eps": 1e-6},
    ),
    Parity(
        "nystromformer",
        "transformers NystromformerSelfAttention",
        nystromformer,
        {"heads": 4, "landmarks": 6, "taps": 5, "bias": True},
    ),
    Parity(
        "longformer",
        "transformers LongformerSelfAttention",
        longformer,
        {"heads": 4, "window": 5, "globals": 3, "bias": True, "positions": "none"},
    ),
    Parity("fnet", "transformers FNetBasicFourierTransform", fnet),
)
