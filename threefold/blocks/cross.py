"""y_i = Σ_j a_ij v_j over an encoded source: cross-attention as a part of a block.

Its state is the source, as keys and values computed once; it never grows.
Vaswani et al. 2017, "Attention Is All You Need".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.layers.attention_parts.cross_attention import CrossAttention
from threefold.layers.mixer import Mixer
from threefold.memory.padding import real_elements
from threefold.memory.state import State


class Cross(Mixer):
    """Every element attends to the source in the state; the empty state gives 0."""

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        groups: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        self.attention = CrossAttention(
            width, heads=heads, groups=groups, bias=bias, dropout=dropout
        )

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row for a source of `length` elements."""
        leaf = (length, self.attention.heads.groups, self.attention.heads.size)
        return {"keys": leaf, "values": leaf, "position": ()}

    def read_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state for a source [B, M, width] aligned at 0, with `lengths` per row."""
        # A view of its own: gradients of keys and values are added here before those of other
        # layers, in one order, whether or not FSDP puts a node of its own in between.
        source = source.view_as(source)
        if lengths is None:
            return self.attention.read_source(source)
        return self.attention.read_source(source, real_elements(lengths, source.shape[1]))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        return self.attention(x, None, state)  # type: ignore[no-any-return]
