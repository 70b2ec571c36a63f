"""Weights of other libraries: a table from our names to theirs, and a spec from their config.

    ours                              theirs
    stack.blocks.*.mixer.heads.query  layers.*.self_attn.q_proj    * is the index of the layer,
                                                                   several in their order
    stack.blocks.*.mixer.heads.key    h.*.attn.c_attn#1/3          the second of three equal chunks

A name without its last component stands for weight and bias.  Only safetensors files are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.models.files import read_tensors
from threefold.models.model import Model
from threefold.models.presets import bert, gpt2, llama, vit
from threefold.models.pretrained.configs import ACTIVATION_NAMES, refuse_unusual
from threefold.models.pretrained.images import RESNET_NAMES, SWIN_NAMES, resnet_spec, swin_spec
from threefold.models.pretrained.xlnet import XLNET_NAMES, xlnet_matrices, xlnet_spec
from threefold.models.saving import unique_tensors
from threefold.models.spec import Spec
from threefold.models.table import build


@dataclass(frozen=True)
class WeightLayout:
    """How another library names and stores the weights of one kind of model."""

    names: Mapping[str, str]
    prefix: str = ""  # of all names but that of the head, in models with a head
    transposed: tuple[str, ...] = ()  # modules whose matrices are stored as [inputs, outputs]
    ignored: str = r"(?!)"  # pattern of names that are not weights
    reshaped: str = r"(?!)"  # pattern of names stored in another shape, in the same order
    spec: Callable[[Mapping[str, Any]], Spec] | None = None
    # Applied to all tensors first, where they are no matrices [outputs, inputs].
    prepare: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = dict


def load_transformers(folder: str | PathLike[str]) -> Model:
    """Load a folder of `transformers` (config.json and safetensors) as a model in eval mode."""
    path = Path(folder)
    config = _read_config(path)
    layout = LAYOUTS[config["model_type"]]
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ThreefoldError(
            f"{path}: contains no safetensors file; convert the weights to safetensors"
        )
    tensors = {name: t for file in files for name, t in read_tensors(file)[0].items()}
    assert layout.spec is not None  # every layout in LAYOUTS has one
    with torch.random.fork_rng(devices=[]):  # every weight is replaced
        model = build(layout.spec(config))
    load_weights(model, tensors, layout, str(path))
    return model.eval()


def load_weights(
    model: Model, tensors: Mapping[str, Tensor], layout: WeightLayout, owner: str
) -> None:
    """Copy the tensors of another library into a model; names and shapes must match exactly."""
    prepared = layout.prepare(tensors)
    available = {name.removeprefix(layout.prefix): tensor for name, tensor in prepared.items()}
    used: set[str] = set()
    with torch.no_grad():
        for name, target in unique_tensors(model).items():
            source = _translate(name, layout, owner)
            tensor, part = _take(available, source, layout, owner, name)
            if re.search(layout.reshaped, part) and tensor.numel() == target.numel():
                tensor = tensor.reshape(target.shape)
            if tensor.shape != target.shape:
                raise ThreefoldError(
                    f"{owner}: {part} is {tuple(tensor.shape)}, expected {tuple(target.shape)} for "
                    f"{name}; these are not the weights of this config"
                )
            used.add(part)
            target.copy_(tensor)
    # A tied head may be stored twice.
    tied = {layout.names["head"] + ".weight"} if "head" in layout.names else set()
    unused = [n for n in available if n not in used | tied and not re.search(layout.ignored, n)]
    if unused:
        shown = ", ".join(sorted(unused)[:3]) + (", …" if len(unused) > 3 else "")
        raise ThreefoldError(
            f"{owner}: has unknown {shown}; these are not the weights of this kind of model"
        )


def _translate(name: str, layout: WeightLayout, owner: str) -> str:
    """The name of one of our parameters in the other library."""
    numbers = re.findall(r"\.(\d+)(?=\.)", name)
    starred = re.sub(r"\.\d+(?=\.)", ".*", name)
    module, _, kind = starred.rpartition(".")
    if starred in layout.names:
        source = layout.names[starred]
    elif module in layout.names:
        theirs, hash_, part = layout.names[module].partition("#")
        source = (theirs.format(kind=kind) if "{kind}" in theirs else f"{theirs}.{kind}") + hash_
        source += part
    else:
        raise ThreefoldError(f"{owner}: the layout has no counterpart for {name}")
    for number in numbers:
        source = source.replace("*", number, 1)
    return source


def _take(
    available: Mapping[str, Tensor], source: str, layout: WeightLayout, owner: str, name: str
) -> tuple[Tensor, str]:
    """The tensor, or the chunk of it, that `source` names, and its name without the chunk."""
    theirs, _, part = source.partition("#")
    if theirs not in available:
        raise ThreefoldError(
            f"{owner}: {theirs} is missing (our {name}); {nearest(theirs, available)}"
        )
    tensor = available[theirs]
    if tensor.dim() == 2 and any(f".{module}." in theirs for module in layout.transposed):
        tensor = tensor.T
    if part:
        index, count = map(int, part.split("/"))
        tensor = tensor.chunk(count)[index]
    return tensor, theirs


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ThreefoldError(f"{path}: cannot be read ({error})") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in LAYOUTS:
        raise ThreefoldError(f"{path}: unknown model_type {kind!r}; {nearest(str(kind), LAYOUTS)}")
    return dict(config)


# ------------------------------------------------------------------------------- the table


def _gpt2_spec(config: Mapping[str, Any]) -> Spec:
    usual = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    refuse_unusual("gpt2", config, usual)
    activation = config.get("activation_function", "gelu_new")
    return gpt2(
        width=config["n_embd"],
        depth=config["n_layer"],
        heads=config["n_head"],
        vocabulary=config["vocab_size"],
        max_length=config["n_positions"],
        hidden=config.get("n_inner"),
        activation=ACTIVATION_NAMES.get(activation, activation),
        eps=config.get("layer_norm_epsilon", 1e-5),
        dropout=config.get("resid_pdrop", 0.1),
        tie=config.get("tie_word_embeddings", True),
    )


def _llama_spec(config: Mapping[str, Any]) -> Spec:
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    refuse_unusual("llama", config, {"hidden_act": "silu", "mlp_bias": False, "pretraining_tp": 1})
    refuse_unusual("llama", rotary, {"rope_type": "default"})
    return llama(
        width=config["hidden_size"],
        depth=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        groups=config.get("num_key_value_heads"),
        head_size=config.get("head_dim"),
        vocabulary=config["vocab_size"],
        hidden=config["intermediate_size"],
        eps=config.get("rms_norm_eps", 1e-6),
        rotary_base=rotary.get("rope_theta", config.get("rope_theta", 10_000.0)),
        bias=config.get("attention_bias", False),
        tie=config.get("tie_word_embeddings", False),
    )


def _bert_spec(config: Mapping[str, Any]) -> Spec:
    usual = {"position_embedding_type": "absolute", "is_decoder": False}
    refuse_unusual("bert", config, {**usual, "add_cross_attention": False})
    heads = {"BertModel": (False, True), "BertForMaskedLM": (True, False)}
    name = (config.get("architectures") or ["BertModel"])[0]
    if name not in {*heads, "BertForPreTraining"}:
        raise ThreefoldError(f"bert: unknown architecture {name!r}; {nearest(str(name), heads)}")
    lm_head, pooler = heads.get(name, (True, True))
    return bert(
        vocabulary=config["vocab_size"],
        max_length=config.get("max_position_embeddings", 512),
        segments=config.get("type_vocab_size", 2),
        dropout=config.get("hidden_dropout_prob", 0.1),
        lm_head=lm_head,
        pooler=pooler,
        **_encoder_settings(config),
    )


def _encoder_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that BERT and ViT have under the same names and with the same defaults."""
    activation = config.get("hidden_act", "gelu")
    return {
        "width": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "hidden": config["intermediate_size"],
        "activation": ACTIVATION_NAMES.get(activation, activation),
        "eps": config.get("layer_norm_eps", 1e-12),
    }


