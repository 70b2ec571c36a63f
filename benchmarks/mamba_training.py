"""Loss and all gradients of a small Mamba language model: forward and backward, no optimiser.

The matrix products alone are three for each weight: the forward's, and the backward's two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Contender, Race, at_least, at_most
from benchmarks.weights import MAMBA, ours_of


def threefold(model: Any, tokens: Tensor, targets: Tensor) -> Contender:
    wanted = dict(sorted(model.named_parameters()))

    def run() -> list[Tensor]:
        loss = F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten())
        return [loss, *torch.autograd.grad(loss, list(wanted.values()))]

    return run


def mambapy(peer: Any, tokens: Tensor, targets: Tensor) -> Contender:
    """Gradients in the order and shapes of ours."""
    named = {ours_of(name, MAMBA): parameter for name, parameter in peer.named_parameters()}
    wanted = [named[name] for name in sorted(named)]

    def run() -> list[Tensor]:
        loss = F.cross_entropy(peer(tokens).flatten(0, 1), targets.flatten())
        gradients = torch.autograd.grad(loss, wanted)
        # Its convolution has weights [D, 1, taps].
        return [loss, *(g.squeeze(1) if g.dim() == 3 else g for g in gradients)]

    return run


def race(shape: mamba.Shape, batch: int, length: int, rounds: int) -> Race:
    """One training step on random tokens."""
    model = mamba.ours(shape).train()
    tokens, targets = torch.randint(0, shape.vocabulary, (2, batch, length))
    found = {
        name: mambapy(peer.train(), tokens, targets)
        for name, peer in mamba.others(model, "mambapy").items()
    }
    products = mamba.training_products(model, batch * length)
    return Race(
        f"{shape.name}, training step of {batch} × {length} tokens",
        {"threefold": threefold(model, tokens, targets), mamba.PRODUCTS: products, **found},
        rounds=rounds,
        targets=(at_most(2.5, mamba.PRODUCTS), at_least(7, "mambapy")),
        apart=(mamba.PRODUCTS,),
        seldom=tuple(found),
    )


def run() -> Iterator[Race]:
    """Width 256, 4 layers, 4 rows of 512."""
    yield race(mamba.SMALL, 4, 512, rounds=13)


def quick() -> Iterator[Race]:
    """Two narrow layers."""
    yield race(mamba.TINY, 2, 16, rounds=2)
