"""Low-rank adapters of a model: which maps have them, how they are saved, and how they are merged.

Every linear map inside the blocks has one, if that is smaller than the map itself.  A saved model
keeps its adapters apart, so that they can still be trained; merged, it is a model like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.adapters import AdaptedLinear
from threefold.layers.linear import Linear

DOWN = ".adapter_down"  # how the names of the matrices A end
OUTPUTS = ("head", "transform", "pooling", "pooler")  # parts after the blocks, which are trained


def add_adapters(model: nn.Module, rank: int, alpha: float | None = None) -> int:
    """Freeze a model but for its head, and add adapters of a rank; returns their number.

    alpha: their outputs are multiplied by alpha / rank; default: 2 · rank.
    """
    if rank < 1:
        raise ThreefoldError(f"adapters: rank is {rank}, expected 1 or more")
    merge_adapters(model)
    maps = [module for name, module in model.named_modules() if _is_adaptable(name, module, rank)]
    if not maps:
        raise ThreefoldError(
            f"adapters of rank {rank} are not smaller than any linear map of this model; choose a "
            "lower rank, or train without adapters"
        )
    for name, part in model.named_parameters():
        part.requires_grad_(name.split(".")[0] in OUTPUTS)
    for module in maps:
        AdaptedLinear.adapt(module, rank, (2 * rank if alpha is None else alpha) / rank)
    return len(maps)


def _is_adaptable(name: str, module: nn.Module, rank: int) -> bool:
    if type(module) is not Linear or name.split(".")[0] in OUTPUTS:
        return False
    outputs, inputs = module.weight.shape
    return rank * (inputs + outputs) < inputs * outputs


def merge_adapters(model: nn.Module) -> int:
    """Add the adapters of a model to its matrices, in place; returns how many there were."""
    adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.merge()
    if adapted:
        model.requires_grad_(True)
    return len(adapted)


def adapter_rank(model: nn.Module) -> int:
    """The rank of a model's adapters; 0 if it has none."""
    ranks = [module.rank for module in model.modules() if isinstance(module, AdaptedLinear)]
    return max(ranks, default=0)


def restore_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give those maps adapters that have them in a file of weights."""
    for name, tensor in tensors.items():
        if name.endswith(DOWN):
            module = model.get_submodule(name.removesuffix(DOWN))
            if type(module) is Linear and tensor.dim() == 2:
                AdaptedLinear.adapt(module, len(tensor), 1.0)