def _vit_spec(config: Mapping[str, Any]) -> Spec:
    refuse_unusual("vit", config, {"qkv_bias": True})
    names = ("ViTModel", "ViTForImageClassification")
    name = (config.get("architectures") or ["ViTModel"])[0]
    if name not in names:
        raise ThreefoldError(f"vit: unknown architecture {name!r}; {nearest(str(name), names)}")
    size = config.get("image_size", 224)
    return vit(
        image=(size, size) if isinstance(size, int) else tuple(size),
        channels=config.get("num_channels", 3),
        patch=config.get("patch_size", 16),
        classes=len(config.get("id2label") or "01") if name == names[1] else 0,
        dropout=config.get("hidden_dropout_prob", 0.0),
        **_encoder_settings(config),
    )


def _blocks(parts: Mapping[str, str], theirs: str, ours: str = "stack.blocks.*.") -> dict[str, str]:
    return {ours + mine: theirs + name for mine, name in parts.items()}


GPT2 = WeightLayout(
    {
        "embedding": "wte",
        "embedding.positions.table": "wpe.weight",
        "norm": "ln_f",
        "head": "lm_head",
        **_blocks(
            {
                "mixer_norm": "ln_1",
                "mixer.heads.query": "attn.c_attn#0/3",
                "mixer.heads.key": "attn.c_attn#1/3",
                "mixer.heads.value": "attn.c_attn#2/3",
                "mixer.heads.out": "attn.c_proj",
                "channel_norm": "ln_2",
                "channel.input": "mlp.c_fc",
                "channel.out": "mlp.c_proj",
            },
            "h.*.",
        ),
    },
    prefix="transformer.",
    transposed=("c_attn", "c_proj", "c_fc"),
    ignored=r"\.attn\.(masked_)?bias$",
    spec=_gpt2_spec,
)

