"""Operations in plain torch, differentiable: the definitions that the native kernels are tested on.

They run where no kernel serves. The recurrences are not here: their definitions are in `memory`,
which runs them where `ops` answers None.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from threefold.kernels.autocast import under_autocast

# Complex numbers in one block of points × channels × poles: 16 MB in complex128.
BLOCK_NUMBERS = 2**20


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    lengths: Tensor | None = None,
    silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution; shapes as in `ops.short_convolution`."""
    batch, length, channels = x.shape
    taps = weight.shape[1]
    if state is None:
        state = x.new_zeros(batch, taps - 1, channels)
    if lengths is not None:
        real = (torch.arange(length, device=x.device) < lengths[:, None])[:, :, None]
        # `where`, not a product with the mask: padding may contain NaN.
        x = torch.where(real, x, 0)
    inputs = torch.cat([state, x], dim=1)
    y = _filtered(inputs, weight, bias, silu).to(x.dtype)
    if lengths is None:
        return y, inputs[:, length:].clone()
    # Real inputs end at K−1+length of their row, so the last K−1 begin at length.
    last = lengths[:, None] + torch.arange(taps - 1, device=x.device)
    new_state = inputs.gather(1, last[:, :, None].expand(-1, -1, channels))
    return torch.where(real, y, 0), new_state


