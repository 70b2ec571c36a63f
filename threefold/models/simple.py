"""A fitted simple model, such as MiniRocket with a ridge, in the folder of a model.

A race saves its best baseline so, if no sequence model beats it.  Its spec names the method, its
numbers and the shapes of its tensors; the tensors are the weights, and nothing of it is trained
further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.model import Model
from threefold.models.spec import Spec

WHOLE = "threefold.classical.whole_sequences"
# The class of each method; that of reservoirs is in a layer above, and is named, not imported.
METHODS: Mapping[str, tuple[str, str]] = {
    "majority": (WHOLE, "ConstantAnswer"),
    "mean": (WHOLE, "ConstantAnswer"),
    "MiniRocket": (WHOLE, "RocketRidge"),
    "time warping": (WHOLE, "NearestSeries"),
    "ridge on pixels": (WHOLE, "PixelRidge"),
    "logistic regression": (WHOLE, "TextScores"),
    "echo state network": ("threefold.estimators.reservoir_readout", "ReservoirRidge"),
}


class SimpleModel(Model):
    """Answers whole sequences by a method of `threefold.classical`."""

    kind = "simple"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        method = spec.option("method")
        if method not in METHODS:
            known = ", ".join(METHODS)
            raise ThreefoldError(f"unknown method {method!r} of a simple model; known are {known}")
        for name, (dtype, *shape) in spec.option("tensors").items():
            kind = getattr(torch, dtype, None)
            if not isinstance(kind, torch.dtype):
                raise ThreefoldError(f"the tensor {name} of a simple model has the dtype {dtype!r}")
            self.register_buffer(name, torch.zeros(shape, dtype=kind))

    @classmethod
    def of(cls, method: str, fitted: Any, vocabulary: int = 0, **options: Any) -> SimpleModel:
        """A model of what was fitted: a dataclass of tensors and numbers."""
        values = {item.name: getattr(fitted, item.name) for item in fields(fitted)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        options["tensors"] = {
            name: (str(value.dtype).removeprefix("torch."), *value.shape)
            for name, value in tensors.items()
        }
        options["numbers"] = {name: v for name, v in values.items() if name not in tensors}
        model = cls(
            Spec("simple", 1, 1, (), vocabulary or 256, options={**options, "method": method})
        )
        for name, value in tensors.items():
            setattr(model, name, value.detach().clone().contiguous())
        return model.eval()

    @property
    def fitted(self) -> Any:
        """The method with its tensors, which are on the CPU."""
        module, name = METHODS[self.spec.option("method")]
        tensors = {name: getattr(self, name).cpu() for name in self.spec.option("tensors")}
        return getattr(import_module(module), name)(**tensors, **self.spec.option("numbers"))

    @property
    def parameter_count(self) -> int:
        """The numbers that were fitted."""
        return sum(getattr(self, name).numel() for name in self.spec.option("tensors"))

    def forward(
        self, inputs: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Log-odds [B, classes] or numbers [B, outputs] for inputs [B, L, D] or tokens [B, L]."""
        if state:
            raise ThreefoldError(
                f"{self.spec.option('method')} reads whole sequences; it has no state to continue"
            )
        lengths = None if mask is None or bool(mask.all()) else mask.sum(1).cpu()
        answers = self.fitted(inputs.cpu(), lengths)
        return answers.to(self.device, self.dtype), {}

    def interpret(self, output: Tensor) -> Tensor:
        """Probabilities of classes, or the numbers."""
        return super().interpret(output) if self.spec.option("classes") else output
