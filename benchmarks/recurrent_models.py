"""RWKV-7, Mamba-2, Gated DeltaNet and mLSTM: prefill and training beside their matrix products.

Width 256, 4 layers, with the channel mixer of each. Products are those of the linear maps and the
head; mLSTM's blocks of four channels, short convolutions and the recurrences themselves come on
top. Peers of the same models are in `other_models`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks import mamba
from benchmarks.mamba_training import threefold
from benchmarks.measure import Comparison
from benchmarks.other_models import ours
from threefold.models.language import LanguageModel

MODELS = {"rwkv7": "rwkv7", "mamba2": "none", "gated_delta_net": "swiglu", "mlstm": "none"}


def language_model(shape: mamba.Shape, mixer: str) -> LanguageModel:
    torch.manual_seed(0)
    return ours(shape, mixer, MODELS[mixer]).train()


def prefill(shape: mamba.Shape, mixer: str, length: int, rounds: int) -> Comparison:
    """All logits of one row."""
    model = language_model(shape, mixer).eval()
    tokens = torch.randint(shape.vocabulary, (1, length))

    @torch.no_grad()
    def threefold() -> list[Tensor]:
        return [model(tokens)[0]]

    return Comparison(
        f"{mixer}, width {shape.width} × {shape.depth}, prefill of {length:,} tokens",
        {
            "threefold": threefold,
            **mamba.both_products(mamba.forward_products(model, length, length)),
        },
        rounds=rounds,
        unchecked=(mamba.PRODUCTS, mamba.TORCH_PRODUCTS),
    )


def training(shape: mamba.Shape, mixer: str, batch: int, length: int, rounds: int) -> Comparison:
    """Loss and all gradients on random tokens."""
    model = language_model(shape, mixer).train()
    tokens, targets = torch.randint(shape.vocabulary, (2, batch, length))
    return Comparison(
        f"{mixer}, width {shape.width} × {shape.depth}, training step of {batch} × {length} tokens",
        {
            "threefold": threefold(model, tokens, targets),
            **mamba.both_products(mamba.training_products(model, batch * length)),
        },
        rounds=rounds,
        unchecked=(mamba.PRODUCTS, mamba.TORCH_PRODUCTS),
    )


def run() -> Iterator[Comparison]:
    """Prefill of 1,024 tokens and a training step of 4 × 512, for each model."""
    for mixer in MODELS:
        yield prefill(mamba.SMALL, mixer, 1024, rounds=9)
        yield training(mamba.SMALL, mixer, 4, 512, rounds=5)


def quick() -> Iterator[Comparison]:
    """Two narrow layers of the first model."""
    yield prefill(mamba.TINY, "rwkv7", 32, rounds=2)
    yield training(mamba.TINY, "rwkv7", 2, 16, rounds=2)
