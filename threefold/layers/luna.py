"""Luna:  P' = attention(P, X, X),  Y = attention(X, P', P'),  P [slots, width] learned.

A few slots read the sequence (pack), then the sequence reads the slots (unpack).
Ma et al. 2021, "Luna: Linear Unified Nested Attention".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.mixer import Mixer
from threefold.memory.attention import attend
from threefold.memory.padding import readable_elements
from threefold.memory.state import State


class Luna(Mixer):
    """Pack and unpack attention, each with its own projections; every layer learns its own slots.

    (The paper also hands the packed slots on to the next layer; here a layer has one input.)  Not
    causal: the slots have read everything.  Parallel only, no state.
    """

    causal = False
    forms = ("parallel",)
    no_decay = ("slots",)

    def __init__(
        self, width: int, *, slots: int = 256, heads: int | None = None, bias: bool = False
    ) -> None:
        super().__init__(width)
        if slots < 1:
            raise ThreefoldError(f"{self.name}: slots is {slots}, expected at least 1")
        self.slots = nn.Parameter(torch.empty(slots, width).normal_(std=width**-0.5))
        self.pack = Heads(width, heads=heads, bias=bias)
        self.unpack = Heads(width, heads=heads, bias=bias)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mask = None
        if lengths is not None:
            mask = readable_elements(lengths, x.shape[1])[:, None, None]
        packed = self.read(self.pack, self.slots.expand(len(x), -1, -1), x, mask)
        return self.read(self.unpack, x, packed, None), {}

    def read(self, heads: Heads, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        """Multi-head attention from x to a source."""
        query, key, value = heads(x, source)
        return heads.join(attend(query, key, value, mask=mask))
