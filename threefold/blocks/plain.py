"""x ← mixer(x),  x ← channel(x): layers stacked as recurrent networks first were, no residual.

Nothing carries the input past a layer, so it suits few layers.
El Hihi & Bengio 1995, "Hierarchical Recurrent Neural Networks for Long-Term Dependencies".
"""

from __future__ import annotations

from torch import Tensor, nn

from threefold.blocks.block import Block
from threefold.layers.mixer import Mixer


class Plain(Block):
    """y = f(x), without a norm and without a way around."""

    def __init__(
        self, mixer: Mixer, channel: Mixer | None = None, *, depth: int = 1, dropout: float = 0.0
    ) -> None:
        super().__init__(mixer, channel, depth=depth, dropout=dropout)
        self.mixer_norm, self.channel_norm = nn.Identity(), nn.Identity()  # type: ignore[assignment]

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        return y
