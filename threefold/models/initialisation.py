"""Initial weights of a whole stack: each layer's own (default), or those of a paper.

bert: W ~ N(0, 0.02²), biases 0;  gpt2: the same, with output matrices scaled by 1/√(2 depth).
Devlin et al. 2019, "BERT"; Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners".
"""

from __future__ import annotations

import math

from torch import nn

from threefold.blocks.post_norm import DeepNorm
from threefold.errors import ThreefoldError, nearest

INITIALISATIONS = ("default", "gpt2", "bert")


def initialise_stack(stack: nn.Module, depth: int, kind: str, std: float = 0.02) -> None:
    """Initialise the matrices of `depth` blocks in place; "default" leaves them as they are."""
    if kind not in INITIALISATIONS:
        raise ThreefoldError(f"unknown init {kind!r}; {nearest(kind, INITIALISATIONS)}")
    if kind == "default":
        return
    if any(isinstance(module, DeepNorm) for module in stack.modules()):
        raise ThreefoldError(
            f"init={kind!r} with deep_norm blocks, which need their own initial weights; "
            "leave out one of the two"
        )
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            writes = kind == "gpt2" and name.rpartition(".")[2] == "out"
            nn.init.normal_(module.weight, std=std / math.sqrt(2 * depth) if writes else std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
