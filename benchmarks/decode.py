"""One decoded token of the Mamba-130M shape, compared with reading its weights, the lower bound.

Both take turns in one run, so their ratio holds on a busy machine too. Reading is torch's sum over
as many bytes as the model's weights have, with the same number of threads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import mamba
from benchmarks.measure import Comparison, Contender, max_ratio, min_speedup
from threefold.kernels import library, ops
from threefold.memory.state import State
from threefold.models.language import LanguageModel

# inputs × outputs of Mamba-130M's input projection, output projection and head.
SIZES = [(768, 3072), (1536, 768), (768, 50280)]
ROUNDS = 40
READING = "reading the weights once"


def products(inputs: int, outputs: int, dtype: torch.dtype) -> Comparison:
    """One row times matrices that together do not fit into any cache."""
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
    return Comparison(
        f"{count} products of one row, {inputs} × {outputs}, {dtype}",
        {"threefold": ours, READING: read, "F.linear": plain},
        rounds=ROUNDS,
        unchecked=(READING,),
    )


def reading(size: int) -> Contender:
    """Read `size` bytes once, with torch's sum."""
    buffer = torch.ones(size // 4)  # zeros would be one page of memory, read again and again

    def run() -> list[Tensor]:
        buffer.sum()
        return []

    return run


def threefold(model: LanguageModel, token: Tensor) -> Contender:
    """One token per call, continuing from the state of the last call."""
    state: State | None = None

    @torch.no_grad()
    def run() -> list[Tensor]:
        nonlocal state
        logits, state = model.step(token, state)
        return [logits]

    return run


def reference(model: LanguageModel, token: Tensor) -> Contender:
    """The same with plain torch; of a copy, because changing kernels ends a recorded step."""
    native = threefold(copy.deepcopy(model), token)

    def run() -> Iterable[Tensor]:
        with library.using("reference"):
            return native()

    return run


def transformers(peer: Any, token: Tensor) -> Contender:
    """One token per call; transformers updates its cache in place."""
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


def token(shape: mamba.Shape, rounds: int = ROUNDS) -> Comparison:
    """One step of the whole model: native, with the reference kernels, and in the peers."""
    model, token_id = mamba.threefold_model(shape), torch.tensor([1])
    makers = {"transformers": transformers, "mambapy": mambapy}
    contenders = {
        "threefold": threefold(model, token_id),
        READING: reading(sum(parameter.nbytes for parameter in model.parameters())),
        "threefold, reference kernels": reference(model, token_id),
        **{
            name: makers[name](peer, token_id)
            for name, peer in mamba.peer_models(model, *makers).items()
        },
    }
    for name, contender in contenders.items():
        if name != READING:  # some handle the first token differently: compare the second
            contender()
    return Comparison(
        f"{shape.name}, one token",
        contenders,
        rounds=rounds,
        targets=(max_ratio(1.15, READING), min_speedup(2.5, "transformers")),
        unchecked=(READING,),
    )


def run() -> Iterator[Comparison]:
    """Matrix products by size, then a whole token."""
    for inputs, outputs in SIZES:
        yield products(inputs, outputs, torch.float32)
    yield token(mamba.MAMBA_130M)


def quick() -> Iterator[Comparison]:
    """One token with two narrow layers."""
    yield token(mamba.TINY, rounds=2)