def _filtered(inputs: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """The sum over taps, in float32 at least."""
    taps = weight.shape[1]
    length = inputs.shape[1] - taps + 1
    wide = torch.promote_types(inputs.dtype, torch.float32)
    inputs, weight = inputs.to(wide), weight.to(wide)
    y = inputs.new_zeros(()) if bias is None else bias.to(wide)
    for k in range(taps):
        y = torch.addcmul(y, inputs[:, k : k + length], weight[:, k])
    return F.silu(y) if silu else y


def long_convolution(
    x: Tensor,
    kernel: Tensor,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    first: int = 0,
) -> Tensor:
    """Convolve each channel with its own long filter; shapes as in `ops.long_convolution`."""
    wide = torch.promote_types(x.dtype, torch.float32)
    source, taps = x.shape[1], kernel.shape[1]
    # The cyclic convolution wraps around only onto outputs before `first`.
    size = source - first + taps - 1
    size = 1 << (max(size, source) - 1).bit_length()
    spectrum = torch.fft.rfft(x.to(wide), size, 1) * torch.fft.rfft(kernel.to(wide), size).T
    y: Tensor = torch.fft.irfft(spectrum, size, 1)[:, first:source]
    if skip is not None:
        y = y + skip.to(wide) * x[:, first:].to(wide)
    return (y if gate is None else y * gate.to(wide)).to(x.dtype)


def vandermonde(
    factor: Tensor,
    coefficient: Tensor,
    lengths: Tensor | None,
    length: int,
    backwards: bool,
    dtype: torch.dtype,
) -> Tensor:
    """`Re Σ_n c_n w_n^l`; shapes as in `ops.vandermonde`."""
    near, leaps = _tables(factor, length)
    c = torch.view_as_complex(coefficient.contiguous())
    starts = torch.einsum("rhn,qhn->rqhn", c, leaps)
    y = torch.einsum("rqhn,jhn->rqjh", starts, near).real.flatten(1, 2)[:, :length].to(dtype)
    return _ordered(y, lengths, backwards)


def moments(x: Tensor, factor: Tensor, lengths: Tensor | None, backwards: bool) -> Tensor:
    """`Σ_l x_l w_n^l`; shapes as in `ops.moments`."""
    near, leaps = _tables(factor, x.shape[1])
    x = _ordered(x, lengths, backwards)
    x = F.pad(x, (0, 0, 0, len(leaps) * len(near) - x.shape[1]))
    cut = torch.unflatten(x, 1, (len(leaps), len(near))).to(near.dtype)
    sums = torch.einsum("rqhn,qhn->rhn", torch.einsum("rqjh,jhn->rqhn", cut, near), leaps)
    return torch.view_as_real(sums)


def cauchy(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    """Sums of quotients, in blocks of points; shapes as in `ops.cauchy`."""
    each = max(1, BLOCK_NUMBERS // square.numel())
    blocks = [
        checkpoint(_quotients, p, q, square, real, some, use_reentrant=False)
        for some in torch.split(points, each, 1)
    ]
    return torch.cat(blocks, -1)


def _quotients(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    sine, cosine = points
    below = torch.complex(
        cosine**2 * square.unsqueeze(-1) - sine**2, -2 * sine * cosine * real.unsqueeze(-1)
    )
    by_p, by_q = torch.stack([p, q]).to(below.dtype) @ (1 / below)
    sums: Tensor = 1j * sine * by_p - cosine * by_q
    return sums


def _tables(factor: Tensor, length: int, block: int = 64) -> tuple[Tensor, Tensor]:
    """w^j [block, D, N] and w^{block·q} [Q, D, N]: their products are all powers below `length`."""
    w = torch.view_as_complex(factor.contiguous())
    near = _powers(w, block)
    return near, _powers(near[-1] * w, -(-length // block))


def _powers(w: Tensor, count: int) -> Tensor:
    """w^0 … w^{count−1}, by doubling."""
    powers, leap = torch.ones_like(w).unsqueeze(0), w
    while len(powers) < count:
        powers, leap = torch.cat([powers, powers * leap]), leap * leap
    return powers[:count]


def _ordered(x: Tensor, lengths: Tensor | None, backwards: bool) -> Tensor:
    """x [R, L, D] with zeros after each row's end, each row reversed if `backwards`."""
    if lengths is None:
        return x.flip(1) if backwards else x
    places = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
    real = (places < lengths[:, None]).unsqueeze(-1)
    if backwards:
        places = (lengths[:, None] - 1 - places).clamp(min=0)
        x = x.gather(1, places.unsqueeze(-1).expand(x.shape))
    return torch.where(real, x, 0)


def block_products(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Products with block-diagonal matrices [blocks, I, O], side by side."""
    products = [
        torch.einsum("blni,nio->blno", torch.unflatten(x, -1, weight.shape[:2]), weight).flatten(-2)
        for x, weight in zip(inputs, weights, strict=True)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, -1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = x Wᵀ + bias`; weights narrower than x are widened."""
    if x.dtype != weight.dtype and not under_autocast(x):
        weight = weight.to(x.dtype)
        bias = None if bias is None else bias.to(x.dtype)
    return F.linear(x, weight, bias)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    gate: Tensor | None = None,
    eps: float = 1e-5,
    gate_first: bool = False,
) -> Tensor:
    """`x / rms(x) ⊙ weight ⊙ silu(gate)`, also where x² would overflow; in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    if gate is not None and gate_first:
        y = y * F.silu(gate.to(wide))
    scale = y.detach().abs().amax(-1, keepdim=True).clamp(min=1)
    y = y / scale
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps / scale.square())
    if weight is not None:
        y = y * weight.to(wide)
    if gate is not None and not gate_first:
        y = y * F.silu(gate.to(wide))
    return y.to(x.dtype)


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """`silu(gate) ⊙ x`."""
    return F.silu(gate) * x


def rotary(
    query: Tensor, key: Tensor, position: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by their positions, in float32 at least; as in `ops.rotary`."""
    elements = position.unsqueeze(1) + torch.arange(key.shape[1], device=key.device)
    angle = (elements.unsqueeze(-1) * frequencies).unsqueeze(2)
    wide = torch.promote_types(query.dtype, torch.float32)
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)
    count = query.shape[1]
    return _turn_pairs(query, cos[:, :count], sin[:, :count]), _turn_pairs(key, cos, sin)


def _turn_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half, y = cos.shape[-1], x.to(torch.promote_types(x.dtype, torch.float32))
    first, second, rest = y[..., :half], y[..., half : 2 * half], y[..., 2 * half :]
    parts = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat([*parts, rest] if rest.shape[-1] else parts, -1).to(x.dtype)


def token_shift(
    x: Tensor, shares: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mixtures of each element and the one before it; shapes as in `ops.token_shift`."""
    batch, length, channels = x.shape
    if state is None:
        state = x.new_zeros(batch, channels)
    if lengths is not None:
        real = (torch.arange(length, device=x.device) < lengths[:, None])[:, :, None]
        x = torch.where(real, x, 0)
    shifted = torch.cat([state.unsqueeze(1), x], 1)
    mixtures = x + (shifted[:, :-1] - x) * shares[:, None, None]
    if lengths is None:
        return mixtures, shifted[:, -1]
    rows = torch.arange(batch, device=x.device)
    return torch.where(real, mixtures, 0), shifted[rows, lengths]
