"""Checks of options that several layers, blocks and models share."""

from __future__ import annotations

from threefold.errors import ThreefoldError


def check_dropout(owner: str, **rates: float) -> None:
    """Raise an error for dropout rates outside [0, 1), given by the name of the option."""
    for name, rate in rates.items():
        if not 0 <= rate < 1:
            raise ThreefoldError(f"{owner}: {name} is {rate}, expected at least 0 and below 1")


def check_hippo_sizes(owner: str, hidden: int, order: int, window: float, memories: int) -> None:
    """Raise an error for impossible sizes of a recurrent network with a HiPPO memory."""
    if min(hidden, order, memories) < 1 or not 1 <= window < float("inf"):
        raise ThreefoldError(
            f"{owner}: hidden={hidden}, order={order}, window={window}, memories={memories}; "
            "expected at least 1 of each, and a finite window"
        )
