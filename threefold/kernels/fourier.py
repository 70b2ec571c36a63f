"""n = 2^k,  w = e^{−2πi/n}: sizes and tables of the Fourier transforms in native/fourier.h.

What the long and the online convolution share.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

# One point of a transform is two vectors; this is their size in the widest variant.
BYTES_PER_POINT = 128


def next_power_of_two(number: int) -> int:
    """The smallest power of two ≥ number."""
    return 1 << (number - 1).bit_length()


@cache
def twiddle_factors(size: int, dtype: torch.dtype) -> Tensor:
    """w^j, w^2j, w^3j with w = e^{−2πi/n} for n = 4, 8, …, size and j < n/4, as pairs."""
    with torch.device("cpu"):  # cached, whatever device the first caller had chosen
        return _twiddle_factors(size).to(dtype)


def _twiddle_factors(size: int) -> Tensor:
    stages = [torch.zeros(0, dtype=torch.float64, device="cpu")]
    n = 4
    while n <= size:
        turns = torch.arange(n // 4, dtype=torch.float64).unsqueeze(1) * torch.arange(1, 4) / n
        angles = -2 * math.pi * turns
        stages.append(torch.stack([angles.cos(), angles.sin()], -1).flatten())
        n *= 2
    return torch.cat(stages)


def numbers_per_point(dtype: torch.dtype) -> int:
    """Numbers that one point of a transform takes in the widest variant."""
    return BYTES_PER_POINT // dtype.itemsize
