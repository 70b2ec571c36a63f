"""Reformer:  o_i = Σ_j a_ij v_j,  k = q/|q|,  j ≠ i in the bucket h(q_j) = h(q_i),
h(x) = argmax[x R; −x R] with R random:  near vectors fall into one bucket.

Elements are sorted by bucket and read in chunks; several rounds of hashing make misses rare.
Kitaev et al. 2020, "Reformer: The Efficient Transformer".
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.heads import split_heads
from threefold.layers.mixer import Mixer
from threefold.layers.norms import l2_normalize
from threefold.layers.precision import upcast
from threefold.memory.padding import real_elements
from threefold.memory.state import State

# The score of an element with itself, which matters only if it has no other (the authors' value),
# and with elements that it must not read.
SELF, NEVER = -1e5, -1e9


class Round(NamedTuple):
    """One round of hashing: bucket, chunk, sort order and its inverse per element, [B, H, L]."""

    bucket: Tensor
    chunk: Tensor
    order: Tensor
    rank: Tensor


class Reformer(Mixer):
    """LSH attention: queries are keys, `rounds` hashings; a chunk reads the previous one too.

    Weights as in the paper: over the union of all rounds, so a pair that occurs in several rounds
    counts once.  Rotations are drawn at construction and by `redraw`.  Not causal: where a
    chunk starts depends on how many elements, later ones included, are in the buckets before it.
    Parallel only, no state.
    """

    causal = False
    forms = ("parallel",)

    def __init__(
        self,
        width: int,
        *,
        buckets: int = 64,
        chunk: int = 64,
        rounds: int = 4,
        heads: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        if chunk < 1 or rounds < 1 or buckets < 1 or (buckets > 1 and buckets % 2):
            raise ThreefoldError(
                f"{self.name}: buckets={buckets}, chunk={chunk}, rounds={rounds}; expected an even "
                "number of buckets, or 1, and at least one element and one round"
            )
        made = Heads(width, heads=heads, bias=bias)
        self.heads, self.chunk, self.buckets = made.heads, chunk, buckets
        self.query, self.value, self.out = made.query, made.value, made.out
        self.rotations: Tensor
        shape = (rounds, self.heads, made.size, buckets // 2)
        self.register_buffer("rotations", torch.empty(shape))
        self.redraw()

    def redraw(self) -> None:
        """Draw new rotations."""
        self.rotations.normal_()

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        rows, length, _ = x.shape
        missing = -length % self.chunk
        if lengths is None:
            lengths = torch.full((rows,), length, device=x.device)
        real = real_elements(lengths, length + missing)
        query, value = (
            F.pad(upcast(split_heads(f(x), self.heads)).transpose(1, 2), (0, 0, 0, missing))
            for f in (self.query, self.value)
        )
        rounds = [self.hash(query, real, rotation) for rotation in upcast(self.rotations)]
        outputs, weights = zip(
            *(self.attend(query, value, one, rounds) for one in rounds), strict=True
        )
        share = torch.stack(weights).softmax(0).unsqueeze(-1)
        out = (torch.stack(outputs) * share).sum(0)[:, :, :length]
        return self.out(out.transpose(1, 2).flatten(-2).to(x.dtype)), {}

    def hash(self, query: Tensor, real: Tensor, rotation: Tensor) -> Round:
        """Buckets of query [B, H, L, K], and the order by bucket, then by position."""
        length = query.shape[2]
        bucket = torch.zeros(query.shape[:3], dtype=torch.int64, device=query.device)
        if self.buckets > 1:
            turned = query.detach() @ rotation
            bucket = torch.cat([turned, -turned], -1).argmax(-1)
        bucket = bucket.masked_fill(~real.unsqueeze(1), self.buckets)
        order = (bucket * length + torch.arange(length, device=query.device)).argsort(-1)
        rank = order.argsort(-1)
        # Pairs are compared by bucket and chunk: narrow integers halve the cost.
        return Round(bucket.int(), (rank // self.chunk).int(), order, rank)

    def attend(
        self, query: Tensor, value: Tensor, here: Round, rounds: list[Round]
    ) -> tuple[Tensor, Tensor]:
        """Outputs [B, H, L, K] of one round, and the logarithms of the sums of its weights."""
        query, value = (_pick(source, here.order) for source in (query, value))
        queries, values = self.split(query), self.split(value)
        scores = queries * query.shape[-1] ** -0.5 @ _with_last(self.split(l2_normalize(query))).mT
        element = self.split(here.order)
        itself = element.unsqueeze(-1) == _with_last(element, -1).unsqueeze(-2)
        shown = self.shows(here, here)
        times = sum(self.shows(one, here).to(scores.dtype) for one in rounds)
        scores = scores - torch.as_tensor(times).clamp(min=1).log()
        scores = scores.masked_fill(itself, SELF).masked_fill(~shown, NEVER)
        total = scores.logsumexp(-1)
        out = (scores - total.unsqueeze(-1)).exp() @ _with_last(values)
        return _pick(out.flatten(2, 3), here.rank), total.flatten(2).gather(-1, here.rank)

    def shows(self, one: Round, here: Round) -> Tensor:
        """Which pairs of elements of the chunks `here` meet in the hashing `one`."""
        bucket, chunk = (self.split(x.gather(-1, here.order)) for x in (one.bucket, one.chunk))
        near = chunk.unsqueeze(-1) - _with_last(chunk, -9).unsqueeze(-2)
        same = bucket.unsqueeze(-1) == _with_last(bucket, -1).unsqueeze(-2)
        return same & ((near == 0) | (near == 1)) & (bucket < self.buckets).unsqueeze(-1)

    def split(self, x: Tensor) -> Tensor:
        """[B, H, L, …] in chunks [B, H, L/chunk, chunk, …]."""
        return torch.unflatten(x, 2, (-1, self.chunk))


def _with_last(x: Tensor, fill: float = 0) -> Tensor:
    """Each chunk of [B, H, n, chunk, …] after the previous one; `fill` before the first."""
    first = torch.full_like(x[:, :, :1], fill)
    return torch.cat([torch.cat([first, x[:, :, :-1]], 2), x], 3)


def _pick(x: Tensor, order: Tensor) -> Tensor:
    """Elements of [B, H, L, K] in another order."""
    return x.gather(2, order.unsqueeze(-1).expand_as(x))
