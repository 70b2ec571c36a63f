"""score(s, h): how well a query s matches an element h of the source.  Six kinds.

    content    s·h / |s||h|             general      sᵀ W h
    additive   vᵀ tanh(W [s; h])        dot          sᵀ h
    location   (W s)_j, position j      scaled_dot   sᵀ h / √n

What does not depend on the query is computed once (`prepare`) and can be kept in a state.
Graves et al. 2014 (content); Bahdanau et al. 2014 (additive); Luong et al. 2015 (location, general,
dot); Vaswani et al. 2017 (scaled dot).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.norms import l2_normalize


class Score(nn.Module, ABC):
    """Scores [B, L, M] of queries [B, L, query_size] against a source [B, M, source_size]."""

    key_size: int  # numbers kept per element of the source

    def __init__(self, query_size: int, source_size: int) -> None:
        super().__init__()
        for name, size in (("query_size", query_size), ("source_size", source_size)):
            if size < 1:
                raise ThreefoldError(f"{type(self).__name__}: {name} is {size}, expected 1 or more")
        self.key_size = source_size

    def prepare(self, source: Tensor) -> Tensor:
        """Keys [B, M, key_size]: what does not depend on the query."""
        return source

    @abstractmethod
    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, L, M] of queries [B, L, query_size] against prepared keys."""


class DotProduct(Score):
    """sᵀ h, for s and h of the same size."""

    def __init__(self, query_size: int, source_size: int) -> None:
        super().__init__(query_size, source_size)
        if query_size != source_size:
            raise ThreefoldError(
                f"{type(self).__name__}: query_size is {query_size}, source_size "
                f"{source_size}; expected the same size, or the score 'general' or 'additive'"
            )

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT


class ScaledDot(DotProduct):
    """sᵀ h / √n."""

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT / math.sqrt(query.shape[-1])


class Content(DotProduct):
    """The cosine of the angle between s and h; 0 where one of them is 0."""

    def prepare(self, source: Tensor) -> Tensor:
        return l2_normalize(source).to(source.dtype)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return l2_normalize(query).to(query.dtype) @ keys.mT


class General(Score):
    """sᵀ W h."""

    def __init__(self, query_size: int, source_size: int) -> None:
        super().__init__(query_size, source_size)
        self.project = Linear(source_size, query_size, bias=False)
        self.key_size = query_size

    def prepare(self, source: Tensor) -> Tensor:
        keys: Tensor = self.project(source)
        return keys

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT


class Additive(Score):
    """vᵀ tanh(W [s; h] + b), with `hidden` units; W is stored as its two halves."""

    def __init__(self, query_size: int, source_size: int, *, hidden: int | None = None) -> None:
        super().__init__(query_size, source_size)
        self.key_size = query_size if hidden is None else hidden
        self.of_query = Linear(query_size, self.key_size, bias=False)
        self.of_source = Linear(source_size, self.key_size)
        self.vector = Linear(self.key_size, 1, bias=False)

    def prepare(self, source: Tensor) -> Tensor:
        keys: Tensor = self.of_source(source)
        return keys

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        both = self.of_query(query).unsqueeze(2) + keys.unsqueeze(1)
        scores: Tensor = self.vector(torch.tanh(both)).squeeze(-1)
        return scores


class Location(Score):
    """(W s)_j for position j, independent of its content; for up to `max_length` elements."""

    def __init__(self, query_size: int, source_size: int, *, max_length: int) -> None:
        super().__init__(query_size, source_size)
        if max_length < 1:
            raise ThreefoldError(
                f"Location: max_length is {max_length}; it has weights per position, so give the "
                "longest source, e.g. max_length=64"
            )
        self.max_length, self.key_size = max_length, 0
        self.places = Linear(query_size, max_length, bias=False)

    def prepare(self, source: Tensor) -> Tensor:
        if source.shape[1] > self.max_length:
            raise ThreefoldError(
                f"Location: a source of {source.shape[1]} elements; there are weights for "
                f"max_length={self.max_length} positions"
            )
        return source[..., :0]

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        scores: Tensor = self.places(query)[..., : keys.shape[1]]
        return scores


SCORES: dict[str, type[Score]] = {
    "content": Content,
    "additive": Additive,
    "location": Location,
    "general": General,
    "dot": DotProduct,
    "scaled_dot": ScaledDot,
}


def score(name: str, query_size: int, source_size: int, *, max_length: int = 0) -> Score:
    """Make a score by name; `max_length` is for `location`, which has weights per position."""
    if name not in SCORES:
        raise ThreefoldError(f"unknown score {name!r}; {nearest(name, SCORES)}")
    if name == "location":
        return Location(query_size, source_size, max_length=max_length)
    return SCORES[name](query_size, source_size)
