"""Token shift: each element with the one before it, as RWKV mixes them."""

from __future__ import annotations

import torch
from torch import Tensor


def previous_elements(x: Tensor, last: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The previous element of each element of x [B, L, D], and the last real one: the new state."""
    x = x.to(last.dtype)  # under autocast they may differ
    everything = torch.cat([last.unsqueeze(1), x], 1)
    if lengths is None:
        return everything[:, :-1], everything[:, -1]
    return everything[:, :-1], everything[torch.arange(len(x), device=x.device), lengths]


def shift_ramp(width: int, power: float) -> Tensor:
    """1 − (i/width)^power: the initial shares of the previous element in RWKV, per channel."""
    return 1 - (torch.arange(width) / width) ** power
