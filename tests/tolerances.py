"""How far two answers may be apart, by dtype and quantity.  One table, no override.

Relative error is max|a − b| / max|b| over a tensor.  output, state and gradient hold at L ≤ 256 on
inputs whose transition has norm ≤ 1; the others say what they are for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.testing.closeness import LIMITS, assert_within, relative_error

__all__ = ["TOLERANCES", "assert_close", "relative_error"]

TOLERANCES: dict[tuple[torch.dtype, str], float] = {
    **LIMITS,  # of the laws that `threefold.testing` checks
    # float32 against float64 of the same numbers: extreme gates at length 512, ...
    (torch.float32, "extreme"): 1e-4,
    # ... 100,000 elements with a state that decays, and one that only adds up: n additions of a
    # number of one sign lose up to n/2 ulp = 100,000 · 3e-8 = 3e-3 in float32.
    (torch.float32, "long decaying"): 1e-4,
    (torch.float32, "long adding"): 1e-2,
    # Under autocast every product rounds its inputs to 8 bits, 2e-3 each. An output is a few
    # products deep; a gradient twice as many, and behind gates and softmaxes it is a difference.
    (torch.float32, "autocast output"): 4e-2,
    (torch.float32, "autocast gradient"): 1.5e-1,
}


def assert_close(
    actual: Tensor, expected: Tensor, quantity: str = "output", what: str = ""
) -> None:
    """Raise unless `actual` is within the table's tolerance of `expected`."""
    assert_within(actual, expected, quantity, what, TOLERANCES)
