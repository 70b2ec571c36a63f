"""Whole language models of transformers, and torch's LSTM, compared with ours of the same shape.

Mamba-2 has our weights and gives our logits. The rest are labelled "other model": the same width,
depth and vocabulary, but a different function, so only throughput is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.mamba import SMALL, TINY, Shape
from benchmarks.measure import Comparison, Contender
from benchmarks.weights import MAMBA2, copy_weights
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec


def ours(shape: Shape, mixer: str, channel: str = "none") -> LanguageModel:
    """One of our language models with fresh weights."""
    return LanguageModel(
        Spec(
            "language",
            shape.width,
            shape.depth,
            (mixer,),
            vocabulary=shape.vocabulary,
            channel=channel,
        )
    ).eval()


def config(name: str, shape: Shape, **more: Any) -> Any:
    """A configuration of transformers; everything not given keeps its default."""
    return getattr(peers.transformers(), f"{name}Config")(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **more,
    )


def causal(name: str, settings: Any) -> nn.Module:
    model: nn.Module = getattr(peers.transformers(), f"{name}ForCausalLM")(settings).eval()
    return model


def mamba2(shape: Shape) -> tuple[LanguageModel, nn.Module]:
    """Our Mamba-2, and transformers' Mamba-2 with the same weights."""
    model = ours(shape, "mamba2")
    heads, size = 2 * shape.width // 64, 64
    settings = config(
        "Mamba2", shape, num_heads=heads, head_dim=size, n_groups=1, tie_word_embeddings=True
    )
    peer = causal("Mamba2", settings)
    copy_weights(model, peer, MAMBA2)
    return model, peer


def prefill(model: LanguageModel, tokens: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [model(tokens)[0]]

    return run


def prefill_peer(model: nn.Module, tokens: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [model(tokens, use_cache=False).logits]

    return run


class Lstm(nn.Module):
    """An embedding, torch's LSTM, and a head tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.lstm = nn.LSTM(shape.width, shape.width, shape.depth, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = nn.functional.linear(x, self.embedding.weight)
        return logits


def lstm(model: nn.Module, tokens: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [model(tokens)]

    return run


def others(shape: Shape) -> Iterator[tuple[str, LanguageModel, nn.Module]]:
    """Models of transformers, each with the most similar one of ours."""
    yield "FalconMamba", ours(shape, "mamba"), causal("FalconMamba", config("FalconMamba", shape))
    heads = max(1, shape.width // 64)
    settings = config("xLSTM", shape, num_heads=heads, autocast_kernel_dtype="float32")
    yield "xLSTM", ours(shape, "mlstm", "swiglu"), causal("xLSTM", settings)
    yield "RWKV-4", ours(shape, "rwkv6", "rwkv"), causal("Rwkv", config("Rwkv", shape))


def comparisons(shape: Shape, length: int, rounds: int) -> Iterator[Comparison]:
    """All logits of one row of `length` tokens."""
    tokens = torch.randint(1, shape.vocabulary, (1, length))
    work = f"width {shape.width} × {shape.depth}, {length:,} tokens"
    if peers.installed("transformers"):
        model, peer = mamba2(shape)
        contenders = {
            "threefold mamba2": prefill(model, tokens),
            "transformers Mamba-2": prefill_peer(peer, tokens),
        }
        yield Comparison(f"Mamba-2, {work}", contenders, rounds)
        for name, model, peer in others(shape):
            mixer = f"threefold {model.spec.entries[0][0]}"
            label = f"transformers {name} (other model)"
            yield Comparison(
                f"{name} and {mixer}, {work}",
                {mixer: prefill(model, tokens), label: prefill_peer(peer, tokens)},
                rounds,
                unchecked=(label,),
                slow=(label,),
            )
    label = "torch.nn.LSTM (other model)"
    yield Comparison(
        f"LSTM and threefold mamba, {work}",
        {
            "threefold mamba": prefill(ours(shape, "mamba"), tokens),
            label: lstm(Lstm(shape), tokens),
        },
        rounds,
        unchecked=(label,),
    )


def run() -> Iterator[Comparison]:
    """Width 256, 4 layers."""
    yield from comparisons(SMALL, 1024, rounds=9)


def quick() -> Iterator[Comparison]:
    """Two narrow layers."""
    yield from comparisons(TINY, 64, rounds=1)
