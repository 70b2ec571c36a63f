"""y = silu(conv(x) + bias): the native short convolution, its reference, and torch's conv1d."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Comparison, Contender
from threefold.kernels import ops, reference

Function = Callable[[Tensor, Tensor, Tensor], Tensor]

SIZES = [(1, 1024, 1536, 4), (4, 512, 512, 4), (1, 16384, 256, 4)]


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ops.short_convolution(x, weight, bias, silu=True)[0]


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return reference.short_convolution(x, weight, bias, silu=True)[0]


def conv1d(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The usual way to write it in torch: pad both sides, convolve, cut."""
    length, (channels, taps) = x.shape[1], weight.shape
    transposed, filters = x.transpose(1, 2), weight[:, None]
    y = F.conv1d(transposed, filters, bias, padding=taps - 1, groups=channels)
    return F.silu(y[..., :length]).transpose(1, 2)


CONTENDERS: dict[str, Function] = {"threefold": ours, "reference": plain, "conv1d + silu": conv1d}


def forward(function: Function, inputs: list[Tensor]) -> Contender:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [function(*inputs)]

    return run


def training(function: Function, inputs: list[Tensor]) -> Contender:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    grad = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        y = function(*leaves)
        return [y, *torch.autograd.grad(y, leaves, grad)]

    return run


def step(inputs: list[Tensor], state: Tensor) -> dict[str, Contender]:
    """One element from a given state, a hundred times: the cost of a call."""
    x, weight, bias = inputs

    def native() -> list[Tensor]:
        for _ in range(100):
            y, new_state = ops.short_convolution(x, weight, bias, state, silu=True)
        return [y, new_state]

    def by_hand() -> list[Tensor]:
        for _ in range(100):
            window = torch.cat([state, x], dim=1)
            y = F.silu((window * weight.t()).sum(1, keepdim=True) + bias)
        return [y, window[:, 1:]]

    contenders = {"threefold, 100 steps": native, "torch, by hand": by_hand}
    return {name: torch.no_grad()(contender) for name, contender in contenders.items()}


def run() -> Iterator[Comparison]:
    """Forward, forward + backward, and one step."""
    for batch, length, channels, taps in SIZES:
        inputs = [
            torch.randn(batch, length, channels),
            torch.randn(channels, taps),
            torch.randn(channels),
        ]
        size = f"B={batch} L={length} D={channels} K={taps}"
        for label, kind in (("forward", forward), ("forward + backward", training)):
            contenders = {name: kind(function, inputs) for name, function in CONTENDERS.items()}
            yield Comparison(f"short convolution {size}, {label}", contenders)
    inputs[0] = torch.randn(1, 1, channels)
    yield Comparison(
        f"short convolution D={channels}, step", step(inputs, torch.randn(1, 3, channels))
    )
