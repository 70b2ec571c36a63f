"""Which elements of a batch are real: rows start at 0 and have their own lengths."""

from __future__ import annotations

import torch
from torch import Tensor


def real_elements(lengths: Tensor, length: int) -> Tensor:
    """True for the real elements of each row, bool [B, length], from lengths [B]."""
    return torch.arange(length, device=lengths.device) < lengths.unsqueeze(1)


def readable_elements(lengths: Tensor, length: int) -> Tensor:
    """The same, but the first element of an empty row counts, so that a softmax has an entry."""
    return real_elements(lengths.clamp(min=1), length)
