"""Longformer:  o_i = Σ_j a_ij v_j,  |i − j| < window or j global;  a global i reads all j.

A window on both sides for most elements; a few that read all and are read by all join the far ends.
Beltagy et al. 2020, "Longformer: The Long-Document Transformer".
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.checks import check_dropout
from threefold.layers.heads import split_heads
from threefold.layers.mixer import Mixer
from threefold.layers.positions import make_positions
from threefold.memory.attention import attend
from threefold.memory.history import AttentionInputs, attend_band
from threefold.memory.padding import readable_elements
from threefold.memory.state import State


class Longformer(Mixer):
    """Local and global attention: the first `globals` elements of a sequence are global ones.

    The others read the elements less than `window` away and the global ones, by one softmax.
    Global elements read the whole sequence, with queries, keys and values of their own projections,
    which start equal to the local ones.  The paper chooses global elements by the task: the first
    for classification, or those of a question, which a sequence must therefore begin with here.
    Published windows of w elements are window = w/2 + 1; there is no dilation.  positions: as in
    `attention`, but alibi and relative.  Not causal: parallel only, no state; `local_attention` is.
    """

    causal = False
    forms = ("parallel",)

    def __init__(
        self,
        width: int,
        *,
        window: int = 128,
        globals: int = 1,
        heads: int | None = None,
        positions: str = "rotary",
        max_length: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        check_dropout(self.name, dropout=dropout)
        if window < 1 or globals < 1:
            raise ThreefoldError(
                f"{self.name}: window={window}, globals={globals}; expected at least 1 of each "
                "(without global elements it is local_attention with causal=False)"
            )
        if positions in ("alibi", "relative"):
            raise ThreefoldError(
                f"{self.name}: positions={positions!r} are biases of scores; expected none, "
                "sinusoidal, learned, binary or rotary"
            )
        self.window, self.globals, self.dropout = window, globals, dropout
        self.heads = Heads(width, heads=heads, bias=bias)
        self.positions = make_positions(
            positions,
            width,
            self.heads.heads,
            rotary_base=10_000.0,
            max_length=max_length,
            causal=False,
        )
        self.global_query, self.global_key, self.global_value = (
            copy.deepcopy(local) for local in (self.heads.query, self.heads.key, self.heads.value)
        )

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        start = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        x = self.positions(x, start, lengths)
        query, key, value = self.heads(x)
        query, key = self.positions.rotate(query, key, start)
        dropout = self.dropout if self.training else 0.0
        read = AttentionInputs(query, key, value, form, lengths, None, dropout)
        out = attend_band(read, self.window, shared=self.globals)
        first = self.read_all(x, start, lengths, dropout)
        return self.heads.join(torch.cat([first, out[:, first.shape[1] :]], 1)), {}

    def read_all(self, x: Tensor, start: Tensor, lengths: Tensor | None, dropout: float) -> Tensor:
        """The outputs of the global elements [B, globals, H, size]."""
        query, key, value = (
            split_heads(project(part), self.heads.heads)
            for project, part in (
                (self.global_query, x[:, : self.globals]),
                (self.global_key, x),
                (self.global_value, x),
            )
        )
        query, key = self.positions.rotate(query, key, start)
        mask = None if lengths is None else readable_elements(lengths, x.shape[1])[:, None, None]
        return attend(query, key, value, mask=mask, dropout=dropout)
