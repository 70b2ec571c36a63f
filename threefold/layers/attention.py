"""Attention:  o_i = Σ_j a_ij v_j,  a_i = softmax_j(q_iᵀ k_j/√K),  j ≤ i, in H heads.

Every element reads all elements before it, so the state is the past itself and grows with it.
Vaswani et al. 2017, "Attention Is All You Need".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.checks import check_dropout
from threefold.layers.mixer import Mixer
from threefold.layers.positions import make_positions
from threefold.memory.attention import attention_weights, visibility_mask
from threefold.memory.history import AttentionInputs, FullHistory, History, NonCausal, SlidingWindow
from threefold.memory.state import State


class Attention(Mixer):
    """Multi-head attention; with fewer `groups` than heads grouped-query, with one multi-query.

    window: an element reads the last `window` elements only, itself included.
    causal=False: it reads the whole sequence (or all less than `window` away), without a state.
    positions: none, sinusoidal, learned (up to max_length), binary, rotary, alibi or relative.
    dropout: on the attention weights, in training.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        groups: int | None = None,
        head_size: int | None = None,
        causal: bool = True,
        window: int | None = None,
        positions: str = "rotary",
        rotary_base: float = 10_000.0,
        max_length: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        check_dropout(self.name, dropout=dropout)
        self.heads = Heads(width, heads=heads, groups=groups, head_size=head_size, bias=bias)
        self.positions = make_positions(
            positions,
            width,
            self.heads.heads,
            rotary_base=rotary_base,
            max_length=max_length,
            causal=causal,
        )
        self.dropout, self.window = dropout, window
        self.history = choose_history(causal, window, self.name)
        if not causal:
            self.causal, self.forms = False, ("parallel",)

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return self.history.shapes(length, self.heads.groups, self.heads.size)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        start = state.get("position")
        if start is None:
            start = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        query, key, value = self.heads(self.positions(x, start, lengths))
        query, key = self.positions.rotate(query, key, start)
        dropout = self.dropout if self.training else 0.0
        read = AttentionInputs(query, key, value, form, lengths, self.positions.bias, dropout)
        out, state = self.history.run(read, state)
        return self.heads.join(out), state

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights [B, H, L, L] of x [B, L, width], without a past and padding."""
        start = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        query, key, _ = self.heads(self.positions(x, start, None))
        query, key = self.positions.rotate(query, key, start)
        places = torch.arange(x.shape[1], device=x.device)
        distance = places.unsqueeze(1) - places
        reach = x.shape[1] if self.window is None else self.window
        seen = (distance < reach) & (distance > (-1 if self.causal else -reach))
        mask = visibility_mask(seen, distance, self.positions.bias, query.dtype)
        return attention_weights(query, key, mask)


def choose_history(causal: bool, window: int | None, owner: str) -> History:
    """The whole past or its last `window` elements; both sides if not causal."""
    if window is not None and window < 1:
        raise ThreefoldError(f"{owner}: window is {window}, expected at least 1 element")
    if not causal:
        return NonCausal(window)
    return FullHistory() if window is None else SlidingWindow(window)
