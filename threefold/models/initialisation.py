"""Numbers before training, for a whole stack: each layer's own, or as a paper drew all of them.

bert: W ~ N(0, 0.02²), biases 0;  gpt2: matrices that write to the stream smaller by 1/√(2 depth).
Devlin et al. 2019, "BERT"; Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners".
"""

from __future__ import annotations

import math

from torch import nn

from threefold.blocks.post_norm import DeepNorm
from threefold.errors import ThreefoldError, nearest

KINDS = ("own", "gpt2", "bert")


def begin(stack: nn.Module, depth: int, kind: str, std: float = 0.02) -> None:
    """Draw the matrices of a stack of `depth` blocks, in place; "own" leaves them as they are."""
    if kind not in KINDS:
        raise ThreefoldError(f"initial: unknown {kind!r}; {nearest(kind, KINDS)}")
    if kind == "own":
        return
    if any(isinstance(module, DeepNorm) for module in stack.modules()):
        raise ThreefoldError(
            f"initial {kind!r} with deep_norm blocks, whose own beginnings keep them stable; leave "
            "one of them out"
        )
    for name, module in stack.named_modules():
        if isinstance(module, nn.Linear):
            writes = kind == "gpt2" and name.rpartition(".")[2] == "out"
            nn.init.normal_(module.weight, std=std / math.sqrt(2 * depth) if writes else std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
