"""Whole language models of transformers, and torch's LSTM, beside ours of the same shape.

Mamba-2 has our weights and gives our logits. The others are other models, and are named so: the
same width, depth and vocabulary, another function. There only throughput is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.mamba import SMALL, TINY, Shape
from benchmarks.measure import Contender, Race
from benchmarks.weights import MAMBA2, give
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec


def ours(shape: Shape, mixer: str, channel: str = "none") -> LanguageModel:
    """One of our language models, with fresh weights."""
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
    """A configuration of transformers, everything else as its authors set it."""
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
    """Mamba-2 with our weights in it."""
    model = ours(shape, "mamba2")
    heads, size = 2 * shape.width // 64, 64
    settings = config(
        "Mamba2", shape, num_heads=heads, head_dim=size, n_groups=1, tie_word_embeddings=True
    )
    peer = causal("Mamba2", settings)
    give(model, peer, MAMBA2)
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
    """Models of transformers and the nearest of ours."""
    yield "FalconMamba", ours(shape, "mamba"), causal("FalconMamba", config("FalconMamba", shape))
    heads = max(1, shape.width // 64)
    settings = config("xLSTM", shape, num_heads=heads, autocast_kernel_dtype="float32")
    yield "xLSTM", ours(shape, "mlstm", "swiglu"), causal("xLSTM", settings)
    yield "RWKV-4", ours(shape, "rwkv6", "rwkv"), causal("Rwkv", config("Rwkv", shape))


def races(shape: Shape, length: int, rounds: int) -> Iterator[Race]:
    """All logits of one row of `length` tokens."""
    tokens = torch.randint(1, shape.vocabulary, (1, length))
    work = f"width {shape.width} × {shape.depth}, {length:,} tokens"
    if peers.installed("transformers"):
        model, peer = mamba2(shape)
        contenders = {
            "threefold mamba2": prefill(model, tokens),
            "transformers Mamba-2": prefill_peer(peer, tokens),
        }
        yield Race(f"Mamba-2, {work}", contenders, rounds)
        for name, model, peer in others(shape):
            mixer = f"threefold {model.spec.entries[0][0]}"
            label = f"transformers {name} (other model)"
            yield Race(
                f"{name} beside {mixer}, {work}",
                {mixer: prefill(model, tokens), label: prefill_peer(peer, tokens)},
                rounds,
                apart=(label,),
                seldom=(label,),
            )
    label = "torch.nn.LSTM (other model)"
    yield Race(
        f"LSTM beside threefold mamba, {work}",
        {
            "threefold mamba": prefill(ours(shape, "mamba"), tokens),
            label: lstm(Lstm(shape), tokens),
        },
        rounds,
        apart=(label,),
    )


def run() -> Iterator[Race]:
    """Width 256, 4 layers."""
    yield from races(SMALL, 1024, rounds=9)


def quick() -> Iterator[Race]:
    """Two narrow layers."""
    yield from races(TINY, 64, rounds=1)
