"""q, k, v = split(W x),  y = W_o join(o): the four projections around every kind of attention."""

from __future__ import annotations

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear


class Heads(nn.Module):
    """Queries in `heads`, keys and values in `groups`, of a source of width `source_width`."""

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        groups: int | None = None,
        head_size: int | None = None,
        source_width: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if head_size is None:
            self.heads = choose_heads(width, heads, 64)
            head_size = width // self.heads
        else:
            self.heads = max(1, width // head_size) if heads is None else heads
        self.groups = self.heads if groups is None else groups
        if self.groups < 1 or self.heads % self.groups:
            raise ThreefoldError(
                f"{self.groups} groups of keys and values do not divide {self.heads} heads; "
                f"choose among {[g for g in range(1, self.heads + 1) if self.heads % g == 0]}"
            )
        self.size = head_size
        self.query = Linear(width, self.heads * head_size, bias=bias)
        source = width if source_width is None else source_width
        self.key = Linear(source, self.groups * head_size, bias=bias)
        self.value = Linear(source, self.groups * head_size, bias=bias)
        self.out = Linear(self.heads * head_size, width, bias=bias)
        for module in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, source: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, L, width] to query [B, L, H, size], x or a source to key, value [B, L, G, size]."""
        source = x if source is None else source
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(source), self.groups)
        return query, key, split_heads(self.value(source), self.groups)

    def join(self, out: Tensor) -> Tensor:
        """[B, L, H, size] to [B, L, width]."""
        joined: Tensor = self.out(out.flatten(-2))
        return joined
