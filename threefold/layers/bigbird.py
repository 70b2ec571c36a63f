"""BigBird:  o_i = Σ_j a_ij v_j,  j in the blocks that i's block reads: global, nearby and random.

Attention on a sparse graph of blocks in which every pair of elements is two steps apart.
Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.mixer import Mixer
from threefold.memory.attention import attend
from threefold.memory.padding import real_elements
from threefold.memory.state import State

# Random blocks are drawn for this many blocks of queries; after them the pattern repeats.
PATTERN = 4096
# Draws are integers, fractions of 2^BITS, so that the dtype of the weights does not round them.
BITS = 31


class BigBird(Mixer):
    """Blocks of `block` elements: the first `globals`, `window` around each, and `random` others.

    Global blocks are read by all and read all (the paper's internal construction, with the first
    blocks as global ones).  Random blocks are one from each of `random` equal parts of the rest, so
    they are distinct; they are drawn at construction and by `redraw`, and all heads share them.
    Not causal, as published.  Parallel only, no state.
    """

    causal = False
    forms = ("parallel",)

    def __init__(
        self,
        width: int,
        *,
        block: int = 64,
        window: int = 3,
        globals: int = 2,
        random: int = 3,
        heads: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        if block < 1 or window < 1 or window % 2 == 0 or globals < 0 or random < 0:
            raise ThreefoldError(
                f"{self.name}: block={block}, window={window}, globals={globals}, random={random}; "
                "expected block ≥ 1, an odd window of blocks, and globals, random ≥ 0"
            )
        self.block, self.window, self.globals = block, window, globals
        self.heads = Heads(width, heads=heads, bias=bias)
        self.draws: Tensor
        self.register_buffer("draws", torch.empty(PATTERN, random, dtype=torch.int64))
        self.redraw()

    def redraw(self) -> None:
        """Draw new random blocks."""
        self.draws.random_(0, 1 << BITS)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        rows, length, _ = x.shape
        if lengths is None:
            lengths = torch.full((rows,), length, device=x.device)
        lengths = lengths.clamp(min=1)
        count = -(-length // self.block)
        query, key, value = (
            F.pad(part, (0, 0, 0, 0, 0, count * self.block - length)) for part in self.heads(x)
        )
        real = real_elements(lengths, count * self.block)
        blocks, valid = self.pattern(-(-lengths // self.block), count)
        seen = self.gather(real, blocks) & valid.repeat_interleave(self.block, -1)
        # Blocks of padding must read something; their outputs are dropped.
        seen = (seen | ~seen.any(-1, keepdim=True)).flatten(0, 1)
        sources = (self.gather(part, blocks).flatten(0, 1) for part in (key, value))
        queries = torch.unflatten(query, 1, (count, self.block)).flatten(0, 1)
        out = attend(queries, *sources, mask=seen[:, None, None])
        out = torch.unflatten(out, 0, (rows, count)).flatten(1, 2)
        readers = min(self.globals * self.block, length)
        if readers:
            whole = attend(query[:, :readers], key, value, mask=real[:, None, None])
            out = torch.cat([whole, out[:, readers:]], 1)
        return self.heads.join(out[:, :length]), {}

    def pattern(self, counts: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Blocks [B, count, S] that each block reads, and which are valid in rows of `counts`."""
        here = torch.arange(count, device=counts.device).view(1, -1, 1)
        ends, half = counts.view(-1, 1, 1), self.window // 2
        first = torch.arange(self.globals, device=counts.device).expand(len(counts), count, -1)
        nearby = here + torch.arange(-half, half + 1, device=counts.device)
        nearby = nearby.expand(len(counts), -1, -1)
        # Random blocks: from the global blocks to the window, and from the window to the end.
        before = (here - half - self.globals).clamp(min=0)
        before = before.minimum((ends - self.globals).clamp(min=0))
        after = (here + half + 1).clamp(min=self.globals)
        left = before + (ends - after).clamp(min=0)
        draws = self.draws[torch.arange(count, device=counts.device) % len(self.draws)]
        parts = torch.arange(draws.shape[-1] + 1, device=counts.device) * left
        parts = parts // max(draws.shape[-1], 1)
        low, size = parts[..., :-1], parts.diff(dim=-1)
        pick = low + ((draws * size) >> BITS)
        far = torch.where(pick < before, pick + self.globals, pick - before + after)
        blocks = torch.cat([first, nearby, far], -1)
        valid = torch.cat([first >= 0, nearby >= self.globals, size > 0], -1)
        valid = valid & (blocks >= 0) & (blocks < ends)
        return blocks.clamp(0, count - 1), valid

    def gather(self, x: Tensor, blocks: Tensor) -> Tensor:
        """Blocks [B, count, S] of x [B, L, …], as [B, count, S · block, …]."""
        split = torch.unflatten(x, 1, (-1, self.block))
        rows = torch.arange(len(x), device=x.device).view(-1, 1, 1)
        return split[rows, blocks].flatten(2, 3)
