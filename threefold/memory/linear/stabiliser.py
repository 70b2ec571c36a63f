"""m_t = max(log f_t + m_{t−1}, log i_t): exponential gates without overflow.

A memory scaled by e^{−m_t} has decays and inputs ≤ 1.  The scale cancels in a normalised read-out,
so m carries no gradient (Beck et al. 2024, xLSTM).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from threefold.memory.associative_scan import Element, associative_scan


class Stabilised(NamedTuple):
    """The gates of the scaled memory, and the logarithm of the scale."""

    log_decay: Tensor  # log f_t + m_{t−1} − m_t
    log_input: Tensor  # log i_t − m_t
    maxima: Tensor  # m_t, [B, L, ...]

    @property
    def maximum(self) -> Tensor:
        return self.maxima[:, -1]


def stabilise(
    log_decay: Tensor,
    log_input: Tensor,
    maximum: Tensor,
    lengths: Tensor | None = None,
    *,
    empty: Tensor | None = None,
) -> Stabilised:
    """Gates [B, L, ...] relative to their running maximum, which starts at `maximum` [B, ...].

    empty [B, ...]: where a memory contains nothing, so that its maximum is below every gate.
    """
    if empty is not None:
        maximum = maximum.masked_fill(empty, torch.finfo(maximum.dtype).min / 2)
    if lengths is not None:
        past_end = torch.arange(log_decay.shape[1], device=lengths.device) >= lengths[:, None]
        past_end = past_end.view(*past_end.shape, *[1] * (log_decay.dim() - 2))
        log_decay = log_decay.masked_fill(past_end, 0)
        log_input = log_input.masked_fill(past_end, -torch.inf)
    with torch.no_grad():
        decays, inputs = associative_scan(_max_plus, (log_decay, log_input))
        maxima = torch.maximum(decays + maximum.unsqueeze(1), inputs)
        before = torch.cat([maximum.unsqueeze(1), maxima[:, :-1]], 1)
    # before − maxima is near −log_decay or far below: added last, it loses the fewest digits.  A
    # rounding error above 0 is removed without changing the gradient.
    scaled = log_decay + (before - maxima)
    return Stabilised(scaled - scaled.detach().clamp(min=0), log_input - maxima, maxima)


def _max_plus(earlier: Element, later: Element) -> Element:
    return earlier[0] + later[0], torch.maximum(earlier[1] + later[0], later[1])
