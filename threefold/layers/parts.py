"""What several mixers are made of: short convolutions, token shifts, low-rank maps, norms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.memory.state import memory_dtype


class Linear(nn.Linear):
    """y = W x + bias; a few rows without gradients are bound by reading W once."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class RMSNorm(nn.RMSNorm):
    """x / rms(x) ⊙ weight along the last axis, then ⊙ silu(gate) if there is one."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        super().__init__(size, eps)

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return ops.rms_norm(x, self.weight, gate, eps=self.eps or 0.0)


class ShortConvolution(nn.Module):
    """A causal convolution of a few taps a channel, with SiLU; its state is the last inputs."""

    def __init__(
        self, channels: int, taps: int = 4, *, bias: bool = False, silu: bool = True
    ) -> None:
        super().__init__()
        bound = 1 / math.sqrt(taps)
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None
        self.silu = silu

    @property
    def state_shape(self) -> tuple[int, int]:
        channels, taps = self.weight.shape
        return taps - 1, channels

    def forward(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, L, channels], state [B, taps−1, channels]."""
        return ops.short_convolution(x, self.weight, self.bias, state, lengths, silu=self.silu)


class LowRankProjection(nn.Module):
    """up(activation(down(x))): a map through a few dimensions, bias on the way out only."""

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


def blockwise(x: Tensor, weight: Tensor) -> Tensor:
    """x times a matrix of small blocks on the diagonal, weight [blocks, inputs, outputs]."""
    return torch.einsum("blni,nio->blno", split_heads(x, len(weight)), weight).flatten(-2)


class BlockLinear(nn.Module):
    """y = W x + bias, W of `blocks` blocks on the diagonal."""

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, inputs // blocks, outputs // blocks))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=math.sqrt(blocks / inputs))

    def forward(self, x: Tensor) -> Tensor:
        return blockwise(x, self.weight) + self.bias


class HeadNorm(nn.Module):
    """LayerNorm over each head of [B, L, H, V], then a weight and a bias a channel (GroupNorm)."""

    def __init__(self, heads: int, size: int, *, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(heads, size)) if affine else None
        self.bias = nn.Parameter(torch.zeros(heads, size)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x, x.shape[-1:], eps=self.eps)
        if self.weight is None or self.bias is None:
            return x
        return x * self.weight + self.bias


def shift(x: Tensor, last: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Token shift: the element before each of x [B, L, D]; the last real one is the new state."""
    everything = torch.cat([last.unsqueeze(1), x], 1)
    if lengths is None:
        return everything[:, :-1], everything[:, -1]
    return everything[:, :-1], everything[torch.arange(len(x), device=x.device), lengths]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H·size] to [B, L, H, size]."""
    return torch.unflatten(x, -1, (heads, x.shape[-1] // heads))


def count_heads(width: int, heads: int | None, size: int) -> int:
    """`heads`, checked to divide the width; or the number that brings heads nearest to `size`."""
    if heads is None:
        divisors = [h for h in range(1, width + 1) if width % h == 0]
        return min(divisors, key=lambda h: abs(math.log(width / h / size)))
    if heads < 1 or width % heads:
        divisors = [h for h in range(1, min(width, 64) + 1) if width % h == 0]
        raise ThreefoldError(
            f"{heads} heads do not divide {width} channels; choose among {divisors}"
        )
    return heads


def wide(x: Tensor) -> Tensor:
    """float32 for narrower dtypes: gates and decays are computed there."""
    return x.to(memory_dtype(x.dtype))


class ConvolvedHeads(nn.Module):
    """Query, key and value in heads: each a projection, then a short convolution with SiLU.

    With `taps` = 0 there is no convolution, no SiLU and no state.
    """

    def __init__(
        self, width: int, heads: int, key_size: int, value_size: int, *, taps: int = 4
    ) -> None:
        super().__init__()
        self.heads = heads
        sizes = {"query": key_size, "key": key_size, "value": value_size}
        self.projections = nn.ModuleDict(
            {name: Linear(width, heads * size, bias=False) for name, size in sizes.items()}
        )
        convolved = sizes if taps else {}
        self.convolutions = nn.ModuleDict(
            {name: ShortConvolution(heads * size, taps) for name, size in convolved.items()}
        )
        self.state_shape = {name: (taps - 1, heads * size) for name, size in convolved.items()}

    def forward(
        self, x: Tensor, state: dict[str, Tensor], lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """x [B, L, width] to query, key, value [B, L, H, size], and the convolutions' state."""
        made, after = [], {}
        for name, project in self.projections.items():
            y = project(x)
            if name in self.convolutions:
                y, after[name] = self.convolutions[name](y, state[name], lengths)
            made.append(split_heads(y, self.heads))
        return tuple(made), after


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / √(|x|² + eps) along the last axis: of length one; zero stays zero, smoothly."""
    x = wide(x)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def shift_ramp(width: int, power: float) -> Tensor:
    """1 − (i/width)^power: RWKV's initial shares of the element before, channel by channel."""
    return 1 - (torch.arange(width) / width) ** power


def rotate(
    query: Tensor, key: Tensor, position: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotary: channels i and i + size//2 of both [B, L, H, size] turned by position · frequency.

    `position` int64 [B] is where each row starts, `frequencies` float64 [size//2].  Angles are
    float64 (float32 is off by 1.6e-2 after a million elements).  An odd last channel stays.
    """
    elements = position.unsqueeze(1) + torch.arange(query.shape[1], device=query.device)
    angle = (elements.unsqueeze(-1) * frequencies).unsqueeze(2)
    dtype = memory_dtype(query.dtype)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return _turned(query, cos, sin), _turned(key, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half, whole = cos.shape[-1], wide(x)
    first, second, rest = whole[..., :half], whole[..., half : 2 * half], whole[..., 2 * half :]
    parts = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*parts, rest] if rest.shape[-1] else parts, -1).to(x.dtype)


def rotary_frequencies(size: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    """base^{−2i/size} for each pair of channels, float64: radians an element."""
    pairs = torch.arange(size // 2, dtype=torch.float64, device=device)
    return base ** (-2 * pairs / size)


def advance(position: Tensor, length: int, lengths: Tensor | None) -> Tensor:
    """Where each row [B] stands after `length` elements, or after its own `lengths`."""
    return position + (length if lengths is None else lengths)


def orthogonal_gaussians(like: Tensor) -> Tensor:
    """Gaussian vectors of the shape of [heads, count, size], orthogonal in blocks of `size`.

    Directions are uniform only if R's diagonal is positive (Mezzadri 2007); lengths are Gaussian.
    """
    heads, count, size = like.shape
    gaussian = torch.randn(heads, -(-count // size), size, size, device=like.device)
    directions, r = torch.linalg.qr(gaussian)
    directions = directions * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.linalg.vector_norm(torch.randn_like(like), dim=-1, keepdim=True)
    drawn: Tensor = directions.mT.flatten(1, 2)[:, :count] * lengths
    return drawn


def initial_delta(channels: int, delta_range: tuple[float, float]) -> Tensor:
    """Biases whose softplus is log-uniform in `delta_range`."""
    low, high = (math.log(limit) for limit in delta_range)
    delta = torch.empty(channels).uniform_(low, high).exp().clamp(min=1e-4)
    return delta + torch.log(-torch.expm1(-delta))
