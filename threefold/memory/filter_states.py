"""m_t = Ā m_{t−1} + B̄ u_t = Ā^t m_0 + Σ_{s ≤ t} (Ā^{t−s} B̄) u_s:  all states of a fixed filter.

For layers that read every number of the state, with one transition for all channels.  The responses
Ā^k B̄ come by doubling; the states are products with them in blocks, or one Fourier transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.forms import plan_chunk


@full_precision
def filter_states(
    u: Tensor,
    state: Tensor,
    transition: Tensor,
    write: Tensor,
    *,
    form: str,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The states [B, L, M, N] after each of u [B, L, M], and the last, from state [B, M, N].

    transition [N, N], write [N], u and state have one dtype.
    """
    if form == "step":
        after = state @ transition.mT + u[:, 0].unsqueeze(-1) * write
        if lengths is not None:
            after = torch.where((lengths > 0).view(-1, 1, 1), after, state)
        return after.unsqueeze(1), after
    length = u.shape[1]
    size = plan_chunk(None, length, form)
    taps = powers(write, transition, size)
    blocks, before = [], state
    for begin in range(0, length, size):
        piece = u[:, begin : begin + size]
        count = piece.shape[1]
        decayed = powers(before @ transition.mT, transition, count).movedim(0, 1)
        convolve = _convolved if form == "parallel" else _summed
        blocks.append(decayed + convolve(piece, taps[:count]))
        before = blocks[-1][:, -1]
    states = torch.cat(blocks, 1)
    if lengths is None:
        return states, before
    rows = torch.arange(len(u), device=u.device)
    last = states[rows, (lengths - 1).clamp(min=0)]
    return states, torch.where((lengths > 0).view(-1, 1, 1), last, state)


def powers(start: Tensor, transition: Tensor, count: int) -> Tensor:
    """start, Ā start, Ā² start, … [count, ..., N], by doubling."""
    results, power = start.unsqueeze(0), transition
    while len(results) < count:
        results = torch.cat([results, results @ power.mT])
        power = power @ power
    return results[:count]


def _summed(u: Tensor, taps: Tensor) -> Tensor:
    """Σ_{s ≤ t} taps_{t−s} u_s by one product with a table of all pairs (t, s)."""
    at = torch.arange(len(taps), device=u.device)
    distance = at[:, None] - at
    table = torch.where((distance >= 0).unsqueeze(-1), taps[distance.clamp(min=0)], 0)
    return torch.einsum("tsn,bsm->btmn", table, u)


def _convolved(u: Tensor, taps: Tensor) -> Tensor:
    """The same sum as a convolution of each channel with each response."""
    batch, length, channels = u.shape
    size = taps.shape[1]
    wide = u.unsqueeze(-1).expand(-1, -1, -1, size).reshape(batch, length, channels * size)
    kernel = taps.mT.repeat(channels, 1)
    y = ops.long_convolution(wide, kernel.contiguous(), None, whole=True)
    return torch.unflatten(y, -1, (channels, size))
