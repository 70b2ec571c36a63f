"""Layers of smaller packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from tests.peers.parity import Layer, Parity, load, package
from threefold.layers.mixer import Mixer

Weights = dict[str, Tensor]


def mamba(mixer: Mixer) -> Layer:
    module = package("mambapy.mamba")
    peer = module.MambaBlock(module.MambaConfig(d_model=32, n_layers=1, pscan=False))
    p = mixer.state_dict()
    names = {"in_proj": "input", "x_proj": "select", "out_proj": "out", "conv1d": "conv"}
    return load(
        peer,
        {
            **{f"{theirs}.weight": p[f"{ours}.weight"] for theirs, ours in names.items()},
            **{"conv1d.bias": p["conv.bias"], "A_log": p["A_log"], "D": p["D"]},
            **{"dt_proj.weight": p["delta.weight"], "dt_proj.bias": p["delta_bias"]},
        },
    )


def mlstm(mixer: Mixer) -> Layer:
    module = package("xlstm.blocks.mlstm.layer")
    config = module.mLSTMLayerConfig(embedding_dim=32, num_heads=2, context_length=64)
    peer = module.mLSTMLayer(config)
    # The authors add 1e-6 to the denominator; with 0 it is the paper's equation.
    peer.mlstm_cell.backend_fn = partial(peer.mlstm_cell.backend_fn, eps=0.0)
    p = mixer.state_dict()
    bias, gates = p["gate_bias"].chunk(2), p["gates.weight"].chunk(2)
    return load(
        peer,
        {
            **{f"{n[0]}_proj.weight": p[n].mT for n in ("query", "key", "value")},
            **{"proj_up.weight": p["input.weight"], "proj_down.weight": p["out.weight"]},
            **{"conv1d.conv.weight": p["conv.weight"], "conv1d.conv.bias": p["conv.bias"]},
            **{"mlstm_cell.igate.weight": gates[0], "mlstm_cell.igate.bias": bias[0]},
            **{"mlstm_cell.fgate.weight": gates[1], "mlstm_cell.fgate.bias": bias[1]},
            "mlstm_cell.outnorm.weight": p["norm_weight"] - 1,
            "learnable_skip": p["skip"],
        },
    )


def slstm(mixer: Mixer) -> Layer:
    module = package("xlstm.blocks.slstm.layer")
    config = module.sLSTMLayerConfig(
        embedding_dim=32, num_heads=2, backend="vanilla", dtype="float32",
        enable_automatic_mixed_precision=False,
    )  # fmt: skip
    p = mixer.state_dict()
    z, o = p["write.weight"].mT.chunk(2, 1)
    i, f = p["gates.weight"].mT.chunk(2, 1)
    recurrent = p["recurrent"].unflatten(1, (4, -1)).unbind(1)
    biases = (p[name].view(2, 2, -1).unbind(1) for name in ("write.bias", "gates.bias"))
    (z_bias, o_bias), (i_bias, f_bias) = biases
    # Their order: i, f, z, o; the layer calls the matrix of i `fgate`, that of f `igate`.
    order = (1, 2, 0, 3)
    return load(
        module.sLSTMLayer(config),
        {
            **{"conv1d.conv.weight": p["conv.weight"], "conv1d.conv.bias": p["conv.bias"]},
            **{"fgate.weight": i, "igate.weight": f, "zgate.weight": z, "ogate.weight": o},
            "slstm_cell._recurrent_kernel_": torch.cat([recurrent[g] for g in order], 1),
            "slstm_cell._bias_": torch.cat([b.flatten() for b in (i_bias, f_bias, z_bias, o_bias)]),
            "group_norm.weight": p["norm_weight"] - 1,
        },
    )


def minimal(names: tuple[str, ...], peer: Any, key: str, mixer: Mixer) -> Layer:
    """minGRU and minLSTM have no biases, and read out only where they expand."""
    p = mixer.state_dict()
    for name in names:
        p[f"{name}.bias"].zero_()
    weight = torch.cat([p[f"{name}.weight"] for name in names])
    return load(peer, {f"{key}.weight": weight, "to_out.weight": p["out.weight"]})


def min_gru(mixer: Mixer) -> Layer:
    peer = package("minGRU_pytorch.minGRU").minGRU(32, expansion_factor=2.0)
    return minimal(("candidate", "update"), peer, "to_hidden_and_gate", mixer)


def min_lstm(mixer: Mixer) -> Layer:
    peer = package("minGRU_pytorch.minLSTM").minLSTM(32, expansion_factor=2.0)
    return minimal(("candidate", "forget", "write"), peer, "to_hidden_and_f_i_gate", mixer)


def s5(mixer: Mixer) -> Layer:
    """The state space itself; the gated read-out around it is that of the paper."""
    module, p = package("s5.s5_model"), mixer.state_dict()
    poles = torch.complex(-torch.exp(p["decay_log"]), p["frequency"])
    one = torch.eye(len(poles), dtype=torch.complex64)
    peer = module.S5SSM(poles, one, one, 32, len(poles), 0.001, 0.1, bcInit="dense")
    conjugate = torch.complex(*p["read.weight"].chunk(2, 1)).conj()
    load(
        peer,
        {
            "Lambda": poles,
            "B": torch.stack(p["input.weight"].chunk(2), -1),
            **{"C": 2 * conjugate, "D": p["skip"], "log_step": p["delta_log"]},
        },
    )

    def run(x: Tensor) -> Tensor:
        y = nn.functional.gelu(torch.stack([peer(row) for row in x]))
        return y * torch.sigmoid(y @ p["gate.weight"].T + p["gate.bias"])

    return run


def linformer(mixer: Mixer) -> Layer:
    peer = package("linformer.linformer").LinformerSelfAttention(32, 24, k=6, heads=4)
    p = mixer.state_dict()
    return load(
        peer,
        {
            **{f"to_{n[0]}.weight": p[f"heads.{n}.weight"] for n in ("query", "key", "value")},
            **{"proj_k": p["mix_keys"].T, "proj_v": p["mix_values"].T},
            **{
                "to_out.weight": p["heads.out.weight"],
                "to_out.bias": torch.zeros_like(p["mix_keys"][0, :1]).expand(32),
            },
        },
    )


def performer(mixer: Mixer) -> Layer:
    module = package("performer_pytorch.performer_pytorch")
    p = mixer.state_dict()
    count = p["random"].shape[1]
    peer = module.SelfAttention(32, heads=4, dim_head=8, nb_features=count, qkv_bias=True)
    p["random"].copy_(p["random"][:1].clone())  # theirs is one for all heads
    names = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out": "out"}
    kinds = ("weight", "bias")
    load(peer, {f"{t}.{k}": p[f"heads.{o}.{k}"] for t, o in names.items() for k in kinds})
    peer.fast_attention.projection_matrix = p["random"][0]
    return peer


def rwkv_module() -> Any:
    """The authors' package with RWKV-7; compiled, it would be fixed to float32."""
    switches = {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    plain = {"script": _same, "script_method": _same, "ScriptModule": nn.Module}
    with mock.patch.dict(os.environ, switches), mock.patch.multiple(torch.jit, **plain):
        return package("rwkv.model")


def _same(function: Any) -> Any:
    return function


def rwkv7_weights(p: Weights) -> Weights:
    """The weights of a time mixing under the authors' names."""
    maps = {"w": "decay_{}", "a": "rate_{}", "v": "residual.{}"}
    kinds = ("bias", "down", "up")
    low_rank = {f"{t}{i}": o.format(k) for t, o in maps.items() for i, k in enumerate(kinds)}
    linear = {"receptance": "query", "key": "key", "value": "value", "output": "out"}
    scales = {"k_k": "erase_scale", "k_a": "write_scale", "r_k": "bonus"}
    names = {**low_rank, **scales, "g1": "gate_down", "g2": "gate_up"}
    return {
        **{f"x_{t}": share for t, share in zip("rwkvag", p["shares"], strict=True)},
        **{theirs: p[ours] for theirs, ours in names.items() if ours in p},
        **{f"{theirs}.weight": p[f"{ours}.weight"] for theirs, ours in linear.items()},
        **{f"ln_x.{kind}": p[f"norm.{kind}"].flatten() for kind in ("weight", "bias")},
    }


def rwkv7(mixer: Mixer) -> Layer:
    """The time mixing of the authors' package, in its first layer."""
    function = rwkv_module().RWKV_x070_TMix_seq
    p = rwkv7_weights(mixer.state_dict())
    heads, size = p["r_k"].shape
    low_rank = [f"{name}{i}" for name in "wav" for i in range(3)]
    order = [*(f"x_{name}" for name in "rwkvag"), *low_rank, "g1", "g2", "k_k", "k_a"]
    weights = [*(p.get(name) for name in order), p["r_k"].flatten()]
    weights += [p[f"{name}.weight"].T for name in ("receptance", "key", "value", "output")]
    weights += [p["ln_x.weight"], p["ln_x.bias"]]

    def run(x: Tensor) -> Tensor:
        empty = x.new_zeros(heads, size, size)
        rows = [
            function(0, heads, size, row, torch.zeros_like(row[0]), None, empty, *weights)[0]
            for row in x
        ]
        return torch.stack(rows)

    return run


def rwkv7_model(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The authors' whole model, which gets the weights of a language model for those of a file."""
    p = model.state_dict()
    weights = {"emb.weight": p["embedding.weight"], "head.weight": p["head.weight"]}
    norms = {"blocks.0.ln0": "embedding.norm", "ln_out": "norm"}
    for layer in range(len(model.stack.blocks)):
        ours, theirs = f"stack.blocks.{layer}.", f"blocks.{layer}."
        norms |= {f"{theirs}ln1": f"{ours}mixer_norm", f"{theirs}ln2": f"{ours}channel_norm"}
        time = model.stack.blocks[layer].mixer.state_dict()
        weights |= {f"{theirs}att.{name}": w for name, w in rwkv7_weights(time).items()}
        names = {"x_k": "shares", "key.weight": "key.weight", "value.weight": "out.weight"}
        weights |= {f"{theirs}ffn.{t}": p[f"{ours}channel.{o}"] for t, o in names.items()}
    kinds = ("weight", "bias")
    weights |= {f"{theirs}.{k}": p[f"{ours}.{k}"] for theirs, ours in norms.items() for k in kinds}
    with mock.patch.object(torch, "load", return_value=weights):
        peer = rwkv_module().RWKV_x070("a language model", "cpu fp32")
    return lambda tokens: torch.stack([peer(row.tolist(), None, True)[0] for row in tokens])


CASES = (
    Parity("mamba", "mambapy MambaBlock", mamba),
    Parity("mlstm", "xlstm mLSTMLayer", mlstm, {"heads": 2}),
    Parity("slstm", "xlstm sLSTMLayer", slstm, {"heads": 2}),
    Parity("min_gru", "minGRU-pytorch minGRU", min_gru, {"expand": 2}),
    Parity("min_lstm", "minGRU-pytorch minLSTM", min_lstm, {"expand": 2}),
    Parity("s5", "s5-pytorch S5SSM", s5, {"state_size": 32}),
    Parity(
        "linformer",
        "linformer LinformerSelfAttention",
        linformer,
        {"heads": 4, "rank": 6, "max_length": 24},
    ),
    Parity(
        "performer",
        "performer-pytorch SelfAttention",
        performer,
        {"heads": 4, "causal": False, "positions": "none", "bias": True, "eps": 1e-4},
    ),
    Parity(
        "rwkv7",
        "rwkv RWKV_x070_TMix_seq",
        rwkv7,
        {"heads": 2, "ranks": (5, 6, 4, 7), "eps": 64e-5},
        reason="the authors round e^{−1/2} to six digits",
    ),
)
