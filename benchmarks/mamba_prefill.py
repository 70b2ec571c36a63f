"""Prefill of 1,024 tokens with the Mamba-130M shape, in three libraries.

Everything except the matrix products should cost at most 0.15 of them. Peers loop over the elements
in torch, or use a tree-shaped parallel scan. Seven times as fast as transformers is asked of memory
as it comes; with memory kept, which helps its large temporary tensors, 3.5 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Comparison, Contender, max_ratio, min_speedup


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


def comparison(shape: mamba.Shape, length: int, rounds: int) -> Comparison:
    """One row of `length` tokens."""
    model = mamba.threefold_model(shape)
    tokens = torch.randint(1, shape.vocabulary, (1, length))

    @torch.no_grad()
    def threefold() -> list[Tensor]:
        return [model(tokens, last=True)[0]]

    makers = {"transformers": transformers, "mambapy": mambapy}
    competing = {
        n: makers[n](peer, tokens) for n, peer in mamba.peer_models(model, *makers).items()
    }
    products = mamba.forward_products(model, length, 1)
    return Comparison(
        f"{shape.name}, prefill of {length:,} tokens",
        {"threefold": threefold, **mamba.both_products(products), **competing},
        rounds=rounds,
        targets=(max_ratio(1.15, mamba.PRODUCTS), min_speedup(7, "transformers")),
        unchecked=(mamba.PRODUCTS, mamba.TORCH_PRODUCTS),
        slow=tuple(competing),
    )


def run() -> Iterator[Comparison]:
    """The published shape."""
    yield comparison(mamba.MAMBA_130M, 1024, rounds=4)


def quick() -> Iterator[Comparison]:
    """The same with a model of two narrow layers."""
    yield comparison(mamba.TINY, 32, rounds=2)
