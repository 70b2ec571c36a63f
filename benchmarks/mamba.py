"""One Mamba language model with the same weights in threefold, transformers and mambapy.

The time of its matrix products alone is a lower bound: everything else would cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import peers
from benchmarks.weights import MAMBA, copy_weights
from threefold.kernels import library, ops
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

PRODUCTS = "matrix products alone"
# By torch's MKL, where ours are by oneDNN; elsewhere the same.
TORCH_PRODUCTS = "matrix products in plain torch"


class Shape(NamedTuple):
    """The size of a model, and its name in titles."""

    name: str
    width: int
    depth: int
    vocabulary: int


MAMBA_130M = Shape("Mamba-130M", 768, 24, 50280)
SMALL = Shape("Mamba, width 256 × 4", 256, 4, 256)
TINY = Shape("Mamba, width 32 × 2", 32, 2, 64)


def threefold_model(shape: Shape) -> LanguageModel:
    """Threefold's model with fresh weights."""
    mixers = ("mamba",)
    spec = Spec(
        "language", shape.width, shape.depth, mixers, vocabulary=shape.vocabulary, channel="none"
    )
    return LanguageModel(spec).eval()


def transformers_model(model: LanguageModel) -> nn.Module:
    """transformers' MambaForCausalLM with the same weights."""
    spec, library = model.spec, peers.transformers()
    config = library.MambaConfig(
        vocab_size=spec.vocabulary, hidden_size=spec.width, num_hidden_layers=spec.depth
    )
    peer: nn.Module = library.MambaForCausalLM(config).eval()
    copy_weights(model, peer, MAMBA)
    return peer


class Mambapy(nn.Module):
    """mambapy's layers in a language model with a tied head (mambapy's own needs a GPU package)."""

    def __init__(self, width: int, depth: int, vocabulary: int) -> None:
        super().__init__()
        library = import_module("mambapy.mamba")
        self.config: Any = library.MambaConfig(d_model=width, n_layers=depth)
        self.embedding = nn.Embedding(vocabulary, width)
        self.mamba = library.Mamba(self.config)
        self.norm_f = library.RMSNorm(width, self.config.rms_norm_eps)

    def forward(self, tokens: Tensor, last: bool = False) -> Tensor:
        """All logits, or only those of the last token."""
        x = self.mamba(self.embedding(tokens))
        return self.logits(x[:, -1] if last else x)

    def step(self, token: Tensor, caches: list[Any]) -> tuple[Tensor, list[Any]]:
        x, caches = self.mamba.step(self.embedding(token), caches)
        return self.logits(x), caches

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = nn.functional.linear(self.norm_f(x), self.embedding.weight)
        return logits


def mambapy_model(model: LanguageModel) -> nn.Module:
    """mambapy's model with the same weights."""
    spec = model.spec
    peer = Mambapy(spec.width, spec.depth, spec.vocabulary).eval()
    copy_weights(model, peer, MAMBA)
    return peer


PEER_MODELS: dict[str, Callable[[LanguageModel], nn.Module]] = {
    "transformers": transformers_model,
    "mambapy": mambapy_model,
}


def peer_models(model: LanguageModel, *names: str) -> dict[str, Any]:
    """The models of the named peers that are installed."""
    return {name: PEER_MODELS[name](model) for name in names if peers.installed(name)}


def matrices(model: LanguageModel) -> list[Tensor]:
    """The weights of all matrix products in the order of the model, the head last."""
    inner = [part.weight for part in model.stack.modules() if isinstance(part, nn.Linear)]
    return [*inner, model.embedding.weight]


def forward_products(model: LanguageModel, rows: int, head_rows: int) -> Callable[[], list[Tensor]]:
    """The matrix products of a forward pass over `rows` elements, with logits for `head_rows`."""
    weights = [weight.detach() for weight in matrices(model)]
    counts = [rows] * (len(weights) - 1) + [head_rows]
    inputs = {
        (n, w.shape[1]): torch.randn(n, w.shape[1]) for n, w in zip(counts, weights, strict=True)
    }

    def run() -> list[Tensor]:
        with torch.no_grad():
            for count, weight in zip(counts, weights, strict=True):
                ops.linear(inputs[count, weight.shape[1]], weight)
        return []

    return run


def training_products(model: LanguageModel, rows: int) -> Callable[[], list[Tensor]]:
    """The matrix products of a forward pass, and two of the backward pass for each of them."""
    weights = [weight.detach() for weight in matrices(model)]
    sizes = {size for weight in weights for size in weight.shape}
    random = {size: torch.randn(rows, size) for size in sizes}

    def run() -> list[Tensor]:
        with torch.no_grad():
            for weight in weights:
                outputs, inputs = weight.shape
                ops.linear(random[inputs], weight)
                ops.product(random[outputs], weight)
                ops.product(random[outputs].t(), random[inputs])
        return []

    return run


def both_products(products: Callable[[], list[Tensor]]) -> dict[str, Callable[[], list[Tensor]]]:
    """The same products as our operations compute them, and as plain torch does."""

    def plain() -> list[Tensor]:
        with library.using("reference"):
            return products()

    return {PRODUCTS: products, TORCH_PRODUCTS: plain}
