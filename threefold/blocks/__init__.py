"""Blocks: residual wiring around a mixer and a channel mixer, and stacks of them.

`BLOCKS` is the table of wirings: a name, and where its class is.
"""

from __future__ import annotations

BLOCKS: dict[str, str] = {
    "pre_norm": "threefold.blocks.block:PreNorm",
    "post_norm": "threefold.blocks.post_norm:PostNorm",
    "deep_norm": "threefold.blocks.post_norm:DeepNorm",
    "plain": "threefold.blocks.plain:Plain",
}

# What `blocks/channel.py` offers, readable without torch; a test holds the two together.
CHANNEL_NAMES = ("none", "swiglu", "mlp", "rwkv")

__all__ = ["BLOCKS", "CHANNEL_NAMES"]
