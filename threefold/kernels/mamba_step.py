"""y, S, c = step(x, S₋, c₋): one element of a whole Mamba layer in one native call

For steps without gradients, called without torch's dispatcher. Shapes are checked in `ops`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.linear import MOST_ROWS, PLAIN


class Weights(NamedTuple):
    """The parameters of a Mamba layer; see native/operations.h for their shapes."""

    input: Tensor
    conv: Tensor
    conv_bias: Tensor
    select: Tensor
    delta: Tensor
    delta_bias: Tensor
    A_log: Tensor
    D: Tensor
    out: Tensor


def step(
    x: Tensor, memory: Tensor, conv: Tensor, weights: Weights, hold: bool
) -> tuple[Tensor, Tensor, Tensor] | None:
    """x [B, 1, W], memory [B, D, N], conv [B, K−1, D] to y and both after the element.

    None where the kernel does not serve. A token takes a call for each layer, so nothing is asked
    twice.
    """
    inputs = (x, memory, conv, *weights)
    sizes = _sizes(x, memory, conv, weights)
    dtype = x.dtype
    if sizes is None or not all(
        type(t) in PLAIN and t.dtype is dtype and t.is_contiguous() and not t.is_neg()
        for t in inputs
    ):
        return None
    y, new_memory, new_conv = (
        x.new_empty(x.shape),
        x.new_empty(memory.shape),
        x.new_empty(conv.shape),
    )
    library.call(
        "mamba_step",
        [y, new_memory, new_conv, x.new_empty(workspace(*sizes))],
        inputs,
        [*sizes, hold],
        laid_out=True,
    )
    return y, new_memory, new_conv


def _sizes(x: Tensor, memory: Tensor, conv: Tensor, weights: Weights) -> tuple[int, ...] | None:
    """B, W, D, N, K, R if all shapes belong together, which the kernel trusts."""
    batch, length, width = x.shape
    (channels, size), (filters, taps) = weights.A_log.shape, weights.conv.shape
    rank = weights.delta.shape[-1]
    if (
        length == 1
        and 0 < batch <= MOST_ROWS
        and filters == channels
        and memory.shape == (batch, channels, size)
        and conv.shape == (batch, taps - 1, channels)
        and weights.input.shape == (2 * channels, width)
        and weights.select.shape == (rank + 2 * size, channels)
        and weights.delta.shape == (channels, rank)
        and weights.out.shape == (width, channels)
        and weights.conv_bias.shape == weights.delta_bias.shape == weights.D.shape == (channels,)
    ):
        return batch, width, channels, size, taps, rank
    return None


@cache
def workspace(batch: int, width: int, channels: int, size: int, taps: int, rank: int) -> int:
    """Numbers that one step needs room for."""
    filled = -(-max(width, channels, rank) // 32) * 32
    return batch * (filled + 5 * channels + 2 * rank + 2 * size) + channels * (taps + size)
