"""y = W x + bias + (α / r) B A x: a linear map with a low-rank adapter

W stays as it is, and A [r, inputs] and B [outputs, r] are trained.  B starts at 0, so that an
adapter changes nothing before training.
Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.layers.linear import Linear


class AdaptedLinear(Linear):
    """A linear map with an adapter; made of a `Linear`, and merged back into one, in place."""

    adapter_down: nn.Parameter
    adapter_up: nn.Parameter
    adapter_scale: Tensor  # α / r, a number

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W + (α / r) B A, for layers that read the matrix instead of calling the map."""
        base = self._parameters["weight"]
        assert base is not None
        change = self.adapter_scale.to(base.dtype) * (self.adapter_up @ self.adapter_down)
        return base + change

    @property
    def rank(self) -> int:
        """Rows of A."""
        return len(self.adapter_down)

    @classmethod
    def adapt(cls, module: nn.Module, rank: int, scale: float) -> None:
        """Give a `Linear` an adapter, in place, and freeze the rest of it: hooks stay."""
        base = module.weight
        assert isinstance(base, nn.Parameter)
        outputs, inputs = base.shape
        down, up = base.new_empty(rank, inputs), base.new_zeros(outputs, rank)
        nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        module.requires_grad_(False)
        module.__class__ = cls
        module.register_parameter("adapter_down", nn.Parameter(down))
        module.register_parameter("adapter_up", nn.Parameter(up))
        module.register_buffer("adapter_scale", torch.tensor(scale, device=base.device))

    def merge(self) -> None:
        """Add the adapter to the matrix and become a `Linear` again, in place."""
        merged = self.weight.detach()
        base = self._parameters["weight"]
        assert base is not None
        for name in ("adapter_down", "adapter_up", "adapter_scale"):
            delattr(self, name)
        self.__class__ = Linear  # type: ignore[assignment]
        with torch.no_grad():
            base.copy_(merged)
        self.requires_grad_(True)

    def forward(self, x: Tensor) -> Tensor:
        base = self._parameters["weight"]
        assert base is not None
        change = ops.linear(ops.linear(x, self.adapter_down, None), self.adapter_up, None)
        y: Tensor = ops.linear(x, base, self.bias)
        return y + self.adapter_scale.to(change.dtype) * change
