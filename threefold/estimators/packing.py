"""Fitted models as arrays and JSON: what a pickled estimator contains, and nothing that runs.

    Model            its spec as JSON, its weights as the bytes of a safetensors file
    classical model  its fields, tensors as arrays

A pickle of an estimator is still a pickle: load it only if you trust its source.  A model itself is
saved without one, by `estimator.model_.save(folder)`.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from threefold.classical.autoregression import RidgeAutoregression
from threefold.classical.hashed_ngrams import TextLogistic
from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError
from threefold.estimators.baselines import MeanAnswer, Neighbours, SmoothedSeries
from threefold.estimators.reservoir_readout import ReservoirReadout
from threefold.models.files import own_storage
from threefold.models.model import Model
from threefold.models.saving import unique_tensors
from threefold.models.spec import Spec
from threefold.models.table import build

CLASSICAL: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(MeanAnswer, Neighbours, ReservoirReadout),
        *(RidgeAutoregression, SmoothedSeries, TextLogistic),
    )
}


def pack(value: Any) -> Any:
    """A fitted model as a dict of arrays and JSON; other values as they are."""
    if isinstance(value, Model):
        tensors = {name: own_storage(part) for name, part in unique_tensors(value).items()}
        return {
            "packed": "Model",
            "spec": json.dumps(value.spec.to_dict()),
            "dtype": str(value.dtype).removeprefix("torch."),
            "weights": np.frombuffer(save(tensors), np.uint8),
        }
    if isinstance(value, Preprocessing):
        return {"packed": "Preprocessing", "json": json.dumps(value.to_dict())}
    if is_dataclass(value) and type(value).__name__ in CLASSICAL:
        content = {part.name: _array(getattr(value, part.name)) for part in fields(value)}
        return {"packed": type(value).__name__, **content}
    return value


def unpack(value: Any) -> Any:
    """What `pack` was given."""
    if not isinstance(value, dict) or "packed" not in value:
        return value
    content = {key: part for key, part in value.items() if key != "packed"}
    if value["packed"] == "Preprocessing":
        return Preprocessing.from_dict(json.loads(value["json"]))
    if value["packed"] == "Model":
        return _unpack_model(content)
    if value["packed"] not in CLASSICAL:
        raise ThreefoldError(f"a pickled estimator contains an unknown {value['packed']!r}")
    cls = CLASSICAL[value["packed"]]
    return cls(**{key: _tensor(part) for key, part in content.items()})


def _unpack_model(content: dict[str, Any]) -> Model:
    with torch.random.fork_rng(devices=[]):  # leaves the global generator untouched
        model = build(Spec.from_dict(json.loads(content["spec"])))
    model.to(getattr(torch, content["dtype"]))
    tensors = load(content["weights"].tobytes())
    for name, target in unique_tensors(model).items():
        target.data = tensors[name].clone()
    return model.eval()


def _array(value: Any) -> Any:
    """Tensors as arrays that say so: numpy arrays stay what they are."""
    return {"tensor": value.numpy()} if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value["tensor"]) if isinstance(value, dict) else value
