"""Specs of well-known models in every detail; the default sizes are the smallest published.

gpt2         pre-norm with LayerNorm, learned positions, biases, tanh GELU, tied head
llama        pre-norm with RMSNorm, rotary positions, grouped heads, SwiGLU, no biases
transformer  post-norm encoder–decoder, sinusoidal positions, √width, ReLU, shared embeddings
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threefold.errors import ThreefoldError, nearest
from threefold.models.spec import Spec


def gpt2(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocabulary: int = 50257,
    max_length: int = 1024,
    hidden: int | None = None,
    activation: str = "gelu_tanh",
    eps: float = 1e-5,
    dropout: float = 0.1,
    tie: bool = True,
) -> Spec:
    """Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"."""
    attention = {"heads": heads, "positions": "none", "bias": True, "dropout": dropout}
    options = {
        "positions": "learned",
        "max_length": max_length,
        "dropout": dropout,
        "embedding_dropout": dropout,
        "init": "gpt2",
        "tie": tie,
    }
    return Spec(
        "language",
        width,
        depth,
        (("attention", attention),),
        vocabulary,
        channel=("mlp", {"hidden": hidden or 4 * width, "activation": activation}),
        block=("pre_norm", {"norm": "layer", "eps": eps}),
        options=options,
    )


def llama(
    *,
    width: int = 4096,
    depth: int = 32,
    heads: int = 32,
    groups: int | None = None,
    head_size: int | None = None,
    vocabulary: int = 32000,
    hidden: int | None = None,
    eps: float = 1e-5,
    rotary_base: float = 10_000.0,
    bias: bool = False,
    tie: bool = False,
) -> Spec:
    """Touvron et al. 2023, "LLaMA" and "Llama 2" (groups: heads share keys and values).

    hidden: by default 8/3 of the width, rounded up to a multiple of 256.
    """
    attention: dict[str, Any] = {"heads": heads, "rotary_base": rotary_base, "bias": bias}
    if groups is not None:
        attention["groups"] = groups
    if head_size is not None:
        attention["head_size"] = head_size
    return Spec(
        "language",
        width,
        depth,
        (("attention", attention),),
        vocabulary,
        channel=("swiglu", {"hidden": hidden or 256 * -(-(8 * width // 3) // 256)}),
        block=("pre_norm", {"norm": "rms", "eps": eps}),
        options={"tie": tie},
    )


def transformer(
    *,
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    vocabulary: int = 37000,
    source_vocabulary: int | None = None,
    hidden: int | None = None,
    block: str = "post_norm",
    dropout: float = 0.1,
    label_smoothing: float = 0.1,
) -> Spec:
    """Vaswani et al. 2017, "Attention Is All You Need"; block: post_norm, pre_norm or deep_norm.

    source_vocabulary: size of a separate source table; None: source and target share one.
    """
    shared = source_vocabulary is None
    options: dict[str, Any] = {
        "dropout": dropout,
        "embedding_dropout": dropout,
        "label_smoothing": label_smoothing,
        "share_embeddings": shared,
    }
    if source_vocabulary is not None:
        options["source_vocabulary"] = source_vocabulary
    return Spec(
        "transformer",
        width,
        depth,
        (("attention", {"heads": heads, "positions": "none", "bias": True}),),
        vocabulary,
        channel=("mlp", {"hidden": hidden or 4 * width, "activation": "relu"}),
        block=(block, {"norm": "layer"}),
        options=options,
    )


def bert(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    vocabulary: int = 30522,
    max_length: int = 512,
    hidden: int | None = None,
    segments: int = 2,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
    lm_head: bool = True,
    pooler: bool = False,
) -> Spec:
    """Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"."""
    attention = {"heads": heads, "positions": "none", "bias": True, "dropout": dropout}
    return Spec(
        "masked",
        width,
        depth,
        (("attention", attention),),
        vocabulary,
        channel=("mlp", {"hidden": hidden or 4 * width, "activation": activation}),
        block=("post_norm", {"norm": "layer", "eps": eps}),
        options={
            "positions": "learned",
            "max_length": max_length,
            "segments": segments,
            "embedding_norm": True,
            "embedding_dropout": dropout,
            "dropout": dropout,
            "init": "bert",
            "activation": activation,
            "lm_head": lm_head,
            "pooler": pooler,
        },
    )


def xlnet(
    *,
    width: int = 1024,
    depth: int = 24,
    heads: int = 16,
    vocabulary: int = 32000,
    memory: int = 512,
    hidden: int | None = None,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.1,
    lm_head: bool = True,
) -> Spec:
    """Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining"."""
    return Spec(
        "xlnet",
        width,
        depth,
        (("transformer_xl", {"heads": heads, "memory": memory}),),
        vocabulary,
        channel=("mlp", {"hidden": hidden or 4 * width, "activation": activation}),
        block=("post_norm", {"norm": "layer", "eps": eps}),
        options={"segments": True, "dropout": dropout, "lm_head": lm_head},
    )


def vit(
    *,
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    image: tuple[int, int] = (224, 224),
    channels: int = 3,
    patch: int = 16,
    classes: int = 1000,
    hidden: int | None = None,
    activation: str = "gelu",
    eps: float = 1e-12,
    dropout: float = 0.0,
) -> Spec:
    """Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"."""
    attention = {"heads": heads, "positions": "none", "bias": True, "dropout": dropout}
    return Spec(
        "vision",
        width,
        depth,
        (("attention", attention),),
        channel=("mlp", {"hidden": hidden or 4 * width, "activation": activation}),
        block=("pre_norm", {"norm": "layer", "eps": eps}),
        options={
            "image": image,
            "channels": channels,
            "patch": patch,
            "classes": classes,
            "dropout": dropout,
            "embedding_dropout": dropout,
            "init": "bert",
        },
    )


def image_network(
    network: str = "resnet50",
    *,
    width: int | None = None,
    depth: int | None = None,
    classes: int = 1000,
) -> Spec:
    """A network of `image_networks.py` for 224 × 224 pixels, at its published size by default."""
    from threefold.models.image_networks import NETWORKS

    if network not in NETWORKS:
        raise ThreefoldError(f"unknown network {network!r}; {nearest(network, NETWORKS)}")
    published = NETWORKS[network]
    return Spec(
        "convolutional",
        width or published.width,
        depth or len(published.stages),
        options={
            "network": network,
            "image": (224, 224),
            "classes": classes,
            "dropout": published.dropout,
        },
    )


def swin(
    *,
    width: int = 96,
    blocks: Sequence[int] = (2, 2, 6, 2),
    heads: int = 3,
    image: tuple[int, int] = (224, 224),
    channels: int = 3,
    patch: int = 4,
    window: int = 7,
    classes: int = 1000,
) -> Spec:
    """Liu et al. 2021, "Swin Transformer"; without stochastic depth."""
    options = {"image": image, "channels": channels, "patch": patch, "classes": classes}
    return Spec(
        "swin",
        width,
        len(blocks),
        options={**options, "blocks": blocks, "heads": heads, "window": window},
    )
