"""Linear maps: dense, low-rank, and block-diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.layers.heads import split_heads
from threefold.layers.precision import upcast


class Linear(nn.Linear):
    """y = W x + bias; fast for a few rows without gradients, where reading W takes the time."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class WideLinear(Linear):
    """A linear map in the dtype of its input, at least float32, in which filters are made."""

    def forward(self, x: Tensor) -> Tensor:
        y = x @ upcast(self.weight).T
        return y if self.bias is None else y + upcast(self.bias)


class LowRankProjection(nn.Module):
    """up(activation(down(x))): a low-rank map, with a bias on the output only."""

    def __init__(
        self, inputs: int, rank: int, outputs: int, *, bias: bool = True, tanh: bool = False
    ) -> None:
        super().__init__()
        self.down = Linear(inputs, rank, bias=False)
        self.up = Linear(rank, outputs, bias=bias)
        self.tanh = tanh

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        out: Tensor = self.up(torch.tanh(x) if self.tanh else x)
        return out


class BlockLinear(nn.Module):
    """y = W x + bias with a block-diagonal W of `blocks` blocks."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=math.sqrt(blocks / inputs))

    def forward(self, x: Tensor) -> Tensor:
        return block_diagonal_product(x, self.weight) + self.bias


def block_diagonal_product(x: Tensor, weight: Tensor) -> Tensor:
    """x times a block-diagonal matrix, weight [blocks, inputs, outputs]."""
    return torch.einsum("blni,nio->blno", split_heads(x, len(weight)), weight).flatten(-2)
