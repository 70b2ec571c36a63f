"""Blocks: residual wiring around a mixer and a channel mixer, and stacks of them.

`BLOCKS` is the table of wirings, from a name to the path of the class.
"""

from __future__ import annotations

BLOCKS: dict[str, str] = {
    "pre_norm": "threefold.blocks.block:PreNorm",
    "post_norm": "threefold.blocks.post_norm:PostNorm",
    "deep_norm": "threefold.blocks.post_norm:DeepNorm",
    "plain": "threefold.blocks.plain:Plain",
}

# The names in `blocks/channel.py`, without importing torch; a test compares the two.
CHANNEL_NAMES = ("none", "swiglu", "mlp", "rwkv", "rwkv7")

__all__ = ["BLOCKS", "CHANNEL_NAMES"]
