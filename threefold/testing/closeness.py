"""How far two answers may be apart: max|a − b| / max|b| over a tensor, by dtype and quantity.

Holds for sequences of at most 256 elements and transitions of norm at most 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from threefold.errors import ThreefoldError

LIMITS: Mapping[tuple[torch.dtype, str], float] = {
    (torch.float64, "output"): 1e-10,
    (torch.float64, "state"): 1e-10,
    (torch.float64, "gradient"): 1e-10,
    (torch.float32, "output"): 1e-5,
    (torch.float32, "state"): 1e-5,
    (torch.float32, "gradient"): 1e-4,
}


class ContractError(ThreefoldError, AssertionError):
    """A mixer breaks a law of the contract."""


def require(holds: object, message: str) -> None:
    """Raise a ContractError unless something holds."""
    if not holds:
        raise ContractError(message)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """max|a − b| / max|b|; NaN where they are not NaN together counts as infinite.

    Below the smallest normal number of the dtype digits are lost one by one, whatever the method,
    so that number is the least that an error is divided by.
    """
    shapes = tuple(actual.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"shapes differ: {shapes[0]} and {shapes[1]}")
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


def assert_within(
    actual: Tensor,
    expected: Tensor,
    quantity: str = "output",
    what: str = "",
    limits: Mapping[tuple[torch.dtype, str], float] = LIMITS,
) -> None:
    """Raise unless `actual` is within the table's limit of `expected`."""
    dtype = actual.dtype if actual.dtype in (torch.float32, torch.float64) else torch.float32
    limit, error = limits[dtype, quantity], relative_error(actual, expected)
    require(
        error <= limit,
        f"{what or quantity}: relative error {error:.2e} above {limit:.0e} ({dtype})",
    )