LLAMA = WeightLayout(
    {
        "embedding": "embed_tokens",
        "norm": "norm",
        "head": "lm_head",
        **_blocks(
            {
                "mixer_norm": "input_layernorm",
                "mixer.heads.query": "self_attn.q_proj",
                "mixer.heads.key": "self_attn.k_proj",
                "mixer.heads.value": "self_attn.v_proj",
                "mixer.heads.out": "self_attn.o_proj",
                "channel_norm": "post_attention_layernorm",
                "channel.gate": "mlp.gate_proj",
                "channel.input": "mlp.up_proj",
                "channel.out": "mlp.down_proj",
            },
            "layers.*.",
        ),
    },
    prefix="model.",
    ignored=r"rotary_emb\.inv_freq$",
    spec=_llama_spec,
)


BERT = WeightLayout(
    {
        "embedding": "embeddings.word_embeddings",
        "embedding.positions.table": "embeddings.position_embeddings.weight",
        "embedding.norm": "embeddings.LayerNorm",
        "segments": "embeddings.token_type_embeddings",
        "pooler": "pooler.dense",
        "transform": "cls.predictions.transform.dense",
        "transform_norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        **_blocks(
            {
                "mixer.heads.query": "attention.self.query",
                "mixer.heads.key": "attention.self.key",
                "mixer.heads.value": "attention.self.value",
                "mixer.heads.out": "attention.output.dense",
                "mixer_norm": "attention.output.LayerNorm",
                "channel.input": "intermediate.dense",
                "channel.out": "output.dense",
                "channel_norm": "output.LayerNorm",
            },
            theirs="encoder.layer.*.",
        ),
    },
    prefix="bert.",
    # The decoder is the tied embedding; next-sentence prediction is not supported.
    ignored=r"position_ids$|predictions\.decoder\.|seq_relationship",
    spec=_bert_spec,
)

VIT = WeightLayout(
    {
        "embedding": "embeddings.patch_embeddings.projection",
        "embedding.positions.table": "embeddings.position_embeddings",
        "token": "embeddings.cls_token",
        "norm": "layernorm",
        "head": "classifier",
        **_blocks(
            {
                "mixer_norm": "layernorm_before",
                "mixer.heads.query": "attention.attention.query",
                "mixer.heads.key": "attention.attention.key",
                "mixer.heads.value": "attention.attention.value",
                "mixer.heads.out": "attention.output.dense",
                "channel_norm": "layernorm_after",
                "channel.input": "intermediate.dense",
                "channel.out": "output.dense",
            },
            theirs="encoder.layer.*.",
        ),
    },
    prefix="vit.",
    ignored=r"^pooler\.|mask_token$",
    reshaped=r"projection\.weight$|position_embeddings$|cls_token$",
    spec=_vit_spec,
)


def _torch_layers(side: str) -> dict[str, str]:
    """The names of the blocks of the encoder or the decoder in torch.nn.Transformer."""
    attentions = {
        "mixer": "self_attn",
        **({"cross": "multihead_attn"} if side == "decoder" else {}),
    }
    names = {"channel.input": "linear1", "channel.out": "linear2"}
    for ours, theirs in attentions.items():
        heads = f"{ours}.attention.heads" if ours == "cross" else f"{ours}.heads"
        for index, part in enumerate(("query", "key", "value")):
            names[f"{heads}.{part}"] = f"{theirs}.in_proj_{{kind}}#{index}/3"
        names[f"{heads}.out"] = f"{theirs}.out_proj"
    for index, ours in enumerate([*attentions, "channel"], 1):
        names[f"{ours}_norm"] = f"norm{index}"
    return _blocks(names, f"{side}.layers.*.", f"{side}.blocks.*.")


# For torch.nn.Transformer, which has neither embeddings nor a head.
TORCH = WeightLayout(
    {
        **_torch_layers("encoder"),
        **_torch_layers("decoder"),
        "encoder_norm": "encoder.norm",
        "norm": "decoder.norm",
        "embedding": "embedding",
        "source_embedding": "source_embedding",
        "head": "head",
    }
)

RESNET = WeightLayout(RESNET_NAMES, "resnet.", spec=resnet_spec)
SWIN = WeightLayout(
    SWIN_NAMES,
    "swin.",
    ignored=r"relative_position_index$|mask_token$",
    reshaped=r"projection\.weight$",
    spec=swin_spec,
)

XLNET = WeightLayout(XLNET_NAMES, "transformer.", spec=xlnet_spec, prepare=xlnet_matrices)

LAYOUTS: dict[str, WeightLayout] = {
    **{"gpt2": GPT2, "llama": LLAMA, "bert": BERT, "vit": VIT, "xlnet": XLNET},
    **{"resnet": RESNET, "swin": SWIN},
}
