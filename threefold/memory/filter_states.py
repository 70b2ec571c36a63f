"""m_t = Ā m_{t−1} + B̄ u_t = Ā^t m_0 + Σ_{s ≤ t} (Ā^{t−s} B̄) u_s:  all states of a fixed filter.

For layers that read every number of the state, with one transition for all channels.  The responses
Ā^k B̄ come by doubling; the states are products with them in blocks, or one Fourier transform.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
    batch, length, memories = u.shape
    size = plan_chunk(None, length, form)
    pieces = -(-length // size)
    taps = powers(write, transition, size)
    cut = F.pad(u, (0, 0, 0, pieces * size - length)).view(batch * pieces, size, memories)
    gained = (_convolved if form == "parallel" else _summed)(cut, taps)
    gained = gained.view(batch, pieces, size, memories, -1)
    starts, turn = [state], torch.linalg.matrix_power(transition, size)
    for piece in range(pieces - 1):
        starts.append(starts[-1] @ turn.mT + gained[:, piece, -1])
    decayed = powers(torch.stack(starts, 1) @ transition.mT, transition, size).movedim(0, 2)
    states = (decayed + gained).flatten(1, 2)[:, :length]
    if lengths is None:
        return states, states[:, -1]
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
