"""θ̄ ← a θ̄ + (1 − a) θ: an exponential moving average of the weights, evaluated instead of them.

Early on a is smaller, (1 + step) / (10 + step), so that the initial weights are soon forgotten.
Polyak & Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """A moving average of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.parameters.items()}

    def update(self, step: int) -> None:
        """Add the weights after a step to the average."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.mean.values()), list(self.parameters.values()), weight)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a saved average."""
        for name, mean in self.mean.items():
            mean.copy_(tensors[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights inside a `with` block."""
        original = {name: p.detach().clone() for name, p in self.parameters.items()}
        self._copy_to_model(self.mean)
        try:
            yield
        finally:
            self._copy_to_model(original)

    def _copy_to_model(self, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(tensors[name])
