"""x ← mixer(x),  x ← channel(x): layers without residual connections, as in early stacked RNNs.

Nothing carries the input past a layer, so it suits only a few layers.
El Hihi & Bengio 1995, "Hierarchical Recurrent Neural Networks for Long-Term Dependencies".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from threefold.blocks.block import Block
from threefold.layers.mixer import Mixer


class Plain(Block):
    """y = f(x), without a norm and without a residual connection."""

    def __init__(
        self,
        mixer: Mixer,
        channel: Mixer | None = None,
        *,
        cross: Mixer | None = None,
        depth: int = 1,
        dropout: float = 0.0,
        final_norm: bool | None = None,
    ) -> None:
        options: dict[str, Any] = {"cross": cross, "depth": depth, "final_norm": final_norm}
        super().__init__(mixer, channel, dropout=dropout, **options)
        self.mixer_norm = self.cross_norm = self.channel_norm = nn.Identity()

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        return y
