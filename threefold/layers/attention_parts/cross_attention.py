"""Cross-attention:  o_i = Σ_j a_ij v_j,  q_i from x,  k_j and v_j from another sequence.

How a decoder attends to the outputs of the encoder.  A layer, not a mixer: it has two inputs.
Vaswani et al. 2017, "Attention Is All You Need".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.checks import check_dropout
from threefold.layers.heads import split_heads
from threefold.layers.padding import PaddedRows
from threefold.layers.placement import Placed
from threefold.memory import state as states
from threefold.memory.attention import attend, attention_weights
from threefold.memory.padding import readable_elements
from threefold.memory.state import State


class CrossAttention(Placed):
    """Every element of x reads the whole source; its keys and values are the state."""

    def __init__(
        self,
        width: int,
        *,
        source_width: int | None = None,
        heads: int | None = None,
        groups: int | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_dropout("CrossAttention", dropout=dropout)
        self.width = width
        self.source_width = width if source_width is None else source_width
        self.heads = Heads(
            width, source_width=self.source_width, heads=heads, groups=groups, bias=bias
        )
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        source: Tensor | None,
        state: State | None = None,
        source_mask: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """x [B, L, width] and source [B, S, source_width] to (y [B, L, width], state).

        With a state the source is ignored: its keys and values are in the state.
        source_mask [B, S]: True for real elements, contiguous in a row; an empty row gives 0.
        """
        self._check(x, source, state)
        if state is None:
            assert source is not None
            state = self.read_source(source, source_mask)
        query = split_heads(self.heads.query(x), self.heads.heads)
        lengths, keys = state["position"], state["keys"]
        seen = readable_elements(lengths, keys.shape[1])
        mask = None if not seen.is_meta and bool(seen.all()) else seen[:, None, None]
        dropout = self.dropout if self.training else 0.0
        if keys.shape[1] == 0:
            return torch.zeros_like(x), state
        out = attend(query, keys, state["values"], mask=mask, dropout=dropout)
        return self.heads.join(out).masked_fill((lengths == 0).view(-1, 1, 1), 0), state

    def weights(self, x: Tensor, state: State) -> Tensor:
        """The attention weights [B, H, L, S] of x [B, L, width] over the source in the state."""
        query = split_heads(self.heads.query(x), self.heads.heads)
        seen = readable_elements(state["position"], state["keys"].shape[1])
        return attention_weights(query, state["keys"], seen[:, None, None])

    def read_source(self, source: Tensor, source_mask: Tensor | None = None) -> State:
        """The state for a source: its keys and values, and the number of elements per row."""
        rows, length, _ = source.shape
        lengths = torch.full((rows,), length, device=source.device)
        if source_mask is not None:
            aligned = PaddedRows(source_mask, source.shape[:2], "CrossAttention")
            source, lengths = aligned.align(source), aligned.lengths
            source = source[:, : int(lengths.max())]
        keys, values = (
            split_heads(project(source).to(self.dtype), self.heads.groups)
            for project in (self.heads.key, self.heads.value)
        )
        return {"keys": keys, "values": values, "position": lengths}

    def _check(self, x: Tensor, source: Tensor | None, state: State | None) -> None:
        if x.dim() != 3 or x.shape[2] != self.width:
            raise ThreefoldError(
                f"CrossAttention: x is {tuple(x.shape)}, expected [batch, length, {self.width}]"
            )
        if state is not None:
            length = states.history_length(state) if isinstance(state, dict) else 0
            leaf = (length, self.heads.groups, self.heads.size)
            shapes = {"keys": leaf, "values": leaf, "position": ()}
            states.check(state, shapes, len(x), self.dtype, "CrossAttention", self.device)
        elif source is None:
            raise ThreefoldError("CrossAttention: neither a source nor a state was given")
        elif source.dim() != 3 or source.shape[::2] != (len(x), self.source_width):
            raise ThreefoldError(
                f"CrossAttention: source is {tuple(source.shape)}, expected "
                f"[{len(x)}, length, {self.source_width}]"
            )
