"""Logits after 1,024 tokens of the published Mamba-130M shape, in three libraries.

All but the matrix products is to cost no more than 0.3 of them. Peers loop over the elements, or
scan them in a tree, in torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Contender, Race, at_least, at_most


def transformers(peer: Any, tokens: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [peer(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]]

    return run


def mambapy(peer: Any, tokens: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [peer(tokens, last=True)]

    return run


def race(shape: mamba.Shape, length: int, rounds: int) -> Race:
    """One row of `length` tokens."""
    model = mamba.ours(shape)
    tokens = torch.randint(1, shape.vocabulary, (1, length))

    @torch.no_grad()
    def threefold() -> list[Tensor]:
        return [model(tokens, last=True)[0]]

    makers = {"transformers": transformers, "mambapy": mambapy}
    found = {n: makers[n](peer, tokens) for n, peer in mamba.others(model, *makers).items()}
    products = mamba.forward_products(model, length, 1)
    return Race(
        f"{shape.name}, prefill of {length:,} tokens",
        {"threefold": threefold, mamba.PRODUCTS: products, **found},
        rounds=rounds,
        targets=(at_most(1.3, mamba.PRODUCTS), at_least(6, "transformers")),
        apart=(mamba.PRODUCTS,),
        seldom=tuple(found),
    )


def run() -> Iterator[Race]:
    """The published shape."""
    yield race(mamba.PUBLISHED, 1024, rounds=4)


def quick() -> Iterator[Race]:
    """The same with a model of two narrow layers."""
    yield race(mamba.TINY, 32, rounds=2)
