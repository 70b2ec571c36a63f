"""Local attention:  o_i = Σ_j a_ij v_j,  a_i = softmax_j(q_iᵀ k_j/√K),  i − window < j ≤ i.

Attention to the last `window` elements only: time grows with the length, the state does not.
Beltagy et al. 2020, "Longformer: The Long-Document Transformer" (its sliding window).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from threefold.layers.attention import Attention
from threefold.layers.mixer import Mixer, Plan
from threefold.memory.state import State


class LocalAttention(Mixer):
    """A sliding window; with causal=False the elements less than `window` away on both sides.

    Causal: step, chunk and parallel; the state is the last window − 1 keys and values.  Not causal:
    parallel, no state.  The other options are those of `attention`.
    """

    def __init__(
        self,
        width: int,
        *,
        window: int = 128,
        heads: int | None = None,
        groups: int | None = None,
        causal: bool = True,
        positions: str = "rotary",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        self.attention = Attention(
            width,
            heads=heads,
            groups=groups,
            causal=causal,
            window=window,
            positions=positions,
            bias=bias,
            dropout=dropout,
        )
        self.causal, self.forms = self.attention.causal, self.attention.forms

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return self.attention.state_shapes(length)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        plan = Plan(form, lengths, state_checked=True)
        return self.attention(x, state, plan=plan)  # type: ignore[no-any-return]
