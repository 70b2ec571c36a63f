"""θ̄ ← a θ̄ + (1 − a) θ: the running mean of the weights, which is judged and kept in their place.

Early on a is smaller, (1 + step) / (10 + step), so that the beginning is soon forgotten.
Polyak & Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """The mean of a model's parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = dict(model.named_parameters())
        self.mean = {name: p.detach().clone() for name, p in self.live.items()}

    def add(self, step: int) -> None:
        """The weights after one step more."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.mean.values()), list(self.live.values()), share)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """A mean that was saved."""
        for name, mean in self.mean.items():
            mean.copy_(tensors[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the mean of its weights, for a while."""
        kept = {name: p.detach().clone() for name, p in self.live.items()}
        self.put(self.mean)
        try:
            yield
        finally:
            self.put(kept)

    def put(self, tensors: dict[str, Tensor]) -> None:
        """Other numbers into the model."""
        with torch.no_grad():
            for name, parameter in self.live.items():
                parameter.copy_(tensors[name])
