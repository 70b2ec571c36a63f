"""Published layers in plain steps: what their oracles share, and the comparison with a mixer.

An oracle gets the parameters of a mixer by name and one row x [L, width] in float64.  It calls
nothing of threefold, and loops over time as the paper's equation does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close, relative_error
from threefold.blocks.stack import Stack
from threefold.layers.mixer import Mixer

WIDTH, LENGTH = 16, 24

Parameters = dict[str, Tensor]
Oracle = Callable[..., Tensor]  # (parameters, x, **options)


def make(
    name: str, dtype: torch.dtype = torch.float64, width: int = WIDTH, **options: Any
) -> Mixer:
    """A mixer, or "stack", of which no parameter is zero, one, or the same for all channels."""
    torch.manual_seed(0)
    stack = name == "stack"
    mixer = Stack(width, **options) if stack else threefold.mixer(name, width=width, **options)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.rand_like(parameter) - 0.1
        if name == "hyena":
            # Three sines of frequency 10 multiply a rounding of float32 by a thousand.
            mixer.get_parameter("filters.frequency").div_(4)
    return mixer.to(dtype).eval()


def parameters_of(mixer: Mixer) -> Parameters:
    """Parameters and buffers by name; numbers that are not whole in float64."""
    named = (*mixer.named_parameters(), *mixer.named_buffers())
    return {
        name: tensor.detach().double() if tensor.is_floating_point() else tensor
        for name, tensor in named
    }


def rows_of_input(dtype: torch.dtype = torch.float64, width: int = WIDTH) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, LENGTH, width, generator=generator, dtype=torch.float64).to(dtype)


def run(oracle: Oracle, parameters: Parameters, x: Tensor, **options: Any) -> Tensor:
    """The oracle's output for every row of x [B, L, width]."""
    return torch.stack([oracle(parameters, row, **options) for row in x.double()])


def assert_published(name: str, oracle: Oracle, **options: Any) -> None:
    """The mixer gives what the oracle gives, in float64 and in float32."""
    for dtype in (torch.float64, torch.float32):
        mixer, x = make(name, dtype, **options), rows_of_input(dtype)
        expected = run(oracle, parameters_of(mixer), x, **options)
        with torch.no_grad():
            actual, _ = mixer(x)
        print(f"{name}: {dtype}: {relative_error(actual, expected):.1e}")
        assert_close(actual, expected, "output", f"{name} {options}")


def assert_parameters_matter(name: str, oracle: Oracle, **options: Any) -> None:
    """The comparison notices when any one parameter is not where the paper has it."""
    mixer, x = make(name, **options), rows_of_input()
    parameters = parameters_of(mixer)
    expected = run(oracle, parameters, x, **options)
    for key, value in parameters.items():
        if not value.numel() or not value.is_floating_point():
            continue  # says where the mixer computes, or is an index
        generator = torch.Generator().manual_seed(2)
        factors = 0.8 + 0.4 * torch.rand(value.shape, generator=generator, dtype=value.dtype)
        moved = {**parameters, key: value * factors}
        assert relative_error(run(oracle, moved, x, **options), expected) > 1e-6, key


Case = tuple[str, Oracle, dict[str, Any]]  # mixer, its oracle, options of both


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    """A linear map by its name, with its bias if it has one."""
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0.0)


def over_time(*fields: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The elements of fields [L, …], one after the other."""
    return zip(*fields, strict=True)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[L, H·size] to [L, H, size]."""
    return x.reshape(len(x), heads, -1)


def rms(x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-5) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def layer_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x|; flash-linear-attention has ε under the root."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / 2**0.5))


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def convolve(x: Tensor, taps: Tensor) -> Tensor:
    """y_t = Σ_j taps[:, j] x_{t−j}, the past before the sequence being 0; taps [D, M], M ≥ 1."""
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for j in range(min(t + 1, taps.shape[1])):
            y[t] += taps[:, j] * x[t - j]
    return y


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """A short convolution as torch stores it: the last tap is for the present element."""
    return convolve(x, weight.flip(1)) + bias
