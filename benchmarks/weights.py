"""Copy threefold's weights into a peer's model, so that both compute the same function.

Mamba and Mamba-2 have the same parts in all libraries, under different names.
"""

from __future__ import annotations

from torch import nn

from threefold.models.language import LanguageModel

Names = dict[str, str]

# The peer's names below `layers.<n>.mixer.`, and ours below `stack.blocks.<n>.mixer.`.
MAMBA: Names = {
    "in_proj.weight": "input.weight",
    "conv1d.weight": "conv.weight",
    "conv1d.bias": "conv.bias",
    "x_proj.weight": "select.weight",
    "dt_proj.weight": "delta.weight",
    "dt_proj.bias": "delta_bias",
    "A_log": "A_log",
    "D": "D",
    "out_proj.weight": "out.weight",
}
MAMBA2: Names = {
    "in_proj.weight": "input.weight",
    "conv1d.weight": "conv.weight",
    "conv1d.bias": "conv.bias",
    "dt_bias": "delta_bias",
    "A_log": "A_log",
    "D": "D",
    "norm.weight": "norm_weight",
    "out_proj.weight": "out.weight",
}
# Weights outside the layers; the head is tied to the embedding.
OUTSIDE_LAYERS: Names = {
    "embeddings.weight": "embedding.weight",
    "embedding.weight": "embedding.weight",
    "lm_head.weight": "embedding.weight",
    "norm_f.weight": "norm.weight",
}


def our_name(name: str, layer: Names) -> str:
    """Our name for a peer's weight; KeyError if we have no such weight."""
    name = name.removeprefix("backbone.").removeprefix("mamba.")
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    number, _, rest = name.removeprefix("layers.").partition(".")
    if rest == "norm.weight":
        return f"stack.blocks.{number}.mixer_norm.weight"
    return f"stack.blocks.{number}.mixer.{layer[rest.removeprefix('mixer.')]}"


def copy_weights(ours: LanguageModel, peer: nn.Module, layer: Names) -> None:
    """Copy all our weights into `peer`, each reshaped to its shape there."""
    source = ours.state_dict()
    weights, unused = {}, set(source)
    for name, tensor in peer.state_dict().items():
        own_name = our_name(name, layer)
        weights[name] = source[own_name].reshape(tensor.shape)
        unused.discard(own_name)
    if unused:
        raise AssertionError(f"{type(peer).__name__} has no weight for {', '.join(sorted(unused))}")
    peer.load_state_dict(weights)
