"""quantize(model, "int8"): a copy of a model whose large matrices take a quarter of the memory."""

from __future__ import annotations

import copy
from typing import TypeVar

from threefold.errors import ThreefoldError
from threefold.models.adapters import merge_adapters
from threefold.models.model import Model
from threefold.models.narrow_weights import store_narrow

AnyModel = TypeVar("AnyModel", bound=Model)


def quantize(model: AnyModel, weights: str = "int8") -> AnyModel:
    """A copy of a model with weights stored in int8 (a scale per output) or bfloat16.

    Linear maps, embeddings and heads are stored so; norms, recurrent matrices, decays and states
    are not.  The copy predicts, generates, streams and saves like any model, but is not trained.
    Adapters are merged first.
    `threefold evaluate MODEL --weights int8` says what it costs in quality.
    """
    if not isinstance(model, Model):
        raise ThreefoldError(f"quantize: given {type(model).__name__}, expected a model")
    narrow = copy.deepcopy(model).eval()
    merge_adapters(narrow)
    for parameter in narrow.parameters():
        parameter.requires_grad_(False)
    store_narrow(narrow, weights)
    return narrow
