"""The dtype in which gates, decays and recurrences are computed."""

from __future__ import annotations

from torch import Tensor

from threefold.memory.state import memory_dtype


def upcast(x: Tensor) -> Tensor:
    """float32 for narrower dtypes: gates and decays are computed there."""
    return x.to(memory_dtype(x.dtype))
