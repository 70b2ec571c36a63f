"""One training step of a small Mamba language model: loss and all gradients, no optimiser.

"Matrix products alone" are three per weight: one of the forward pass and two of the backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Comparison, Contender, max_ratio, min_speedup
from benchmarks.weights import MAMBA, our_name


def threefold(model: Any, tokens: Tensor, targets: Tensor) -> Contender:
    parameters = [parameter for _, parameter in sorted(model.named_parameters())]

    def run() -> list[Tensor]:
        loss = F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten())
        return [loss, *torch.autograd.grad(loss, parameters)]

    return run


def mambapy(peer: Any, tokens: Tensor, targets: Tensor) -> Contender:
    """A step of mambapy, with gradients in threefold's order and shapes."""
    named = {our_name(name, MAMBA): parameter for name, parameter in peer.named_parameters()}
    parameters = [named[name] for name in sorted(named)]

    def run() -> list[Tensor]:
        loss = F.cross_entropy(peer(tokens).flatten(0, 1), targets.flatten())
        gradients = torch.autograd.grad(loss, parameters)
        # mambapy's convolution weights have the shape [D, 1, taps].
        return [loss, *(g.squeeze(1) if g.dim() == 3 else g for g in gradients)]

    return run


def comparison(shape: mamba.Shape, batch: int, length: int, rounds: int) -> Comparison:
    """One training step on random tokens."""
    model = mamba.threefold_model(shape).train()
    tokens, targets = torch.randint(0, shape.vocabulary, (2, batch, length))
    competing = {
        name: mambapy(peer.train(), tokens, targets)
        for name, peer in mamba.peer_models(model, "mambapy").items()
    }
    products = mamba.training_products(model, batch * length)
    return Comparison(
        f"{shape.name}, training step of {batch} × {length} tokens",
        {
            "threefold": threefold(model, tokens, targets),
            **mamba.both_products(products),
            **competing,
        },
        rounds=rounds,
        targets=(max_ratio(1.45, mamba.PRODUCTS), min_speedup(7, "mambapy")),
        unchecked=(mamba.PRODUCTS, mamba.TORCH_PRODUCTS),
        slow=tuple(competing),
    )


def run() -> Iterator[Comparison]:
    """Width 256, 4 layers, 4 rows of 512."""
    yield comparison(mamba.SMALL, 4, 512, rounds=13)


def quick() -> Iterator[Comparison]:
    """Two narrow layers."""
    yield comparison(mamba.TINY, 2, 16, rounds=2)
