"""|program − step| ≤ tolerance · max |step|: whether a program gives the numbers of its step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels.replay.listing import state_leaves

State = dict[str, Any]

# Largest difference between program and recorded step, relative to the largest number.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def same_results(seen: tuple[Tensor, State], run: tuple[Tensor, State]) -> bool:
    """Whether two (y, state) agree in every leaf, NaN included."""
    pairs = [(seen[0], run[0])]
    other = dict(state_leaves(run[1]))
    pairs += [(leaf, other[path]) for path, leaf in state_leaves(seen[1])]
    return all(_near(a, b) for a, b in pairs)


def _near(expected: Tensor, given: Tensor) -> bool:
    if not expected.is_floating_point():
        return torch.equal(expected, given)
    if not torch.equal(expected.isnan(), given.isnan()):
        return False
    expected, given = expected.nan_to_num(), given.nan_to_num()
    scale = float(expected.abs().amax()) if expected.numel() else 0.0
    most = float((expected - given).abs().amax()) if expected.numel() else 0.0
    return most <= _TOLERANCE[expected.dtype] * max(scale, 1e-30)
