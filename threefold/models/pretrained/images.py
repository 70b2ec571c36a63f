"""ResNet and Swin in transformers: names of the weights, and the spec of a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from threefold.errors import ThreefoldError, nearest
from threefold.models.image_layers import ResidualRow
from threefold.models.image_networks import NETWORKS, ImageNetwork
from threefold.models.presets import image_network, swin
from threefold.models.pretrained.configs import refuse_unusual
from threefold.models.spec import Spec

_CONVOLUTION = {"convolution": "convolution", "norm": "normalization"}
_BLOCK = "encoder.stages.*.layers.*."
RESNET_NAMES = {
    **{f"stem.*.{ours}": f"embedder.embedder.{theirs}" for ours, theirs in _CONVOLUTION.items()},
    **{f"stages.*.*.parts.*.{a}": f"{_BLOCK}layer.*.{b}" for a, b in _CONVOLUTION.items()},
    **{f"stages.*.*.shortcut.{a}": f"{_BLOCK}shortcut.{b}" for a, b in _CONVOLUTION.items()},
    "head.*": "classifier.*",
}

_PARTS = {
    "mixer_norm": "layernorm_before",
    "mixer.heads.query": "attention.self.query",
    "mixer.heads.key": "attention.self.key",
    "mixer.heads.value": "attention.self.value",
    "mixer.heads.out": "attention.output.dense",
    "mixer.bias": "attention.self.relative_position_bias_table",
    "channel_norm": "layernorm_after",
    "channel.input": "intermediate.dense",
    "channel.out": "output.dense",
}
SWIN_NAMES = {
    "embedding": "embeddings.patch_embeddings.projection",
    "embedding_norm": "embeddings.norm",
    **{f"stages.*.blocks.*.{a}": f"encoder.layers.*.blocks.*.{b}" for a, b in _PARTS.items()},
    "stages.*.merging.norm": "encoder.layers.*.downsample.norm",
    "stages.*.merging.reduction": "encoder.layers.*.downsample.reduction",
    "norm": "layernorm",
    "head": "classifier",
}


def resnet_spec(config: Mapping[str, Any]) -> Spec:
    """The spec of a config of one of the published networks, at any width and depth."""
    usual = {"hidden_act": "relu", "downsample_in_first_stage": False}
    refuse_unusual("resnet", config, {**usual, "downsample_in_bottleneck": False})
    width, sizes, depths = (config[n] for n in ("embedding_size", "hidden_sizes", "depths"))
    bottleneck = config.get("layer_type", "bottleneck") == "bottleneck"
    asked = [(bottleneck, size * 64, count) for size, count in zip(sizes, depths, strict=True)]
    for name, network in NETWORKS.items():
        if asked and asked == _stages(network, width)[: len(asked)]:
            classes = _classes(config, "ResNet")
            channels = config.get("num_channels", 3)
            spec = image_network(name, width=width, depth=len(asked), classes=classes)
            return Spec(
                spec.kind, width, spec.depth, options={**spec.options, "channels": channels}
            )
    raise ThreefoldError(
        f"resnet: depths {depths} and hidden_sizes {sizes} with embedding_size {width}; only those "
        "of ResNet-18, 34, 50, 101 and 152, at any width, are supported"
    )


def _stages(network: ImageNetwork, width: int) -> list[tuple[bool, int, int]]:
    """Of residual blocks by stage: whether they have an inner size, 64 · channels, and number."""
    rows = [rows[0] for rows in network.stages]
    return [
        (row.inner > 0, row.channels * width, len(stage))
        for row, stage in zip(rows, network.stages, strict=True)
        if isinstance(row, ResidualRow) and row.groups == 1
    ]


def swin_spec(config: Mapping[str, Any]) -> Spec:
    """The spec of a config; what only transformers has is refused."""
    usual = {"qkv_bias": True, "use_absolute_embeddings": False, "hidden_act": "gelu"}
    sizes = {"mlp_ratio": 4.0, "layer_norm_eps": 1e-5, "attention_probs_dropout_prob": 0.0}
    refuse_unusual("swin", config, {**usual, **sizes})
    depths, heads = config["depths"], config["num_heads"]
    if list(heads) != [heads[0] * 2**stage for stage in range(len(depths))]:
        raise ThreefoldError(f"swin: num_heads is {heads}; only doubled heads are supported")
    size = config.get("image_size", 224)
    return swin(
        width=config["embed_dim"],
        blocks=depths,
        heads=heads[0],
        image=(size, size) if isinstance(size, int) else tuple(size),
        channels=config.get("num_channels", 3),
        patch=config.get("patch_size", 4),
        window=config.get("window_size", 7),
        classes=_classes(config, "Swin"),
    )


def _classes(config: Mapping[str, Any], prefix: str) -> int:
    """The number of classes; 0 for a model without a head."""
    names: Sequence[str] = (f"{prefix}Model", f"{prefix}ForImageClassification")
    name = (config.get("architectures") or [names[0]])[0]
    if name not in names:
        raise ThreefoldError(
            f"{prefix.lower()}: unknown architecture {name!r}; {nearest(str(name), names)}"
        )
    return len(config.get("id2label") or "01") if name == names[1] else 0
