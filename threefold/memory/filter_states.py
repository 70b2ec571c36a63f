"""m_t = Ā m_{t−1} + B̄ u_t = Ā^t m_0 + Σ_{s ≤ t} (Ā^{t−s} B̄) u_s:  all states of a fixed filter.

Where every number of the state is read, one transition for all channels: the responses Ā^k B̄ by
doubling, then products with them in blocks, or one Fourier transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.memory.forms import plan_chunk


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

    transition [N, N] and write [N] are of one dtype with u and state.
    """
    if form == "step":
        after = state @ transition.mT + u[:, 0].unsqueeze(-1) * write
        if lengths is not None:
            after = torch.where((lengths > 0).view(-1, 1, 1), after, state)
        return after.unsqueeze(1), after
    length = u.shape[1]
    size = plan_chunk(None, length, form)
    taps = powers(write, transition, size)
    made, before = [], state
    for begin in range(0, length, size):
        piece = u[:, begin : begin + size]
        count = piece.shape[1]
        own = powers(before @ transition.mT, transition, count).movedim(0, 1)
        fold = _convolved if form == "parallel" else _summed
        made.append(own + fold(piece, taps[:count]))
        before = made[-1][:, -1]
    found = torch.cat(made, 1)
    if lengths is None:
        return found, before
    rows = torch.arange(len(u), device=u.device)
    last = found[rows, (lengths - 1).clamp(min=0)]
    return found, torch.where((lengths > 0).view(-1, 1, 1), last, state)


def powers(start: Tensor, transition: Tensor, count: int) -> Tensor:
    """start, Ā start, Ā² start, … [count, ..., N], by doubling."""
    made, turn = start.unsqueeze(0), transition
    while len(made) < count:
        made = torch.cat([made, made @ turn.mT])
        turn = turn @ turn
    return made[:count]


def _summed(u: Tensor, taps: Tensor) -> Tensor:
    """Σ_{s ≤ t} taps_{t−s} u_s by one product with the table of all pairs."""
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
