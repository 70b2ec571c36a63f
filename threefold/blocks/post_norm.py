"""x ← norm(α x + f(x)): the stream is normed after each addition, α = 1 in the Transformer.

DeepNorm: α > 1 and initial weights scaled by β, both from the depth, keep 1,000 layers stable.
Vaswani et al. 2017, "Attention Is All You Need"; Wang et al. 2022, "DeepNet: Scaling Transformers
to 1,000 Layers".
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.blocks.block import Block
from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.mixer import Mixer


class PostNorm(Block):
    """norm(x + f(x)), as the Transformer and BERT were published; no norm follows the stack."""

    default_norm: ClassVar[str] = "layer"
    needs_final_norm: ClassVar[bool] = False
    alpha = 1.0

    def before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return x

    def after(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        normed: Tensor = norm(x + y if self.alpha == 1 else self.alpha * x + y)
        return normed


class DeepNorm(PostNorm):
    """norm(α x + f(x)); by default α and β are those of a single stack of `depth` blocks.

    β is the gain of the Xavier normal initialisation of the channel mixer and of the values and
    output of attention; queries and keys have gain 1.  The paper covers attention only: any other
    mixer keeps its own initial weights, with its output matrix scaled by β², which replaces the
    scaling of values and output by β each.
    """

    def __init__(
        self,
        mixer: Mixer,
        channel: Mixer | None = None,
        *,
        cross: Mixer | None = None,
        depth: int = 1,
        norm: str | None = None,
        eps: float = 1e-5,
        bias: bool = True,
        dropout: float = 0.0,
        final_norm: bool | None = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        more: dict[str, Any] = {"norm": norm, "eps": eps, "bias": bias, "final_norm": final_norm}
        super().__init__(mixer, channel, cross=cross, depth=depth, dropout=dropout, **more)
        gains = deep_norm_gains(depth)
        self.alpha = gains["alpha"] if alpha is None else alpha
        self.beta = gains["beta"] if beta is None else beta
        if self.alpha <= 0 or self.beta <= 0:
            raise ThreefoldError(
                f"{self.name}: alpha is {alpha}, beta {beta}; expected numbers above 0, or None "
                "for those of the paper"
            )
        for part in (mixer, cross):
            if part is not None:
                begin_small(part, self.beta)
        if channel is not None:
            for module in channel.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_normal_(module.weight, gain=self.beta)


def deep_norm_gains(depth: int, *, encoder: int = 0, decoder: int = 0) -> dict[str, float]:
    """The paper's α and β: for a stack alone, an encoder (of that `decoder`), or a decoder.

    decoder: how many layers follow the encoder of `depth`; encoder: how many come before the
    decoder of `depth`.
    """
    if decoder:
        power = (depth**4 * decoder) ** (1 / 16)
        return {"alpha": 0.81 * power, "beta": 0.87 / power}
    layers = 3 * depth if encoder else 2 * depth
    return {"alpha": layers**0.25, "beta": (4 * layers) ** -0.25}


def begin_small(mixer: nn.Module, beta: float) -> None:
    """Draw attention's projections anew with gain β, or scale another mixer's output by β²."""
    drawn = [module for module in mixer.modules() if isinstance(module, Heads)]
    for heads in drawn:
        for module, gain in (
            (heads.query, 1.0),
            (heads.key, 1.0),
            (heads.value, beta),
            (heads.out, beta),
        ):
            nn.init.xavier_normal_(module.weight, gain=gain)
    out = getattr(mixer, "out", None)
    if not drawn and isinstance(out, nn.Linear):
        with torch.no_grad():
            out.weight.mul_(beta**2)
