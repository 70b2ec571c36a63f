"""How far two answers may be apart, by dtype and quantity.  One table, no override.

Relative error is max|a − b| / max|b| over a tensor.  output, state and gradient hold at L ≤ 256 on
inputs whose transition has norm ≤ 1; the others say what they are for.
"""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES: dict[tuple[torch.dtype, str], float] = {
    (torch.float64, "output"): 1e-10,
    (torch.float64, "state"): 1e-10,
    (torch.float64, "gradient"): 1e-10,
    (torch.float32, "output"): 1e-5,
    (torch.float32, "state"): 1e-5,
    (torch.float32, "gradient"): 1e-4,
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


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """max|a − b| / max|b|; NaN where they are not NaN together counts as infinite.

    Below the smallest normal number of the dtype digits are lost one by one, whatever the method,
    so that number is the least that an error is divided by.
    """
    assert actual.shape == expected.shape, (
        f"shapes differ: {tuple(actual.shape)} and {tuple(expected.shape)}"
    )
    if actual.numel() == 0:
        return 0.0
    smallest = torch.finfo(actual.dtype).tiny
    actual, expected = actual.detach().double(), expected.detach().double()
    if not torch.equal(actual.isnan(), expected.isnan()):
        return float("inf")
    actual, expected = actual.nan_to_num(nan=0.0), expected.nan_to_num(nan=0.0)
    if torch.equal(actual, expected):
        return 0.0
    difference = (actual - expected).abs().max().item()
    return difference / max(expected.abs().max().item(), smallest)


def assert_close(
    actual: Tensor, expected: Tensor, quantity: str = "output", what: str = ""
) -> None:
    """Raise unless `actual` is within the table's tolerance of `expected`."""
    dtype = actual.dtype if actual.dtype in (torch.float32, torch.float64) else torch.float32
    limit = TOLERANCES[dtype, quantity]
    error = relative_error(actual, expected)
    assert error <= limit, (
        f"{what or quantity}: relative error {error:.2e} above {limit:.0e} ({dtype})"
    )
