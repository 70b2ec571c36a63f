"""Initial values that several mixers share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def initial_delta_bias(channels: int, delta_range: tuple[float, float]) -> Tensor:
    """Biases whose softplus is log-uniform in `delta_range`."""
    low, high = (math.log(limit) for limit in delta_range)
    delta = torch.empty(channels).uniform_(low, high).exp().clamp(min=1e-4)
    return delta + torch.log(-torch.expm1(-delta))


def initialise_linears(*modules: nn.Module, gain: float = 2**-2.5) -> None:
    """Xavier's uniform weights for all linear maps of modules; the gain is RetNet's."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight, gain=gain)


def orthogonal_gaussians(like: Tensor) -> Tensor:
    """Gaussian vectors [heads, count, size], orthogonal in blocks of `size`; `like` has the shape.

    Directions are uniform only if R's diagonal is positive (Mezzadri 2007); lengths are Gaussian.
    """
    heads, count, size = like.shape
    gaussian = torch.randn(heads, -(-count // size), size, size, device=like.device)
    directions, r = torch.linalg.qr(gaussian)
    directions = directions * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.linalg.vector_norm(torch.randn_like(like), dim=-1, keepdim=True)
    drawn: Tensor = directions.mT.flatten(1, 2)[:, :count] * lengths
    return drawn


def lecun_uniform(weight: Tensor) -> Tensor:
    """Fill a weight uniformly, with variance 1 / inputs."""
    bound = (3 / weight.shape[1]) ** 0.5
    return nn.init.uniform_(weight, -bound, bound)
