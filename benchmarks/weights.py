"""Our weights in a peer's model, so that both compute the same function.

Mamba and Mamba-2 have the same parts everywhere, under other names.
"""

from __future__ import annotations

from torch import nn

from threefold.models.language import LanguageModel

Names = dict[str, str]

# Theirs, below `layers.<n>.mixer.`, and ours, below `stack.blocks.<n>.mixer.`.
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
# Around the layers; the head is tied to the embedding.
AROUND: Names = {
    "embeddings.weight": "embedding.weight",
    "embedding.weight": "embedding.weight",
    "lm_head.weight": "embedding.weight",
    "norm_f.weight": "norm.weight",
}


def ours_of(name: str, layer: Names) -> str:
    """Our name of a peer's weight; one that we do not have is an error."""
    name = name.removeprefix("backbone.").removeprefix("mamba.")
    if name in AROUND:
        return AROUND[name]
    number, _, rest = name.removeprefix("layers.").partition(".")
    if rest == "norm.weight":
        return f"stack.blocks.{number}.mixer_norm.weight"
    return f"stack.blocks.{number}.mixer.{layer[rest.removeprefix('mixer.')]}"


def give(ours: LanguageModel, peer: nn.Module, layer: Names) -> None:
    """Give `peer` our weights, each in the shape it has there, and all of them."""
    mine = ours.state_dict()
    given, left = {}, set(mine)
    for name, tensor in peer.state_dict().items():
        source = ours_of(name, layer)
        given[name] = mine[source].reshape(tensor.shape)
        left.discard(source)
    if left:
        raise AssertionError(f"{type(peer).__name__} has no place for {', '.join(sorted(left))}")
    peer.load_state_dict(given)
