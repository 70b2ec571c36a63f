"""XLNet in transformers: names of the weights, their layout, and the spec of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.models.presets import xlnet
from threefold.models.pretrained.configs import ACTIVATION_NAMES, refuse_unusual
from threefold.models.spec import Spec

_PARTS = {
    "mixer.heads.query.weight": "rel_attn.q",
    "mixer.heads.key.weight": "rel_attn.k",
    "mixer.heads.value.weight": "rel_attn.v",
    "mixer.heads.out.weight": "rel_attn.o",
    "mixer.distance.weight": "rel_attn.r",
    "mixer.content_bias": "rel_attn.r_w_bias",
    "mixer.distance_bias": "rel_attn.r_r_bias",
    "mixer.segment_bias": "rel_attn.r_s_bias",
    "mixer.segments": "rel_attn.seg_embed",
    "mixer_norm": "rel_attn.layer_norm",
    "channel.input": "ff.layer_1",
    "channel.out": "ff.layer_2",
    "channel_norm": "ff.layer_norm",
}
XLNET_NAMES = {
    "embedding": "word_embedding",
    "query": "mask_emb",
    "head": "lm_loss",
    "bias": "lm_loss.bias",
    **{f"stack.blocks.*.{ours}": f"layer.*.{theirs}" for ours, theirs in _PARTS.items()},
}
USUAL = {
    **{"attn_type": "bi", "bi_data": False, "clamp_len": -1, "same_length": False},
    "tie_word_embeddings": True,
}


def xlnet_spec(config: Mapping[str, Any]) -> Spec:
    """The spec of a config; what only transformers has is refused."""
    refuse_unusual("xlnet", config, USUAL)
    names = ("XLNetModel", "XLNetLMHeadModel")
    name = (config.get("architectures") or ["XLNetModel"])[0]
    if name not in names:
        raise ThreefoldError(f"xlnet: unknown architecture {name!r}; {nearest(str(name), names)}")
    if not config.get("mem_len") or config.get("reuse_len"):
        raise ThreefoldError(
            f"xlnet: mem_len is {config.get('mem_len')}, reuse_len {config.get('reuse_len')}; only "
            "a memory of at least 1 token, and of all of a piece, is supported"
        )
    activation = config.get("ff_activation", "gelu")
    return xlnet(
        width=config["d_model"],
        depth=config["n_layer"],
        heads=config["n_head"],
        vocabulary=config["vocab_size"],
        memory=config["mem_len"],
        hidden=config["d_inner"],
        activation=ACTIVATION_NAMES.get(activation, activation),
        eps=config.get("layer_norm_eps", 1e-12),
        dropout=config.get("dropout", 0.1),
        lm_head=name == names[1],
    )


def xlnet_matrices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights [width, heads, size] as matrices [outputs, inputs], and the vector w as a vector.

    Their waves are all sines, then all cosines; ours alternate.
    """
    changed = dict(tensors)
    for name, tensor in tensors.items():
        part = name.rpartition(".rel_attn.")[2]
        if part in ("q", "k", "v"):
            changed[name] = tensor.flatten(1).T
        elif part == "r":
            waves = torch.arange(len(tensor)).reshape(2, -1).T.flatten()
            changed[name] = tensor.flatten(1).T[:, waves]
        elif part == "o":
            changed[name] = tensor.flatten(1)
        elif name.endswith("mask_emb"):
            changed[name] = tensor.flatten()
    return changed
