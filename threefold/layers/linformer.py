"""Linformer:  o_i = Σ_r a_ir (F V)_r,  a_i = softmax_r(q_iᵀ (E K)_r/√K),  E, F [rank, max_length].

Keys and values are mixed down to `rank` of them by learned matrices over the positions.
Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity".
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


class Linformer(Mixer):
    """One E and one F for all heads (the paper's headwise sharing); longer sequences are refused.

    Not causal: a mixture of positions contains later elements.  Parallel only, no state.  Shorter
    sequences use the first columns of E and F.
    """

    causal = False
    forms = ("parallel",)

    def __init__(
        self,
        width: int,
        *,
        rank: int = 128,
        max_length: int = 4096,
        heads: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        if rank < 1 or max_length < 1:
            raise ThreefoldError(
                f"{self.name}: rank is {rank} and max_length {max_length}, expected at least 1"
            )
        self.heads = Heads(width, heads=heads, bias=bias)
        bound = max_length**-0.5
        self.mix_keys = nn.Parameter(torch.empty(rank, max_length).uniform_(-bound, bound))
        self.mix_values = nn.Parameter(torch.empty(rank, max_length).uniform_(-bound, bound))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        length, limit = x.shape[1], self.mix_keys.shape[1]
        longest = length if lengths is None else max(lengths.tolist(), default=0)
        if longest > limit:
            raise ThreefoldError(
                f"{self.name}: {longest} elements, but max_length={limit}; give fewer, or make the "
                "mixer with a larger max_length"
            )
        query, key, value = self.heads(x)
        if lengths is not None:
            real = readable_elements(lengths, length)[:, :, None, None]
            key, value = key * real, value * real
        used = min(length, limit)
        key, value = (
            torch.einsum("rl,blhk->brhk", weight[:, :used], source[:, :used])
            for weight, source in ((self.mix_keys, key), (self.mix_values, value))
        )
        return self.heads.join(attend(query, key, value)), {}
