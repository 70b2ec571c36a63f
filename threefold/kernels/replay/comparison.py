"""|program − step| ≤ tolerance · max |step|: whether a program gives the numbers of its step.

A sum that nearly cancels, and is normed afterwards, may differ by more in any two orders: such
numbers are near, not the same, and other inputs must decide.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.kernels.replay.listing import state_leaves

State = dict[str, Any]

# Largest difference between program and recorded step, relative to the largest number.
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


SAME, NEAR, OTHER = range(3)
_NEAR = 100  # times the tolerance


def likeness(seen: tuple[Tensor, State], run: tuple[Tensor, State]) -> int:
    """How much two (y, state) agree in every leaf, NaN included: SAME, NEAR or OTHER."""
    pairs = [(seen[0], run[0])]
    other = dict(state_leaves(run[1]))
    pairs += [(leaf, other[path]) for path, leaf in state_leaves(seen[1])]
    return max(_likeness(a, b) for a, b in pairs)


def _likeness(expected: Tensor, given: Tensor) -> int:
    if not expected.is_floating_point():
        return SAME if torch.equal(expected, given) else OTHER
    if not torch.equal(expected.isnan(), given.isnan()):
        return OTHER
    expected, given = expected.nan_to_num(), given.nan_to_num()
    scale = float(expected.abs().amax()) if expected.numel() else 0.0
    most = float((expected - given).abs().amax()) if expected.numel() else 0.0
    allowed = _TOLERANCE[expected.dtype] * max(scale, 1e-30)
    return SAME if most <= allowed else NEAR if most <= _NEAR * allowed else OTHER
