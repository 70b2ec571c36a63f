"""Based:  y = linear(x) + window(x),  linear: φ(q)·φ(k) = 1 + s + s²/2 ≈ eˢ,  s = q·k/√K.

A Taylor expansion of softmax remembers everything roughly, a short window recent elements exactly.
Arora et al. 2024, "Simple Linear Attention Language Models Balance the Recall-Throughput Tradeoff".
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from threefold.layers.linear_attention import LinearAttention
from threefold.layers.local_attention import LocalAttention
from threefold.layers.mixer import Mixer, Plan
from threefold.memory.state import State


class Based(Mixer):
    """Both published mixers on the same input, their outputs added.

    (The paper alternates layers of the two; so does a stack of `linear_attention` with polynomial
    features and `local_attention`.)  Causal: step, chunk and parallel.  State: one matrix per head
    of 1 + F + F (F + 1)/2 features, F = `key_size`, and the last window − 1 keys and values.
    """

    remembers: ClassVar[str] = "adds up all elements, and none of them fades"

    def __init__(
        self, width: int, *, heads: int | None = None, key_size: int = 16, window: int = 64
    ) -> None:
        super().__init__(width)
        self.linear = LinearAttention(
            width, heads=heads, key_size=key_size, feature_map="polynomial"
        )
        self.local = LocalAttention(width, heads=heads, window=window)
        self.carries(**self.linear.state_shapes(0), **self.local.state_shapes(0))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        plan = Plan(form, lengths, state_checked=True)
        window = {name: leaf for name, leaf in state.items() if name != "memory"}
        everything, memory = self.linear(x, {"memory": state["memory"]}, plan=plan)
        nearby, window = self.local(x, window, plan=plan)
        return everything + nearby, {**memory, **window}
