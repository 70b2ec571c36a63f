"""Linear maps: dense, low-rank, and block-diagonal."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from threefold.kernels import ops
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


def encode_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix as int8 codes and one scale per row: weight ≈ scale · codes, |codes| ≤ 127."""
    scale = weight.detach().float().abs().amax(1) / 127
    codes = (weight.detach().float() / scale.clamp_min(1e-30).unsqueeze(1)).round()
    return codes.clamp(-127, 127).to(torch.int8), scale


class Encoded(nn.Module):
    """A module whose weight is stored as int8 codes with one scale per row; see `encode`."""

    codes: Tensor
    row_scale: Tensor

    @property
    def weight(self) -> Tensor:
        """The matrix that the codes stand for."""
        return self.codes.to(self.row_scale.dtype) * self.row_scale.unsqueeze(1)

    @classmethod
    def encode(cls, module: nn.Module) -> None:
        """Change a module with a weight into one of this class, in place: hooks and bias stay."""
        weight = module.weight
        assert isinstance(weight, Tensor)
        codes, scale = encode_rows(weight)
        del module.weight
        module.__class__ = cls
        module.register_buffer("codes", codes)
        module.register_buffer(
            "row_scale", scale.to(torch.promote_types(weight.dtype, torch.float32))
        )


class EncodedLinear(Encoded, Linear):  # type: ignore[override]
    """y = scale ⊙ (C x) + bias: a linear map with weights of 8 bits."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear_codes(x, self.codes, self.row_scale, self.bias)


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
    return ops.block_products([x], [weight])
