"""W ≈ s ⊙ C, C in int8: large matrices stored in fewer bits; everything is computed as before

    bfloat16   the upper half of a float32: half the memory, three digits
    int8       codes from −127 to 127, one scale per output: a quarter of the memory

Linear maps, embeddings and heads are stored so. Norms, recurrent matrices, states and what sets a
decay (steps, forget gates, strengths of writing) are not: their errors would add up over time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import EncodedLinear, Linear
from threefold.models.embedding import Embedding, EncodedEmbedding

NARROW = ("bfloat16", "int8")
CODES = ".codes"  # how the names of int8 weights end
# Parts of the names of maps that set a decay, or a filter that is computed once.
_KEPT = {"delta", "select", "forget", "forget_key", "forget_value", "strength", "gates", "filters"}
_ENCODED: dict[type[nn.Module], type[EncodedLinear | EncodedEmbedding]] = {
    Linear: EncodedLinear,
    Embedding: EncodedEmbedding,
}


def narrow_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose weights may be stored in fewer bits, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in _ENCODED and not _KEPT.intersection(name.split("."))
    }


def store_narrow(model: nn.Module, weights: str) -> None:
    """Store the large matrices of a model in bfloat16 or int8, in place."""
    if weights not in NARROW:
        raise ThreefoldError(f"unknown weights {weights!r}; {nearest(weights, NARROW)}")
    if narrow_weights(model) is not None:
        raise ThreefoldError(
            f"the weights are stored in {narrow_weights(model)} already; start from the model that "
            "they were made from"
        )
    for module in narrow_modules(model).values():
        if weights == "int8":
            _ENCODED[type(module)].encode(module)
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().to(torch.bfloat16), False))


def restore_codes(model: nn.Module, names: Iterable[str]) -> None:
    """Give the modules named in a file of weights the form in which they were saved."""
    for name in names:
        if name.endswith(CODES):
            module = model.get_submodule(name.removesuffix(CODES))
            encoded = _ENCODED.get(type(module))
            if encoded is not None:
                encoded.encode(module)


def narrow_weights(model: nn.Module) -> str | None:
    """What the large matrices of a model are stored in: int8, bfloat16, or None, as trained."""
    if any(name.endswith(CODES) for name, _ in model.named_buffers()):
        return "int8"
    stored = {module.weight.dtype for module in narrow_modules(model).values()}
    return "bfloat16" if stored == {torch.bfloat16} and _computes_wider(model) else None


def _computes_wider(model: nn.Module) -> bool:
    return getattr(model, "dtype", None) is not torch.bfloat16
