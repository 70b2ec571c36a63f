"""One decoded token of the Mamba-130M shape beside the reading of its weights, which bounds it.

Both take turns in one run, so their ratio holds on a busy machine too. The reading is torch's sum
over as many bytes as the model's weights have, with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Contender, Race, at_least, at_most
from threefold.kernels import library, ops
from threefold.memory.state import State
from threefold.models.language import LanguageModel

# inputs × outputs: Mamba-130M's input projection, output projection, and head.
SIZES = [(768, 3072), (1536, 768), (768, 50280)]
ROUNDS = 40
READING = "reading the weights once"


def products(inputs: int, outputs: int, dtype: torch.dtype) -> Race:
    """One row times matrices that together are larger than every cache."""
    count = max(1, 160_000_000 // (inputs * outputs * dtype.itemsize))
    weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(count)]
    x = torch.randn(1, inputs).to(dtype)

    def ours() -> list[Tensor]:
        with torch.no_grad():
            return [ops.linear(x, weight) for weight in weights]

    def plain() -> list[Tensor]:
        with torch.no_grad():
            return [F.linear(x, weight) for weight in weights]

    read = reading(sum(weight.nbytes for weight in weights))
    return Race(
        f"{count} products of one row, {inputs} × {outputs}, {dtype}",
        {"threefold": ours, READING: read, "F.linear": plain},
        rounds=ROUNDS,
        apart=(READING,),
    )


def reading(size: int) -> Contender:
    """Read `size` bytes once, with torch's sum."""
    buffer = torch.zeros(size // 4)

    def run() -> list[Tensor]:
        buffer.sum()
        return []

    return run


def threefold(model: LanguageModel, token: Tensor) -> Contender:
    """One token after another, each after the state that the last one left."""
    state: State | None = None

    @torch.no_grad()
    def run() -> list[Tensor]:
        nonlocal state
        logits, state = model.step(token, state)
        return [logits]

    return run


def reference(model: LanguageModel, token: Tensor) -> Contender:
    native = threefold(model, token)

    def run() -> Iterable[Tensor]:
        with library.using("reference"):
            return native()

    return run


def transformers(peer: Any, token: Tensor) -> Contender:
    """Its cache is changed in place."""
    cache: Any = None

    @torch.no_grad()
    def run() -> list[Tensor]:
        nonlocal cache
        out = peer(token.unsqueeze(1), cache_params=cache, use_cache=True)
        cache = out.cache_params
        return [out.logits[:, -1]]

    return run


def mambapy(peer: Any, token: Tensor) -> Contender:
    channels, taps = peer.config.d_inner, peer.config.d_conv
    caches = [(None, torch.zeros(1, channels, taps - 1)) for _ in peer.mamba.layers]

    @torch.no_grad()
    def run() -> list[Tensor]:
        nonlocal caches
        logits, caches = peer.step(token, caches)
        return [logits]

    return run


def token(shape: mamba.Shape, rounds: int = ROUNDS) -> Race:
    """The step of a whole model, native, with the reference kernels, and in the peers."""
    model, one = mamba.ours(shape), torch.tensor([1])
    makers = {"transformers": transformers, "mambapy": mambapy}
    contenders = {
        "threefold": threefold(model, one),
        READING: reading(sum(parameter.nbytes for parameter in model.parameters())),
        "threefold, reference kernels": reference(model, one),
        **{name: makers[name](peer, one) for name, peer in mamba.others(model, *makers).items()},
    }
    for name, contender in contenders.items():
        if name != READING:  # the first token is another case for some: compare the second
            contender()
    return Race(
        f"{shape.name}, one token",
        contenders,
        rounds=rounds,
        targets=(at_most(1.5, READING), at_least(2.5, "transformers")),
        apart=(READING,),
    )


def run() -> Iterator[Race]:
    """Products by size and dtype, then a whole token."""
    for inputs, outputs in SIZES:
        yield products(inputs, outputs, torch.float32)
    yield token(mamba.PUBLISHED)


def quick() -> Iterator[Race]:
    """A token of two narrow layers."""
    yield token(mamba.TINY, rounds=2)
