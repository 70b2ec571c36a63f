"""Which parameters of a model are trained, and how fast: blocks from the lowest to the highest.

The embedding counts as lower than every block, the final norm and the head as higher.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from threefold.blocks.stack import Stack
from threefold.errors import ThreefoldError
from threefold.models.model import Model

# Parts of models after the blocks, which a new head replaces.
HEADS = ("head", "start", "pooling", "pooler", "transform", "transform_norm", "bias", "query")


def freeze_blocks(model: Model, lowest: int | str) -> None:
    """Freeze the embedding and the lowest blocks; "all": everything before the head."""
    blocks = blocks_of(model)
    count = len(blocks) if lowest == "all" else int(lowest)
    if count > len(blocks):
        raise ThreefoldError(
            f"training.freeze is {lowest}, but the model has {len(blocks)} blocks; expected at "
            "most as many, or all"
        )
    frozen = [p for block in blocks[:count] for p in block.parameters()]
    outside = {id(p) for block in blocks for p in block.parameters()}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        is_norm = part == "norm" and count < len(blocks)
        if id(parameter) not in outside and part not in HEADS and not is_norm:
            frozen.append(parameter)
    for parameter in frozen:
        parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ThreefoldError(
            f"training.freeze is {lowest}, which leaves nothing to train: this {model.kind} model "
            "has no head of its own; freeze fewer blocks"
        )


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model from the lowest to the highest, of all its stacks in turn."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    return [block for stack in stacks for block in stack.parts.values()]


def layer_factors(model: nn.Module, decay: float) -> Mapping[int, float]:
    """The factor of the learning rate by id of a parameter: decay^(blocks above it)."""
    blocks = blocks_of(model)
    factors = {
        id(parameter): decay ** (len(blocks) - 1 - number)
        for number, block in enumerate(blocks)
        for parameter in block.parameters()
    }
    for name, parameter in model.named_parameters():
        if id(parameter) not in factors and name.split(".")[0] not in (*HEADS, "norm"):
            factors[id(parameter)] = decay ** len(blocks)
    return factors


def trained_count(model: nn.Module) -> int:
    """The number of trained weights."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
